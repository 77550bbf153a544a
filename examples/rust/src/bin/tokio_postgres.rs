//! A worker: claims letters, prints them page by page, and sends each exactly once.
//!
//!     DATABASE_URL=postgresql://localhost/shop cargo run --bin tokio_postgres mailer-1

use std::env;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio_postgres::{Client, NoTls, Row};

/// Another worker has the task, or has finished it.
const LOST: [&str; 2] = ["QX001", "QX003"];

static STOPPING: AtomicBool = AtomicBool::new(false);

async fn handle(db: &mut Client, task: &Row) -> Result<(), Box<dyn Error>> {
    let (id, token, letter): (i64, i64, Value) = (task.get("id"), task.get("token"), task.get("payload"));
    for page in 1..=letter["pages"].as_i64().unwrap_or(1) as i32 {
        tokio::time::sleep(Duration::from_millis(20)).await; // The work, a piece at a time.
        let extend = "SELECT * FROM queue.extend($1, $2, progress => jsonb_build_object('page', $3::int))";
        if db.query_one(extend, &[&id, &token, &page]).await?.get("cancel_requested") {
            db.execute("SELECT queue.confirm_cancel($1, $2)", &[&id, &token]).await?;
            return Ok(());
        }
        if STOPPING.load(Relaxed) {
            db.execute("SELECT queue.release($1, $2)", &[&id, &token]).await?;
            return Ok(());
        }
    }
    // What the work writes commits together with the task, or not at all.
    let transaction = db.transaction().await?;
    transaction.execute("INSERT INTO letters_sent (address) VALUES ($1)", &[&letter["to"].as_str()]).await?;
    transaction.execute("SELECT queue.complete($1, $2)", &[&id, &token]).await?;
    Ok(transaction.commit().await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let name = env::args().nth(1).ok_or("give the worker a name")?;
    let mut asked = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        asked.recv().await;
        STOPPING.store(true, Relaxed);
    });
    let (mut db, connection) = tokio_postgres::connect(&env::var("DATABASE_URL")?, NoTls).await?;
    tokio::spawn(connection);
    while !STOPPING.load(Relaxed) {
        let Some(task) = db.query_opt("SELECT * FROM queue.claim(worker => $1)", &[&name]).await? else {
            db.execute("CALL queue.wait(timeout => '1 second')", &[]).await?;
            continue;
        };
        if let Err(error) = handle(&mut db, &task).await {
            let (id, token): (i64, i64) = (task.get("id"), task.get("token"));
            match db.execute("SELECT queue.fail($1, $2, $3)", &[&id, &token, &error.to_string()]).await {
                Err(refused) if refused.code().is_some_and(|code| LOST.contains(&code.code())) => {
                    eprintln!("task {id}: {refused}");
                }
                reported => drop(reported?),
            }
        }
    }
    Ok(())
}
