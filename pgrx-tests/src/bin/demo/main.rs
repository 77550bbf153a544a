//! The demo: a temporary server, a producer, and worker processes that fail, are killed and replaced, until tens of
//! thousands of orders are done. Then every order is checked.
//!
//!   demo run      start a new server and the demo; the server keeps running
//!   demo stop     stop the server and delete its files
//!   demo worker   (started by `run` several times)

mod account;
mod crew;
mod view;
mod worker;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};
use queue_ext_tests::cluster::home;
use queue_ext_tests::{Cluster, Settings};

const TASKS: i64 = 30_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["run"] => run(),
        ["stop"] => stop(),
        ["worker", folder, name] => worker::work(folder, name),
        _ => panic!("run make demo or make demo-stop"),
    }
}

fn folder() -> PathBuf {
    home().join("run/demo")
}

fn stop() {
    if let Some(mut cluster) = Cluster::existing(&folder()) {
        if cluster.try_connect("postgres").is_some() {
            cluster.stop("fast");
        }
        std::fs::remove_dir_all(folder()).expect("delete the demo's files");
    }
}

fn run() {
    stop();
    println!("== starting a temporary server with queue_ext preloaded");
    let mut cluster = Cluster::create(&folder(), &Settings { preload: true, extra: "fsync = on" });
    cluster.launch();
    // Kept running, so that the user can look at it.
    cluster.keep();
    let mut client = cluster.connect();
    client.batch_execute(include_str!("setup.sql")).expect("set up the shop");

    println!(
        "== {TASKS} orders: some fail once, some always fail, some are delayed. Every 0.7 seconds a worker"
    );
    println!("   is killed while it works (kill -9) and another one starts\n");
    let started = Instant::now();
    let producer = std::thread::spawn({
        let config = cluster.config("postgres");
        move || produce(config.connect(NoTls).expect("connect"))
    });
    let mut crew = crew::Crew::hire(cluster.folder(), 6);
    let mut view = view::View::new();
    loop {
        view.show(&mut client, &crew, started.elapsed());
        if producer.is_finished() && view.is_drained() {
            break;
        }
        crew.lose_one_now_and_then();
        std::thread::sleep(Duration::from_millis(250));
    }
    producer.join().expect("the producer");
    let took = started.elapsed();
    let killed = crew.go_home();

    let balanced = account::show(&mut client, TASKS, killed, took);
    println!("\nThe server is still running. Open psql on it with\n\n    make demo-psql\n\nand try");
    println!("    SELECT * FROM queue.stats;");
    println!("    SELECT * FROM queue.dead_letters LIMIT 1 \\gx");
    println!("    SELECT queue.redrive('orders', 10);\n\nStop it with: make demo-stop");
    if !balanced {
        std::process::exit(1);
    }
}

/// Pushes the orders a few hundred at a time, as a shop would.
fn produce(mut client: Client) {
    let push = client.prepare("SELECT shop.order($1, $2)").expect("prepare");
    for first in (0..TASKS).step_by(500) {
        client.execute(&push, &[&first, &500_i64]).expect("push");
    }
}
