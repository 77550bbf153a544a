//! The final check: every order that was pushed must be in the right place, once.

use std::time::Duration;

use postgres::Client;

/// Prints the check and returns whether it passed.
pub fn show(client: &mut Client, pushed: i64, killed: usize, took: Duration) -> bool {
    let row = client.query_one(include_str!("account.sql"), &[]).expect("count");
    let get = |column: &str| row.get::<_, i64>(column);
    println!("\n== {:.1} s, {killed} workers killed, {} leases expired", took.as_secs_f64(), get("expired"));
    let broken = pushed / 100;
    // What is counted, and the expected number.
    let entries = [
        ("orders pushed", get("all_tasks"), pushed),
        ("  left in the queue", get("live"), 0),
        ("  completed", get("completed"), pushed - broken),
        ("  dead after their attempts", get("dead"), broken),
        ("both completed and dead", get("both"), 0),
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
            if right { "ok".to_owned() } else { format!("WRONG: expected {expected}") }
        );
    }
    println!(
        "\n{}",
        if balanced { "Every order was shipped once or is a dead letter." } else { "THE CHECK FAILED." }
    );
    balanced
}
