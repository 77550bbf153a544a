//! Runs small cases on a real server, several at the same time, and records statements and answers of the clients.
//!
//! A client does what a session of the model does: it ends the oldest task that it has claimed, and forgets it
//! whatever the answer is. All transactions are blocks, so that each can record its transaction id.

use super::accept::Phases;
use super::openings::{OPENINGS, Opening, UNDONE_END};
use super::player::Player;
use super::rows::Level;
use super::trace::{Asked, Crash, Mark, Played, Shape, Told, Trace};
use queue_ext_tests::torture::random::Random;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, OnceLock};
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
    /// What the worlds consist of; empty: it comes first in some.
    pub opening: &'static str,
    pub worker: bool,
    /// Whether the server is killed in each.
    pub crash: bool,
    /// After how many marks; none: at random.
    pub kill_after: Option<usize>,
    /// Whether ROLLBACK TO SAVEPOINT does nothing within another one.
    pub keeps_undone: bool,
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
        // The first group of a queue holds up the others, which the model does not know: it has one group. An event of an
        // earlier world may be about that first one.
        client.execute("SELECT queue_internal.lock_group($1, '')", &[&shape.name]).expect("lock a group");
    }
    client.execute("SELECT queue.create('probe', '{\"keep_history\": false}')", &[]).expect("create a queue");
}

/// Connects to the database of a world.
pub type Connect<'a> = &'a (dyn Fn() -> postgres::Client + Sync);
/// Kills the server and starts it again.
pub type Kill<'a> = &'a (dyn Fn() -> Crash + Sync);

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
    /// After how many marks the server is killed.
    pub doom: Option<(usize, Kill<'a>)>,
    pub crash: OnceLock<Crash>,
    pub keeps_undone: bool,
}

/// Plays one world, until nothing is left of it.
pub fn play(
    sessions: &mut [postgres::Client],
    (connect, kill): (Connect<'_>, Kill<'_>),
    base: i64,
    number: u64,
    options: &Options,
) -> Trace {
    let mut random = Random::new(options.seed, number);
    let any = &SHAPES[random.roll(SHAPES.len() as u64) as usize];
    let shape = SHAPES.iter().find(|shape| shape.name == options.shape).unwrap_or(any);
    let suits = |opening: &&Opening| !opening.1 || shape.grouped;
    let opening = if options.opening.is_empty() {
        let any = &OPENINGS[random.roll(OPENINGS.len() as u64) as usize];
        (random.chance(20) && !options.crash).then_some(any).filter(suits)
    } else {
        OPENINGS.iter().chain([&UNDONE_END]).find(|opening| opening.0 == options.opening)
    };
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
        doom: options.crash.then(|| (options.kill_after.unwrap_or(random.between(4, 40) as usize), kill)),
        crash: OnceLock::new(),
        keeps_undone: options.keeps_undone,
    };
    let mut players: Vec<_> = sessions
        .iter_mut()
        .enumerate()
        .map(|(me, session)| {
            let (native, asynchronous) = (random.chance(options.native), random.chance(50));
            let random = Random::new(options.seed, number * 10 + me as u64 + 1_000_000_000);
            let mut player = Player {
                me,
                session,
                world: &world,
                random,
                native,
                asynchronous: options.crash && asynchronous,
                cuts: 0,
                leases: VecDeque::new(),
                resumed: false,
                played: Vec::new(),
            };
            player.choose_path();
            player
        })
        .collect();
    if let Some((_, _, opening)) = opening {
        opening(&mut players[0]);
    }
    if options.opening.is_empty() {
        std::thread::scope(|scope| {
            for player in &mut players {
                player.cuts = if options.crash { 0 } else { 2 };
                scope.spawn(|| player.act());
            }
        });
    }
    let drained = drain(&mut players, options.patience);
    let clients: Vec<Vec<Played>> = players.into_iter().map(|player| player.played).collect();
    let calls = clients.iter().flatten().flat_map(|played| &played.calls);
    let mut ids: Vec<i64> =
        calls.filter_map(|call| if let Told::Pushed(id) = call.told { Some(id) } else { None }).collect();
    ids.sort_unstable();
    let marks = world.marks.into_inner().expect("no client panics with the lock");
    let crash = world.crash.into_inner();
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
        base,
        worker: options.worker,
        crash,
    }
}

/// Ends the tasks that the clients hold, and then all others.
fn drain(players: &mut [Player<'_>], patience: Duration) -> bool {
    let started = Instant::now();
    let mut pause = 1;
    while started.elapsed() < patience && players[0].played.len() < 200 {
        for player in players.iter_mut() {
            player.resume_undone();
            while !player.leases.is_empty() {
                player.transaction(Level::ReadCommitted, false, &mut |player| player.end_of_lease(true));
            }
        }
        let player = &mut players[0];
        if !player.is_left() {
            return true;
        }
        let mut claim = Some(Asked::Claim { short: false });
        player.transaction(Level::ReadCommitted, false, &mut |_| claim.take());
        if player.leases.is_empty() {
            if player.native && pause >= 100 {
                // Only a claim in SQL sweeps.
                player.native = false;
                player.choose_path();
            }
            std::thread::sleep(Duration::from_millis(pause));
            pause = (pause * 2).min(100);
        }
    }
    false
}
