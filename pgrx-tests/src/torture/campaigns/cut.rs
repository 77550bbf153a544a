//! R7: between the clients and the server is something that cuts connections, mostly when the server has
//! answered and the client has not read it yet. So many a COMMIT has an unknown outcome.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::relay;
use crate::torture::campaign::Campaign;
use crate::torture::random::Random;
use crate::torture::scene::Scene;

const PORT: u16 = 6543;
/// One in so many answers is lost.
const LOST: u64 = 60;

static CUTS: AtomicU64 = AtomicU64::new(0);

pub const CAMPAIGN: Campaign = Campaign { name: "cut", covers: "R7", before, after, ..Campaign::PLAIN };

fn before(scene: &mut Scene) {
    if !scene.cluster.folder().join(format!(".s.PGSQL.{PORT}")).exists() {
        let seed = scene.seed;
        relay::open(&scene.cluster, PORT, move |number| {
            let mut random = Random::new(seed, 2_000_000 + number);
            [Box::new(|| true), Box::new(move || cut(&mut random))]
        });
    }
    let mut config = scene.cluster.config("postgres");
    config.port(PORT);
    scene.target.redirect(config);
}

fn after(scene: &mut Scene) {
    scene.target.redirect(scene.cluster.config("postgres"));
    scene.faults.insert("connections cut".to_owned(), CUTS.load(Ordering::Relaxed));
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
