//! Kills the commands of a worker that was killed itself.
//!
//! A small process waits at the other end of a socket. The worker writes the process id of each command there after its
//! start, and the negative number after its end. If the worker dies, the socket is closed, and what still runs is killed,
//! with everything that it started. The kernel's own way, PR_SET_PDEATHSIG, does not reach grandchildren. It is used as
//! well, for the moment between start and report, and in case the guard was killed too.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tokio::time::sleep;

#[cfg(target_os = "linux")]
const NO_SIGNAL: i32 = libc::MSG_NOSIGNAL;
#[cfg(not(target_os = "linux"))]
const NO_SIGNAL: i32 = 0;

/// How often, and how long, the end of killed processes is waited for. The kernel cannot end one that hangs in it.
const REAPING: Duration = Duration::from_millis(100);
const LONGEST_REAPING: Duration = Duration::from_secs(60);

/// The worker's end of the socket.
pub struct Guard {
    socket: UnixStream,
    parent: i32,
}

impl Guard {
    /// Starts the guard. The process must not have other threads yet.
    pub fn start() -> io::Result<Self> {
        let (socket, other) = UnixStream::pair()?;
        // SAFETY: there is one thread, so the child may do everything that this process may do.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(socket);
                watch(other);
                // SAFETY: touches no memory. Nothing that belongs to the worker is flushed or removed.
                unsafe { libc::_exit(0) }
            }
            // SAFETY: touches no memory.
            _ => Ok(Self { socket, parent: unsafe { libc::getpid() } }),
        }
    }

    /// What a command runs between fork and exec.
    pub fn prepare(&self) -> impl FnMut() -> io::Result<()> + Send + Sync + 'static {
        let parent = self.parent;
        move || {
            // SAFETY: these functions may be called between fork and exec, and touch no memory of others.
            unsafe {
                #[cfg(target_os = "linux")]
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // The parent can have died before the request.
                if libc::getppid() != parent {
                    libc::_exit(1);
                }
            }
            Ok(())
        }
    }

    /// Reports a command that was started.
    pub fn begun(&self, id: i32) -> Group<'_> {
        send(self.socket.as_raw_fd(), id);
        Group { guard: self, id }
    }
}

/// The process group of a command. At the end of this value, also by a panic, what is left in the group is killed, and the
/// guard forgets the command.
pub struct Group<'a> {
    guard: &'a Guard,
    pub id: i32,
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        signal(self.id, libc::SIGKILL);
        send(self.guard.socket.as_raw_fd(), -self.id);
    }
}

/// Waits for what has been killed in a group after its command has ended. In a container whose first process is the worker, the
/// worker is the parent of these orphans, and they would stay as zombies.
pub async fn reap(group: i32) {
    for _ in 0..LONGEST_REAPING.as_millis() / REAPING.as_millis() {
        // SAFETY: touches no memory. While the group has a process, no other process gets its number.
        match unsafe { libc::waitpid(-group, std::ptr::null_mut(), libc::WNOHANG) } {
            // One that still dies.
            0 => sleep(REAPING).await,
            -1 => return,
            _ => {}
        }
    }
}

/// Sends a signal to all processes of a group.
pub fn signal(group: i32, signal: i32) {
    // SAFETY: touches no memory.
    unsafe { libc::kill(-group, signal) };
}

fn send(socket: RawFd, number: i32) {
    let bytes = number.to_ne_bytes();
    // SAFETY: the bytes live until the call returns. A guard that is gone is no reason to stop working.
    unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), NO_SIGNAL) };
}

fn watch(mut socket: UnixStream) {
    // SAFETY: these touch no memory of others. Signals for the group of the worker do not reach a session of its own, and
    // the worker's terminal and pipes are not kept open.
    unsafe {
        libc::setsid();
        #[cfg(target_os = "linux")]
        libc::prctl(libc::PR_SET_NAME, c"queue guard".as_ptr());
        for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::signal(number, libc::SIG_IGN);
        }
        let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for number in 0..3 {
            libc::dup2(nowhere, number);
        }
    }
    let mut running = BTreeSet::new();
    let mut bytes = [0; 4];
    while socket.read_exact(&mut bytes).is_ok() {
        match i32::from_ne_bytes(bytes) {
            pid if pid > 0 => drop(running.insert(pid)),
            pid => drop(running.remove(&-pid)),
        }
    }
    running.into_iter().for_each(|pid| signal(pid, libc::SIGKILL));
}
