//! Many sessions at once that change their minds: every task is completed once, and none is left.

use std::collections::HashMap;

use super::*;

const SESSIONS: u64 = 12;
/// For how long each session pushes, and how many tasks at least.
const PUSHED_FOR: Duration = Duration::from_secs(6);
const PUSHED: usize = 200;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// The certain results of one session.
#[derive(Default)]
struct Account {
    pushed: Vec<i64>,
    completed: Vec<i64>,
}

/// Runs a statement that may be cancelled; returns nothing if it was.
fn attempt<R>(result: Result<R, postgres::Error>) -> Option<R> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let code = error.code().unwrap_or_else(|| panic!("{error:?}")).code().to_owned();
            // Cancelled; a lease that was lost meanwhile.
            assert!(["57014", "25P02", "QX001", "QX003"].contains(&code.as_str()), "{error:?}");
            None
        }
    }
}

fn work(mut client: Client, seed: u64) -> Account {
    let mut dice = Dice(seed * 0x9E37_79B9 + 1);
    let mut account = Account::default();
    let began = Instant::now();
    let left = "SELECT EXISTS (SELECT FROM queue.tasks)";
    loop {
        // Some statements end too early, at whatever point they are.
        let hasty = dice.roll(6) == 0;
        // The end of the last transaction may have been cut short, too.
        let setting = format!("ROLLBACK; SET statement_timeout = {}", u8::from(hasty));
        while attempt(client.batch_execute(&setting)).is_none() {}
        let pushing = began.elapsed() < PUSHED_FOR || account.pushed.len() < PUSHED;
        if pushing && dice.roll(3) == 0 {
            let limit = if dice.roll(50) == 0 { 3000 } else { 10 };
            let count = 1 + dice.roll(limit) as i32;
            let priority = dice.roll(3) as i32;
            let delay = if dice.roll(4) == 0 { dice.roll(50) } else { 0 };
            let Some(mut transaction) = attempt(client.transaction()) else { continue };
            let query = format!(
                "SELECT queue.push_many('default', array_fill('{{}}'::jsonb, ARRAY[$1::int]), priority => $2, delay => '{delay} ms')"
            );
            let ids = attempt(transaction.query(&query, &[&count, &priority]));
            match ids {
                Some(ids) if dice.roll(5) > 0 => {
                    if attempt(transaction.commit()).is_some() {
                        account.pushed.extend(ids.iter().map(|row| row.get::<_, i64>(0)));
                    }
                }
                _ => _ = attempt(transaction.rollback()),
            }
            continue;
        }
        let limit = if dice.roll(20) == 0 { 500 } else { 12 };
        let most = 1 + dice.roll(limit) as i32;
        let Some(mut transaction) = attempt(client.transaction()) else { continue };
        let query = "SELECT id, token FROM queue.claim('2 seconds', 'default', $1)";
        if dice.roll(4) == 0 {
            let mut savepoint = match attempt(transaction.savepoint("s")) {
                Some(savepoint) => savepoint,
                None => continue,
            };
            drop(attempt(savepoint.query(query, &[&most])));
            let _ = attempt(savepoint.rollback());
        }
        let Some(tasks) = attempt(transaction.query(query, &[&most])) else { continue };
        if dice.roll(6) == 0 {
            let _ = attempt(transaction.rollback());
            continue;
        }
        if attempt(transaction.commit()).is_none() {
            continue;
        }
        if tasks.is_empty() {
            let Some(row) = attempt(client.query_one(left, &[])) else { continue };
            if !row.get::<_, bool>(0) && !pushing {
                return account;
            }
        }
        let leases: Vec<(i64, i64)> = tasks.iter().map(|row| (row.get(0), row.get(1))).collect();
        end(&mut client, &mut dice, &leases, &mut account);
    }
}

/// Ends claimed tasks in every way.
fn end(client: &mut Client, dice: &mut Dice, leases: &[(i64, i64)], account: &mut Account) {
    let (ids, tokens): (Vec<i64>, Vec<i64>) = leases.iter().copied().unzip();
    match dice.roll(8) {
        // Does not finish: the leases expire.
        0 if ids.len() < 5 => {}
        1 => {
            let query =
                "SELECT queue.release(id, token) FROM unnest($1::bigint[], $2::bigint[]) AS t (id, token)";
            drop(attempt(client.query(query, &[&ids, &tokens])));
        }
        2..4 => {
            for (id, token) in leases {
                if attempt(client.query("SELECT queue.complete($1, $2)", &[id, token])).is_some() {
                    account.completed.push(*id);
                }
            }
        }
        _ => {
            let query = "SELECT queue.complete_many($1, $2)";
            let accepted = attempt(client.query(query, &[&ids, &tokens])).unwrap_or_default();
            account.completed.extend(accepted.iter().map(|row| row.get::<_, i64>(0)));
        }
    }
}

#[test]
fn every_task_is_completed_once_despite_rollbacks() {
    let cluster = cluster("lanes-accounting");
    run(&mut cluster.connect(), "SELECT queue.configure('default', '{\"max_attempts\": 10000}')");
    let sessions: Vec<_> = (0..SESSIONS)
        .map(|seed| {
            let client = cluster.connect();
            std::thread::spawn(move || work(client, seed))
        })
        .collect();
    let accounts: Vec<Account> =
        sessions.into_iter().map(|session| session.join().expect("a session")).collect();
    let mut completions: HashMap<i64, i64> = HashMap::new();
    accounts
        .iter()
        .flat_map(|account| &account.completed)
        .for_each(|id| *completions.entry(*id).or_default() += 1);
    assert!(completions.values().all(|times| *times == 1), "no completion is accepted twice");
    let pushed: Vec<i64> = accounts.iter().flat_map(|account| account.pushed.iter().copied()).collect();
    let mut client = cluster.connect();
    assert_eq!(count(&mut client, "SELECT count(*) FROM queue.tasks"), 0);
    let kept: Vec<i64> = client
        .query("SELECT id FROM queue.history", &[])
        .expect("history")
        .iter()
        .map(|row| row.get(0))
        .collect();
    let distinct: std::collections::HashSet<i64> = kept.iter().copied().collect();
    assert_eq!(distinct.len(), kept.len(), "once in the history");
    assert!(pushed.iter().all(|id| distinct.contains(id)), "what was pushed was completed");
    // A cancelled statement may have committed after all.
    assert!(completions.keys().all(|id| distinct.contains(id)));
    println!("{} tasks; {}", kept.len(), stats(&mut client));
}
