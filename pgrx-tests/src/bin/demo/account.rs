//! The account: every order that was pushed must be where it belongs, once.

use std::time::Duration;

use postgres::Client;

/// Shows the account and says whether it balances.
pub fn show(client: &mut Client, pushed: i64, killed: usize, took: Duration) -> bool {
    let row = client.query_one(include_str!("account.sql"), &[]).expect("count");
    let get = |column: &str| row.get::<_, i64>(column);
    println!("\n== {:.1} s, {killed} workers killed, {} leases ran out", took.as_secs_f64(), get("expired"));
    let broken = pushed / 100;
    // What is counted, what it must be.
    let entries = [
        ("orders pushed", get("all_tasks"), pushed),
        ("  left in the queue", get("live"), 0),
        ("  completed", get("completed"), pushed - broken),
        ("  dead after their attempts", get("dead"), broken),
        ("completed and dead at once", get("both"), 0),
        ("orders shipped", get("shipped"), pushed - broken),
        ("orders shipped twice", get("shipped_twice"), 0),
        ("orders completed but not shipped", get("unshipped"), 0),
    ];
    let mut balanced = true;
    for (what, found, expected) in entries {
        let right = found == expected;
        balanced &= right;
        println!(
            "  {what:<34}{found:>7}   {}",
            if right { "ok".to_owned() } else { format!("WRONG: should be {expected}") }
        );
    }
    println!(
        "\n{}",
        if balanced { "Every order is accounted for." } else { "THE ACCOUNT DOES NOT BALANCE." }
    );
    balanced
}
