//! A worker: claims letters, prints them page by page, and sends each exactly once.
//!
//!     DATABASE_URL=postgresql://localhost/shop cargo run --bin sqlx mailer-1

use std::env;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde_json::Value;
use sqlx::{Connection, PgConnection, query, query_as, query_scalar};
use tokio::signal::unix::{SignalKind, signal};

/// Another worker has the task, or has finished it.
const LOST: [&str; 2] = ["QX001", "QX003"];

static STOPPING: AtomicBool = AtomicBool::new(false);

type Task = (i64, i64, Value);

async fn handle(db: &mut PgConnection, (id, token, letter): &Task) -> Result<(), sqlx::Error> {
    for page in 1..=letter["pages"].as_i64().unwrap_or(1) as i32 {
        tokio::time::sleep(Duration::from_millis(20)).await; // The work, a piece at a time.
        let extend = "SELECT cancel_requested
                      FROM queue.extend($1, $2, progress => jsonb_build_object('page', $3::int))";
        if query_scalar(extend).bind(id).bind(token).bind(page).fetch_one(&mut *db).await? {
            query("SELECT queue.confirm_cancel($1, $2)").bind(id).bind(token).execute(&mut *db).await?;
            return Ok(());
        }
        if STOPPING.load(Relaxed) {
            query("SELECT queue.release($1, $2)").bind(id).bind(token).execute(&mut *db).await?;
            return Ok(());
        }
    }
    // What the work writes commits together with the task, or not at all.
    let mut transaction = db.begin().await?;
    let send = query("INSERT INTO letters_sent (address) VALUES ($1)").bind(letter["to"].as_str());
    send.execute(&mut *transaction).await?;
    query("SELECT queue.complete($1, $2)").bind(id).bind(token).execute(&mut *transaction).await?;
    transaction.commit().await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let name = env::args().nth(1).ok_or("give the worker a name")?;
    let mut asked = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        asked.recv().await;
        STOPPING.store(true, Relaxed);
    });
    let mut db = PgConnection::connect(&env::var("DATABASE_URL")?).await?;
    while !STOPPING.load(Relaxed) {
        let claim = query_as("SELECT id, token, payload FROM queue.claim(worker => $1)").bind(&name);
        let task: Option<Task> = claim.fetch_optional(&mut db).await?;
        let Some(task) = task else {
            query("CALL queue.wait(timeout => '1 second')").execute(&mut db).await?;
            continue;
        };
        if let Err(error) = handle(&mut db, &task).await {
            let fail = query("SELECT queue.fail($1, $2, $3)").bind(task.0).bind(task.1);
            match fail.bind(error.to_string()).execute(&mut db).await {
                Err(sqlx::Error::Database(refused)) if refused.code().is_some_and(|code| LOST.contains(&&*code)) => {
                    eprintln!("task {}: {refused}", task.0);
                }
                reported => drop(reported?),
            }
        }
    }
    Ok(())
}
