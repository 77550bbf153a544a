//! Checks the promises of a lane (src/lanes/lane.rs) in random histories.
//!
//! A lane is plain memory, so the test needs no server. It uses a model of the table: tasks as other sessions see
//! them, open claims, commits that are visible and not published yet, and a refill with a snapshot. After each step
//! the promises must hold. From time to time a copy of everything is drained: every claimable task must be returned
//! once, in order.
//!
//! LANE_MODEL_SEED=n repeats one history; a failure prints its seed.

#![allow(dead_code)]

#[path = "../../src/lanes/key.rs"]
mod key;
#[path = "../../src/lanes/lane.rs"]
mod lane;
#[path = "../../src/lanes/leases.rs"]
mod leases;
#[path = "../../src/lanes/ordered.rs"]
mod ordered;
#[path = "../../src/lanes/refill_plan.rs"]
mod refill_plan;
#[path = "lane_model/table.rs"]
mod table;
#[path = "lane_model/world.rs"]
mod world;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use key::{Key, LEASES, SCHEDULED};
use lane::{Answer, Lane};
use leases::{Lease, Leases};
use ordered::{Added, Ordered};
use refill_plan::{Findings, Meaning, RefillPlan, Source, read};
use table::{Claim, Random, Refill, Snapshot, State, Task, Tell};
use world::World;

const NEVER: i64 = i64::MAX;

fn run(seed: u64, steps: usize) {
    let mut world = World::new(seed);
    for number in 0..steps {
        let mut what = "";
        let result = catch_unwind(AssertUnwindSafe(|| {
            what = world.step();
            world.check();
            if number % 16 == 0 || number + 1 == steps {
                world.copy().drain();
            }
        }));
        if result.is_err() {
            panic!("LANE_MODEL_SEED={seed}: step {number}, {what}");
        }
    }
}

/// The total time for random histories, and their minimum number on slow machines.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(20);
const LEAST: u64 = 10;

#[test]
fn no_history_hides_a_task() {
    if let Ok(seed) = std::env::var("LANE_MODEL_SEED") {
        return run(seed.parse().expect("a number"), 600);
    }
    let base = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs() << 20;
    println!("histories from LANE_MODEL_SEED={base} on");
    let started = Instant::now();
    let mut count = 0;
    let limit = if queue_ext_tests::brief() { LIMIT / 4 } else { LIMIT };
    while count < LEAST || started.elapsed() < limit {
        run(base + count, 600);
        count += 1;
    }
    println!("{count} histories of 600 steps");
}

#[test]
fn an_ordered_set_is_the_smallest_items_in_order() {
    let mut random = Random(11);
    for _ in 0..200 {
        // SAFETY: numbers and an array of numbers.
        let mut set: Ordered<i32, 16> = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut model = BTreeSet::new();
        set.clear();
        for _ in 0..300 {
            let item = random.below(40) as i32;
            match random.below(8) {
                0..=3 => {
                    let before = !model.insert(item);
                    let left_out = if model.len() > 16 { model.pop_last() } else { None };
                    let expected = match left_out {
                        _ if before => Added::Before,
                        Some(item) => Added::Without(item),
                        None => Added::Yes,
                    };
                    assert_eq!(set.add(item), expected);
                }
                4..=5 => assert_eq!(set.take_first(), model.pop_first()),
                6 => assert_eq!(set.remove(&item), model.remove(&item)),
                _ if random.chance(10) => {
                    set.cut_from(&item);
                    model.retain(|other| *other < item);
                }
                _ => {}
            }
            assert!(set.as_slice().iter().eq(&model), "{:?} is not {model:?}", set.as_slice());
        }
    }
}

