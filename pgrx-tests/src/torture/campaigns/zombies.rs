//! R4: client processes are killed at any time, or suspended until their leases have expired and then continued.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cluster::signal;
use crate::torture::campaign::Campaign;
use crate::torture::load::{LONGEST_LEASE, Load};
use crate::torture::scene::Scene;

const PROCESSES: u64 = 24;

pub const CAMPAIGN: Campaign = Campaign {
    name: "zombies",
    covers: "R4",
    load: Load { clients: 2, ..Load::MIXED },
    pause: (1, 20),
    fault,
    before,
    after,
    ..Campaign::PLAIN
};

/// A client in a process of its own.
pub struct Process {
    child: Child,
    /// Until when it is stopped.
    stopped: Option<Instant>,
}

fn before(scene: &mut Scene) {
    (0..PROCESSES).for_each(|_| start(scene));
}

fn start(scene: &mut Scene) {
    scene.processes_started += 1;
    let number = scene.processes_started;
    let child = Command::new(&scene.program)
        .args(["client", CAMPAIGN.name])
        .arg(scene.cluster.folder())
        .arg(&scene.journals)
        .args([format!("p{number}"), scene.seed.to_string(), (1_000_000 + number).to_string()])
        .stdin(Stdio::null())
        .spawn()
        .expect("start a client");
    scene.processes.push(Process { child, stopped: None });
}

fn fault(scene: &mut Scene) {
    for process in &mut scene.processes {
        if process.stopped.is_some_and(|until| until < Instant::now()) {
            process.stopped = None;
            signal(process.child.id() as i32, libc::SIGCONT);
        }
    }
    let place = scene.random.roll(scene.processes.len() as u64) as usize;
    if scene.random.chance(80) {
        scene.struck("kill -9 of a client");
        let mut process = scene.processes.swap_remove(place);
        process.child.kill().expect("kill a client");
        process.child.wait().expect("it is gone");
        start(scene);
    } else if scene.processes[place].stopped.is_none() {
        scene.struck("SIGSTOP of a client beyond its lease");
        let lease = Duration::from_millis(LONGEST_LEASE + scene.random.roll(500));
        scene.processes[place].stopped = Some(Instant::now() + lease);
        signal(scene.processes[place].child.id() as i32, libc::SIGSTOP);
    }
}

fn after(scene: &mut Scene) {
    for mut process in scene.processes.drain(..) {
        process.child.kill().expect("kill a client");
        process.child.wait().expect("it is gone");
    }
}
