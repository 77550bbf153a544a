//! R7: between the clients and the server is something that cuts connections, mostly when the server has
//! answered and the client has not read it yet. So many a COMMIT has an unknown outcome.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::torture::campaign::Campaign;
use crate::torture::random::Random;
use crate::torture::scene::Scene;

const PORT: u16 = 6543;
/// One in so many answers is lost.
const LOST: u64 = 60;

static CUTS: AtomicU64 = AtomicU64::new(0);

pub const CAMPAIGN: Campaign = Campaign { name: "cut", covers: "R7", before, after, ..Campaign::PLAIN };

fn before(scene: &mut Scene) {
    let folder = scene.cluster.folder().to_owned();
    let path = folder.join(format!(".s.PGSQL.{PORT}"));
    if !path.exists() {
        let listener = UnixListener::bind(&path).expect("listen");
        let seed = scene.seed;
        std::thread::spawn(move || serve(&listener, &folder.join(".s.PGSQL.5432"), seed));
    }
    let mut config = scene.cluster.config("postgres");
    config.port(PORT);
    scene.target.redirect(config);
}

fn after(scene: &mut Scene) {
    scene.target.redirect(scene.cluster.config("postgres"));
    scene.faults.insert("connections cut".to_owned(), CUTS.load(Ordering::Relaxed));
}

/// Runs as long as the program.
fn serve(listener: &UnixListener, server: &PathBuf, seed: u64) {
    for (number, client) in listener.incoming().enumerate() {
        let (Ok(client), Ok(server)) = (client, UnixStream::connect(server)) else { return };
        let (from, to) = (client.try_clone().expect("a handle"), server.try_clone().expect("a handle"));
        std::thread::spawn(move || pass(from, to, || true));
        let mut random = Random::new(seed, 2_000_000 + number as u64);
        std::thread::spawn(move || pass(server, client, move || cut(&mut random)));
    }
}

/// Whether an answer is passed on.
fn cut(random: &mut Random) -> bool {
    if random.roll(LOST) > 0 {
        return true;
    }
    CUTS.fetch_add(1, Ordering::Relaxed);
    // Half of them after a while in which nothing comes.
    std::thread::sleep(Duration::from_millis(random.roll(2) * 100));
    false
}

fn pass(mut from: UnixStream, mut to: UnixStream, mut passes: impl FnMut() -> bool) {
    let mut buffer = [0; 16384];
    while let Ok(length) = from.read(&mut buffer) {
        if length == 0 || !passes() || to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    drop(from.shutdown(Shutdown::Both));
    drop(to.shutdown(Shutdown::Both));
}
