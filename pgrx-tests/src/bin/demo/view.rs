//! The live view: one line per state, moving.

use std::io::{IsTerminal, Write, stdout};
use std::time::{Duration, Instant};

use postgres::Client;

use crate::crew::Crew;

const WIDTH: usize = 50;

/// The output on the screen.
pub struct View {
    moving: bool,
    drawn: usize,
    last_line: Option<Instant>,
    live: i64,
}

impl View {
    /// On a terminal the view moves; elsewhere it is a line every two seconds.
    pub fn new() -> Self {
        Self { moving: stdout().is_terminal(), drawn: 0, last_line: None, live: 0 }
    }

    /// Whether all orders were done at the last refresh.
    pub fn is_drained(&self) -> bool {
        self.live == 0
    }

    /// Reads the queue and prints its state.
    pub fn show(&mut self, client: &mut Client, crew: &Crew, elapsed: Duration) {
        let row = client
            .query_one(
                "SELECT queued, scheduled, running, completed_last_hour, dead, completed_per_second::float8
             FROM queue.stats WHERE queue = 'orders'",
                &[],
            )
            .expect("queue.stats");
        let [queued, scheduled, running, completed, dead]: [i64; 5] = std::array::from_fn(|i| row.get(i));
        self.live = queued + scheduled + running;
        let states = [
            ("queued", queued),
            ("scheduled", scheduled),
            ("running", running),
            ("completed", completed),
            ("dead", dead),
        ];
        let killed = crew.killed();
        if self.moving {
            self.redraw(&states, killed, elapsed);
        } else if self.last_line.is_none_or(|at| at.elapsed() >= Duration::from_secs(2)) || self.is_drained()
        {
            self.last_line = Some(Instant::now());
            let counts: Vec<String> =
                states.iter().map(|(name, count)| format!("{name} {count:>5}")).collect();
            println!("{:5.1} s   {}   workers killed {killed:>2}", elapsed.as_secs_f64(), counts.join("   "));
        }
    }

    fn redraw(&mut self, states: &[(&str, i64)], killed: usize, elapsed: Duration) {
        let mut screen = String::new();
        if self.drawn > 0 {
            screen += &format!("\x1b[{}A", self.drawn);
        }
        for (name, count) in states {
            let bar = usize::try_from(*count * WIDTH as i64 / crate::TASKS).unwrap_or(0).min(WIDTH);
            let bar = if *count > 0 { bar.max(1) } else { 0 };
            screen += &format!("  {name:<10}{count:>7} {:<WIDTH$}\x1b[K\n", "█".repeat(bar));
        }
        screen += &format!("  {:.1} s, {killed} workers killed\x1b[K\n", elapsed.as_secs_f64());
        self.drawn = states.len() + 1;
        print!("{screen}");
        stdout().flush().expect("write to the terminal");
    }
}
