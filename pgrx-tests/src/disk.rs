//! A disk that can be full: a small tmpfs, which only root can mount.
//!
//! It is mounted in a mount namespace of the thread that creates it and of the processes that this thread starts. The
//! disk is gone when these have ended, however they end.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::cluster::give_away;

/// See the head of this file.
pub struct Disk {
    folder: PathBuf,
}

impl Disk {
    /// A new disk of so many megabytes, owned by the server's user. Fails where mounting is not permitted.
    pub fn new(folder: &Path, megabytes: u64) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        // SAFETY: affects this thread alone; the strings end with a zero.
        unsafe {
            check(libc::unshare(libc::CLONE_NEWNS))?;
            let nothing = std::ptr::null();
            // Later mounts are visible only in this namespace.
            let private = libc::MS_REC | libc::MS_PRIVATE;
            check(libc::mount(nothing, c"/".as_ptr(), nothing, private, nothing.cast()))?;
            let options = CString::new(format!("size={megabytes}m,mode=700"))?;
            let (kind, place) = (c"tmpfs".as_ptr(), CString::new(folder.as_os_str().as_bytes())?);
            check(libc::mount(kind, place.as_ptr(), kind, 0, options.as_ptr().cast()))?;
        }
        give_away(folder);
        Ok(Self { folder: folder.to_owned() })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Fills the disk.
    pub fn fill(&self) {
        let file = std::fs::File::create(self.filler()).expect("create the filler");
        let mut size = 0;
        // First large pieces, then smaller and smaller ones.
        let mut step: i64 = 1 << 30;
        while step >= 4096 {
            // SAFETY: the file is open.
            if unsafe { libc::posix_fallocate(file.as_raw_fd(), size, step) } == 0 {
                size += step;
            } else {
                step /= 2;
            }
        }
    }

    /// Frees the disk.
    pub fn free(&self) {
        std::fs::remove_file(self.filler()).expect("remove the filler");
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let place = CString::new(self.folder.as_os_str().as_bytes()).expect("a plain path");
        // SAFETY: the string ends with a zero.
        unsafe { libc::umount2(place.as_ptr(), libc::MNT_DETACH) };
        let _ = std::fs::remove_dir(&self.folder);
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
