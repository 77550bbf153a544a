//! A task that looks ready and is locked by another transaction causes no busy loop.

use super::*;

/// How often a worker may check in that time.
const WATCHED: Duration = Duration::from_secs(4);
const ROUNDS: u32 = 60;
/// A task that was locked for long is checked again after five seconds at most.
const UNLOCKED: Duration = Duration::from_secs(9);

/// The documented loop: claims a task, and waits if there is none. Returns the number of rounds until it had a task,
/// or until the time was over.
fn claim_and_wait(client: &mut Client, queue: &str, time: Duration) -> (u32, bool) {
    let (claim, wait) =
        (format!("SELECT queue.claim(queue => '{queue}')"), format!("CALL queue.wait('{queue}', '500 ms')"));
    let (started, mut rounds) = (Instant::now(), 0);
    while stalls::since(started) < time {
        if !client.query(&claim, &[]).expect("claim").is_empty() {
            return (rounds, true);
        }
        client.query_one(&wait, &[]).expect("wait");
        rounds += 1;
    }
    (rounds, false)
}

/// A locked task.
struct Locked {
    queue: &'static str,
    /// How the task is created.
    prepare: &'static str,
    /// The transaction that stays open.
    lock: &'static str,
    /// What happens after that.
    then: &'static str,
    /// How the transaction ends. Afterwards the task can be claimed.
    unlock: &'static str,
}

const PLAIN: Locked = Locked {
    queue: "plain",
    prepare: "SELECT queue.push('plain')",
    lock: "SELECT queue.claim(queue => 'plain')",
    then: "",
    unlock: "ROLLBACK",
};

const LOCKED: &[Locked] = &[
    PLAIN,
    Locked {
        queue: "row",
        prepare: "SELECT queue.push('row')",
        lock: "SELECT FROM queue.tasks WHERE queue = 'row' FOR UPDATE",
        ..PLAIN
    },
    Locked {
        queue: "limited",
        prepare: "SELECT queue.push('limited')",
        lock: "SELECT queue.claim(queue => 'limited')",
        ..PLAIN
    },
    Locked {
        queue: "lease",
        prepare: "SELECT queue.push('lease'); SELECT queue.claim('1 ms', 'lease')",
        lock: "SELECT FROM queue.tasks WHERE queue = 'lease' FOR UPDATE",
        ..PLAIN
    },
    Locked {
        queue: "event",
        prepare: "SELECT queue.push('event', group_key => 'g'), queue.push('event', group_key => 'g');
                  SELECT queue.claim(queue => 'event')",
        lock: "INSERT INTO queue_internal.events (queue, group_key) VALUES ('event', 'g');
               COMMIT; BEGIN; SELECT FROM queue_internal.events WHERE queue = 'event' FOR UPDATE;
               SELECT FROM queue.tasks WHERE queue = 'event' FOR UPDATE",
        unlock: "SELECT queue.complete(id, token) FROM queue.tasks WHERE queue = 'event' AND state = 'running'; COMMIT",
        ..PLAIN
    },
    // One predecessor has ended, and another transaction is ending the other one.
    Locked {
        queue: "dependent",
        prepare: "SELECT queue.create('predecessor');
                  SELECT queue.push('dependent', after => ARRAY[queue.push('predecessor'), queue.push('predecessor')]);
                  COMMIT; SELECT queue.complete(id, token) FROM queue.claim(queue => 'predecessor')",
        lock: "SELECT queue.complete(id, token) FROM queue.claim(queue => 'predecessor')",
        unlock: "COMMIT",
        ..PLAIN
    },
    // The only predecessor was locked when the task was pushed.
    Locked {
        queue: "later",
        prepare: "SELECT queue.create('claimed'); SELECT queue.push('claimed')",
        lock: "SELECT queue.claim(queue => 'claimed')",
        then: "SELECT queue.push('later', after => ARRAY(SELECT id FROM queue.tasks WHERE queue = 'claimed'))",
        unlock: "SELECT queue.complete(id, token) FROM queue.tasks WHERE queue = 'claimed'; COMMIT",
        ..PLAIN
    },
    // The predecessor has ended, and the task that waited for it is locked.
    Locked {
        queue: "waiting",
        prepare: "SELECT queue.create('ended'); SELECT queue.push('waiting', after => ARRAY[queue.push('ended')])",
        lock: "SELECT FROM queue.tasks WHERE queue = 'waiting' FOR UPDATE",
        then: "SELECT queue.complete(id, token) FROM queue.claim(queue => 'ended')",
        ..PLAIN
    },
];

#[test]
fn a_task_locked_by_another_transaction_causes_no_busy_loop() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        for edition in [Edition::FastPath, Edition::Core, Edition::NoPreload, Edition::SqlOnly] {
            scope.spawn(move || meets_locks(edition));
        }
    });
}

fn meets_locks(edition: Edition) {
    let cluster = edition.cluster("waiting-vain", Worker::Off);
    edition.install(&cluster, "postgres");
    let mut client = cluster.connect();
    run(&mut client, "SELECT queue.create('limited', '{\"max_running\": 2}')");
    for Locked { queue, prepare, lock, then, unlock } in LOCKED {
        run(&mut client, &format!("SELECT queue.create('{queue}') WHERE '{queue}' <> 'limited'"));
        run(&mut client, prepare);
        let mut holder = cluster.connect();
        run(&mut holder, &format!("BEGIN; {lock}"));
        run(&mut client, then);
        let (rounds, found) = claim_and_wait(&mut client, queue, WATCHED);
        println!("{}, {queue}: {rounds} rounds in {WATCHED:?}", edition.name());
        assert!(!found && rounds < ROUNDS, "{}, {queue}: {rounds} rounds, {found}", edition.name());
        // A task that is pushed meanwhile is claimed soon, and so is the locked one after its lock is gone.
        let mut producer = cluster.connect();
        let push = format!("SELECT queue.push('{queue}')");
        let pushing = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            run(&mut producer, &push);
        });
        assert!(claim_and_wait(&mut client, queue, WOKEN).1, "{}, {queue}: a new task", edition.name());
        pushing.join().expect("push");
        run(&mut holder, unlock);
        assert!(claim_and_wait(&mut client, queue, UNLOCKED).1, "{}, {queue}: unlocked", edition.name());
    }
}
