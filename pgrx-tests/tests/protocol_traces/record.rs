//! Runs small cases on a real server, several at the same time, and records statements and answers of the clients.
//!
//! A client does what a session of the model does: it ends the oldest task that it has claimed, and forgets it
//! whatever the answer is. All transactions are blocks, so that each can record its transaction id.

use crate::accept::Phases;
use crate::player::Player;
use crate::rows::Level;
use crate::trace::{Asked, Mark, Played, Shape, Told, Trace};
use queue_ext_tests::torture::random::Random;
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

pub const SHAPES: [Shape; 6] = [
    Shape { name: "plain", options: "", grouped: false, group_limit: 1, max_running: 0, keep_history: true },
    Shape {
        name: "forgetful",
        options: r#", "keep_history": false"#,
        grouped: false,
        group_limit: 1,
        max_running: 0,
        keep_history: false,
    },
    Shape {
        name: "limited",
        options: r#", "max_running": 1"#,
        grouped: false,
        group_limit: 1,
        max_running: 1,
        keep_history: true,
    },
    Shape { name: "grouped", options: "", grouped: true, group_limit: 1, max_running: 0, keep_history: true },
    Shape {
        name: "pairs",
        options: r#", "max_running_per_group": 2"#,
        grouped: true,
        group_limit: 2,
        max_running: 0,
        keep_history: true,
    },
    Shape {
        name: "grouped and forgetful",
        options: r#", "keep_history": false"#,
        grouped: true,
        group_limit: 1,
        max_running: 0,
        keep_history: false,
    },
];

/// How many clients a world has.
pub const CLIENTS: usize = 3;
/// How many tasks at most.
pub const TASKS: usize = 6;

/// How worlds are played.
#[derive(Clone, Copy)]
pub struct Options {
    pub seed: u64,
    /// How many of a hundred clients use the native fast path.
    pub native: u64,
    /// How long it may take until nothing is left of a world.
    pub patience: Duration,
    /// The only shape of the worlds; empty: any of them.
    pub shape: &'static str,
    /// How long to search.
    pub phases: Phases,
}

/// Makes a queue of each shape.
pub fn create_queues(client: &mut postgres::Client) {
    for shape in &SHAPES {
        let options = format!(
            r#"{{"max_attempts": 1000, "lease": "1 hour", "backoff": {{"base": "0"}}{}}}"#,
            shape.options
        );
        client
            .execute("SELECT queue.create($1, $2::text::jsonb)", &[&shape.name, &options])
            .expect("create a queue");
    }
}

/// Connects to the database of a world.
pub type Connect<'a> = &'a (dyn Fn() -> postgres::Client + Sync);

/// What the clients of a case share.
pub struct Shared<'a> {
    pub connect: Connect<'a>,
    pub number: u64,
    pub queue: String,
    pub shape: &'static Shape,
    /// Whether some leases are short.
    pub expiring: bool,
    pub marks: Mutex<Vec<Mark>>,
    /// Tasks that were pushed and committed, and those that failed for good.
    pub known: Mutex<Vec<i64>>,
    pub dead: Mutex<Vec<i64>>,
    pub pushed: AtomicUsize,
}

/// Plays one world, until nothing is left of it.
pub fn play(
    sessions: &mut [postgres::Client],
    connect: Connect<'_>,
    number: u64,
    options: &Options,
) -> Trace {
    let mut random = Random::new(options.seed, number);
    let any = &SHAPES[random.roll(SHAPES.len() as u64) as usize];
    let shape = SHAPES.iter().find(|shape| shape.name == options.shape).unwrap_or(any);
    let world = Shared {
        connect,
        number,
        queue: shape.name.to_owned(),
        shape,
        expiring: random.chance(25),
        marks: Mutex::default(),
        known: Mutex::default(),
        dead: Mutex::default(),
        pushed: AtomicUsize::new(0),
    };
    let mut players: Vec<_> = sessions
        .iter_mut()
        .enumerate()
        .map(|(me, session)| {
            let native = random.chance(options.native);
            let random = Random::new(options.seed, number * 10 + me as u64 + 1_000_000_000);
            let mut player = Player {
                me,
                session,
                world: &world,
                random,
                native,
                leases: VecDeque::new(),
                played: Vec::new(),
            };
            player.choose_path();
            player
        })
        .collect();
    std::thread::scope(|scope| {
        for player in &mut players {
            scope.spawn(|| player.act());
        }
    });
    let drained = drain(&mut players, options.patience);
    let clients: Vec<Vec<Played>> = players.into_iter().map(|player| player.played).collect();
    let calls = clients.iter().flatten().flat_map(|played| &played.calls);
    let mut ids: Vec<i64> =
        calls.filter_map(|call| if let Told::Pushed(id) = call.told { Some(id) } else { None }).collect();
    ids.sort_unstable();
    let marks = world.marks.into_inner().expect("no client panics with the lock");
    Trace {
        number,
        shape,
        clients,
        marks,
        ids,
        drained,
        commits: Vec::new(),
        postponed: Vec::new(),
        leftovers: false,
        leases: HashMap::new(),
    }
}

/// Ends the tasks that the clients hold, and then all others.
fn drain(players: &mut [Player<'_>], patience: Duration) -> bool {
    for player in players.iter_mut() {
        while !player.leases.is_empty() {
            player.transaction(Level::ReadCommitted, false, &mut |player| player.end_of_lease(true));
        }
    }
    let started = Instant::now();
    let mut pause = 1;
    let player = &mut players[0];
    while started.elapsed() < patience && player.played.len() < 200 {
        let left = "SELECT EXISTS (SELECT FROM queue.tasks WHERE queue = $1)";
        if !player.session.query_one(left, &[&player.world.queue]).expect("look").get::<_, bool>(0) {
            return true;
        }
        let mut claim = Some(Asked::Claim { short: false });
        player.transaction(Level::ReadCommitted, false, &mut |_| claim.take());
        if player.leases.is_empty() {
            if player.native && pause >= 100 {
                // Only a claim in SQL sweeps.
                player.session.batch_execute("SET queue.fast_path = off").expect("switch to SQL");
                player.native = false;
            }
            std::thread::sleep(Duration::from_millis(pause));
            pause = (pause * 2).min(100);
            continue;
        }
        player.transaction(Level::ReadCommitted, false, &mut |player| player.end_of_lease(true));
    }
    false
}