#[test]
fn no_lease_is_lost_however_many_there_are() {
    let mut random = Random(12);
    for _ in 0..200 {
        // SAFETY: numbers and arrays of numbers.
        let mut leases: Leases<64> = unsafe { MaybeUninit::zeroed().assume_init() };
        leases.clear();
        let (mut model, mut now, mut unknown): (HashMap<i64, i64>, _, _) = (HashMap::new(), 0, NEVER);
        for _ in 0..400 {
            let id = 1 + random.time(200);
            match random.below(6) {
                0..=2 => {
                    let until = now + random.time(100);
                    leases.add(Lease { id, until });
                    model.insert(id, until);
                }
                3 => {
                    if let Some(until) = model.remove(&id) {
                        leases.remove(Lease { id, until });
                    }
                }
                4 => now += random.time(30),
                _ => {
                    let mut ids = [0; 5];
                    let count = leases.take_expired(now, &mut ids);
                    for id in &ids[..count] {
                        assert!(model.remove(id).is_none_or(|until| until <= now), "before its end");
                    }
                }
            }
            unknown = unknown.min(leases.unknown());
            assert_eq!(leases.unknown(), unknown, "what is in no place is not forgotten");
            for (id, until) in &model {
                let lease = Lease { id: *id, until: *until };
                assert!(leases.knows(lease) && leases.next() <= *until, "{lease:?}");
            }
        }
    }
}

/// A lane is locked while it takes in the result of a refill, so the result must be small.
#[test]
fn a_refill_returns_the_leases_that_end_first_up_to_the_capacity() {
    let mut world = World::new(14);
    let mut random = Random(14);
    let now = world.now;
    for id in 1..=100_000 {
        let key = Key { priority: 0, run_at: 0, id };
        let until = now + 1 + random.time(1_000_000);
        world.tasks.insert(id, Task { key, state: State::Running(until), claim: None, untold: 0 });
    }
    world.next_id = 100_001;
    let plan = world.lane.reread(now, 1).expect("nobody reads");
    let found = world.read(plan);
    assert_eq!(found.leases.len(), LEASES);
    let last = found.leases.iter().map(|lease| lease.until).max().expect("some");
    assert!(found.leases_before >= last, "those that were left out end later");
    world.lane.refilled(plan, &found, now);
    world.check();
    // A lease that ends before all others is kept although the lane is full.
    world.lane.leased(Key { priority: 0, run_at: 0, id: 100_001 }, now + 1, now);
    let mut ids = [0; 1];
    assert_eq!((world.lane.leases.take_expired(now + 1, &mut ids), ids), (1, [100_001]));
}

#[test]
fn many_tasks_due_at_one_instant_keep_their_order() {
    for (count, priorities) in [(SCHEDULED, 1), (SCHEDULED + 1, 2), (1025, 1), (3000, 3), (5000, 1)] {
        let mut world = World::new(13);
        // It is complete and empty.
        world.lane.add(Key { priority: 0, run_at: 0, id: 0 }, 0);
        if let Answer::Refill(plan) = world.lane.take(1, world.now, 1, |_| {}) {
            let found = world.read(plan);
            world.lane.refilled(plan, &found, world.now);
        }
        let run_at = world.now + 1000;
        for id in 1..=count as i64 {
            let key = Key { priority: (id % priorities) as i32, run_at, id };
            world.tasks.insert(id, Task { key, state: State::Queued, claim: None, untold: 0 });
            world.lane.add(key, world.now);
            world.check();
        }
        assert!(world.lane.next_time() <= run_at, "it looks in time");
        world.now = run_at;
        world.copy().drain();
        // The same if the worker reads first.
        let mut other = world.copy();
        if let Some(plan) = other.lane.reread(other.now, 99) {
            let found = other.read(plan);
            other.lane.refilled(plan, &found, other.now);
        }
        other.check();
        other.drain();
    }
}

/// After a slow reading the next one waits for a share of the time. But what the first one has told of comes due before.
#[test]
fn a_slow_reading_does_not_delay_the_tasks_that_it_has_told_of() {
    let mut world = World::new(15);
    let run_at = world.now + 400_000;
    for id in 1..=SCHEDULED as i64 + 1 {
        let key = Key { priority: 0, run_at, id };
        world.tasks.insert(id, Task { key, state: State::Queued, claim: None, untold: 0 });
    }
    let plan = world.lane.reread(world.now - 1_000_000, 1).expect("nobody reads");
    let found = world.read(plan);
    world.lane.refilled(plan, &found, world.now);
    assert_eq!(world.lane.next_time(), run_at);
    assert!(world.lane.scheduled_unknown(run_at));
}
