//! The extension's SQL, for `cargo pgrx schema`. sql/manifest lists the files, and build.rs joins those of the native
//! edition; the Makefile makes the same install script of them.

// The macro copies the script byte by byte while it is compiled.
#![allow(long_running_const_eval)]

include!(concat!(env!("OUT_DIR"), "/schema.rs"));
