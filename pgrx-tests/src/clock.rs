//! Gives one server a clock that can be set: `clock.c` replaces the system's functions.
//!
//! libfaketime cannot be used, because it allocates memory when it reads its file. PostgreSQL reads the time in its
//! handler of SIGALRM, and a handler that interrupts malloc crashes the session. On 15, whose postmaster starts
//! processes in signal handlers, such processes used the system's clock.
//!
//! Functions that measure time instead of reading it, such as sleeping, are not affected, as when a real clock is
//! set.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// See the head of this file.
#[derive(Clone)]
pub struct FakeClock {
    file: PathBuf,
    library: PathBuf,
}

/// How fast a clock goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Speed {
    /// Half as fast as the system's.
    Half,
    /// As fast.
    Real,
    /// Twice as fast.
    Double,
}

impl FakeClock {
    /// A clock that is right so far, kept in this folder.
    pub fn new(folder: &Path) -> Self {
        let (file, library) = (folder.join("clock"), folder.join("clock.so"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/clock.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"]).arg(&library).arg(source);
        let built = compiler.status().expect("start the C compiler, which Rust needs as well");
        assert!(built.success(), "{compiler:?}");
        File::create(&file).expect("create the clock's file");
        let clock = Self { file, library };
        clock.set(0, Speed::Real);
        clock
    }

    /// From now on it is so many seconds ahead of the system's, and goes this fast.
    pub fn set(&self, ahead: i64, speed: Speed) {
        let real = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as i64;
        // The clock shows (real << step >> 1) + offset. One number holds both, so that it changes atomically.
        let step = speed as i64;
        let offset = real + ahead * 1_000_000 - ((real << step) >> 1);
        let file = File::options().write(true).open(&self.file).expect("open the clock's file");
        file.write_all_at(&(offset << 2 | step).to_ne_bytes(), 0).expect("set the clock");
    }

    /// A program that is started so goes by this clock, and so do those that it starts.
    pub fn wind(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("FAKE_CLOCK", &self.file);
    }
}
