//! A clock that can be set, for one server: libfaketime between it and the system.
//!
//! What measures time instead of asking for it, as sleeping does, is not touched: it does not change when
//! somebody sets a clock.
//!
//! From PostgreSQL 16 on. The postmaster of 15 starts workers in a signal handler while it waits, and what is
//! started inside a call that libfaketime watches goes by the system's clock for ever.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::{home, major_version};

/// See the head of this file.
#[derive(Clone)]
pub struct FakeClock {
    file: PathBuf,
    library: PathBuf,
}

impl FakeClock {
    /// A clock that is right so far, kept in this folder; nothing before PostgreSQL 16, and where libfaketime
    /// was not fetched.
    pub fn new(folder: &Path) -> Option<Self> {
        if major_version() < 16 {
            return None;
        }
        let folders = std::fs::read_dir(home().join("debian/usr/lib")).ok()?;
        let mut places = folders.map(|entry| Some(entry.ok()?.path().join("faketime/libfaketime.so.1")));
        let library = places.find_map(|place| place.filter(|place| place.exists()))?;
        let clock = Self { file: folder.join("clock"), library };
        clock.set(0, 1.0);
        Some(clock)
    }

    /// From now on it is so many seconds ahead of the system's, and goes so many times as fast.
    pub fn set(&self, ahead: i64, speed: f64) {
        let fresh = self.file.with_extension("new");
        let text = if speed == 1.0 { format!("{ahead:+}") } else { format!("{ahead:+} x{speed}") };
        std::fs::write(&fresh, text + "\n").expect("write the clock's file");
        std::fs::rename(&fresh, &self.file).expect("set the clock");
    }

    /// A program that is started so goes by this clock, and so do those that it starts.
    pub fn wind(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("FAKETIME_TIMESTAMP_FILE", &self.file);
        for name in ["FAKETIME_NO_CACHE", "FAKETIME_DONT_FAKE_MONOTONIC", "NO_FAKE_STAT"] {
            command.env(name, "1");
        }
    }
}
