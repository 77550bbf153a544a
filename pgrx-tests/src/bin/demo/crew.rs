//! The worker processes, and the accidents that befall them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ACCIDENT_EVERY: Duration = Duration::from_millis(700);

/// Several worker processes.
pub struct Crew {
    folder: PathBuf,
    workers: Vec<(String, Child)>,
    hired: usize,
    killed: usize,
    last_accident: Instant,
}

impl Crew {
    /// Starts workers for the server in `folder`.
    pub fn hire(folder: &Path, number: usize) -> Self {
        let mut crew = Self {
            folder: folder.to_owned(),
            workers: Vec::new(),
            hired: 0,
            killed: 0,
            last_accident: Instant::now(),
        };
        for _ in 0..number {
            crew.hire_one();
        }
        crew
    }

    /// Kills the longest-serving worker, with kill -9, and replaces it.
    pub fn lose_one_now_and_then(&mut self) {
        if self.last_accident.elapsed() < ACCIDENT_EVERY {
            return;
        }
        self.last_accident = Instant::now();
        let (_, mut worker) = self.workers.remove(0);
        worker.kill().expect("kill a worker");
        worker.wait().expect("it is gone");
        self.killed += 1;
        self.hire_one();
    }

    /// How many were killed so far.
    pub fn killed(&self) -> usize {
        self.killed
    }

    /// Ends the day; returns how many were killed during it. With nothing left to claim, the last
    /// ones are idle.
    pub fn go_home(mut self) -> usize {
        for (_, worker) in &mut self.workers {
            worker.kill().expect("end a worker");
            worker.wait().expect("it is gone");
        }
        self.killed
    }

    fn hire_one(&mut self) {
        self.hired += 1;
        let name = format!("worker-{}", self.hired);
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program)
            .arg("worker")
            .arg(&self.folder)
            .arg(&name)
            .stdin(Stdio::null())
            .spawn()
            .expect("start a worker");
        self.workers.push((name, child));
    }
}
