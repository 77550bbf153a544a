//! Runs a command for a task, in a process group of its own.

use std::cell::RefCell;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep_until, timeout};

use super::lease::Reason;
use super::outcome::{self, Failed, Outcome};
use super::stop::Phase;
use super::task::Task;
use super::{Context, LARGEST_RESULT, Results, guard};

/// How much of what a command writes to standard error is kept for the error of the task.
const TAIL: usize = 8 * 1024;
/// How long a task waits whose command cannot be started, for example because there are too many processes.
const CANNOT_START: Duration = Duration::from_secs(5);
/// How long the output is read after the command has ended. A process that left the group can keep it open.
const AFTER_THE_END: Duration = Duration::from_secs(1);

pub async fn run(context: &Rc<Context>, task: &Task, command: &[OsString]) -> Outcome {
    let options = &context.options;
    let mut child = match start(context, task, command) {
        Ok(child) => child,
        Err(error) => {
            let message = format!("cannot start {}: {error}", command[0].display());
            if error.raw_os_error() == Some(libc::E2BIG) {
                return Outcome::failed(message + " (the task's headers are too large for an environment)");
            }
            context.log.error(&message, task.fields());
            return Outcome::Released(CANNOT_START);
        }
    };
    let id = child.id().and_then(|id| i32::try_from(id).ok()).unwrap_or(i32::MAX);
    let group = context.guard.begun(id);
    let (payload, stdin) = (task.payload.clone(), child.stdin.take());
    let feeding = spawn_local(async move {
        // A command need not read its input.
        if let Some(mut stdin) = stdin {
            let _ = stdin.write_all(payload.as_bytes()).await;
        }
    });
    let errors = Output::follow(child.stderr.take(), TAIL, Keep::Last, Some(context));
    let output = Output::follow(child.stdout.take(), LARGEST_RESULT, Keep::First, None);

    let (status, stopped) = wait(context, task, &mut child, group.id).await;
    let orphans = guard::reap(group.id);
    drop(group);
    spawn_local(orphans);
    feeding.abort();
    let (errors, output) = (errors.finish().await, output.finish().await);

    match status {
        Ok(status) if status.success() => match outcome::result(&output.bytes, options.results, output.cut) {
            Ok(result) => Outcome::Done(result),
            Err(why) => Outcome::failed(why),
        },
        Ok(status) => {
            let permanent = status.code().is_some_and(|code| options.discard_codes.contains(&code));
            match stopped {
                // A service manager, or a terminal, may send the signal that stops the worker to the command as well.
                None if context.stop.now() >= Phase::Draining && !permanent && ended_by_signal(status) => {
                    Outcome::Released(Duration::ZERO)
                }
                // A code that discards the task was chosen by the command.
                Some(reason) if !permanent || reason == Reason::Lost => {
                    Outcome::stopped(reason, options.timeout)
                }
                _ => failure(status, &errors.bytes, permanent),
            }
        }
        Err(error) => Outcome::failed(format!("cannot wait for the command: {error}")),
    }
}

fn start(context: &Context, task: &Task, command: &[OsString]) -> std::io::Result<Child> {
    let mut process = Command::new(&command[0]);
    process
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(if context.options.results == Results::None { Stdio::inherit() } else { Stdio::piped() })
        .process_group(0)
        .env("QUEUE_TASK_ID", task.lease.id.to_string())
        .env("QUEUE_TASK_TOKEN", task.lease.token.to_string())
        .env("QUEUE_TASK_QUEUE", &task.lease.queue)
        .env("QUEUE_TASK_ATTEMPT", task.attempt.to_string());
    // The command finds the database as this program does.
    if let Some(url) = &context.server.url {
        process.env("DATABASE_URL", url);
    }
    let optional = [
        ("QUEUE_TASK_KIND", task.kind.clone()),
        ("QUEUE_TASK_MAX_ATTEMPTS", task.max_attempts.map(|most| most.to_string())),
        ("QUEUE_TASK_HEADERS", task.headers.clone()),
    ];
    for (name, value) in optional {
        match value {
            Some(value) => process.env(name, value),
            None => process.env_remove(name),
        };
    }
    // SAFETY: what the guard prepares calls only functions that may be called between fork and exec. The thread that forks
    // is the main thread, which lives as long as the process: PR_SET_PDEATHSIG is about the thread.
    unsafe { process.pre_exec(context.guard.prepare()) };
    process.spawn()
}

/// Waits for the end of the command, and ends it if the handler is to stop: first by SIGTERM, then by SIGKILL.
async fn wait(
    context: &Context,
    task: &Task,
    child: &mut Child,
    group: i32,
) -> (std::io::Result<ExitStatus>, Option<Reason>) {
    let options = &context.options;
    let late = options.timeout.map(|limit| Instant::now() + limit);
    let (mut stopped, mut kill_at, mut killed) = (None, None, false);
    loop {
        tokio::select! {
            status = child.wait() => return (status, stopped),
            reason = task.lease.reason(), if stopped.is_none() => stopped = Some(reason),
            () = maybe(late), if stopped.is_none() => stopped = Some(Reason::TimedOut),
            () = maybe(kill_at), if !killed => {
                killed = true;
                guard::signal(group, libc::SIGKILL);
            }
            () = context.stop.reached(Phase::Killing), if !killed => {
                killed = true;
                stopped.get_or_insert(Reason::Shutdown);
                guard::signal(group, libc::SIGKILL);
            }
        }
        if stopped.is_some() && kill_at.is_none() && !killed {
            kill_at = Some(Instant::now() + options.kill_after);
            let mut fields = task.fields();
            fields["reason"] = json!(stopped.map(Reason::name));
            context.log.info("stopping the command", fields);
            guard::signal(group, libc::SIGTERM);
        }
    }
}

async fn maybe(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => std::future::pending().await,
    }
}

/// Whether a signal to stop has ended a command. Shells, Java and others catch it, and exit with 128 and its number.
fn ended_by_signal(status: ExitStatus) -> bool {
    let signal = status.signal().or(status.code().map(|code| code - 128));
    matches!(signal, Some(libc::SIGTERM | libc::SIGINT))
}

fn failure(status: ExitStatus, errors: &[u8], permanent: bool) -> Outcome {
    let (how, details) = match (status.code(), status.signal()) {
        (Some(code), _) => (format!("exited with code {code}"), json!({"exit_code": code})),
        (None, signal) => (format!("killed by signal {}", signal.unwrap_or(0)), json!({"signal": signal})),
    };
    let errors = outcome::text(errors);
    let error = if errors.is_empty() { how } else { format!("{how}\n{errors}") };
    Outcome::Failed(Failed { error, details: Some(details), retry_in: None, permanent })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    First,
    Last,
}

/// What has been read of a stream.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    /// Whether there was more than is kept.
    cut: bool,
}

struct Following {
    read: Rc<RefCell<Output>>,
    reader: Option<JoinHandle<()>>,
}

impl Output {
    /// Reads a stream to its end, so that the command never waits for it, and keeps a part.
    fn follow(
        stream: Option<impl AsyncRead + Unpin + 'static>,
        most: usize,
        keep: Keep,
        pass: Option<&Rc<Context>>,
    ) -> Following {
        let read = Rc::new(RefCell::new(Self::default()));
        let (kept, pass) = (Rc::clone(&read), pass.map(|context| context.log.pass()));
        let reader = stream.map(|mut stream| {
            spawn_local(async move {
                let mut buffer = vec![0; 16 * 1024];
                while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                    kept.borrow_mut().add(&buffer[..length], most, keep);
                    if let Some(pass) = &pass {
                        let _ = pass.send(buffer[..length].to_vec()).await;
                    }
                }
            })
        });
        Following { read, reader }
    }

    fn add(&mut self, bytes: &[u8], most: usize, keep: Keep) {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > most {
            self.cut = true;
            match keep {
                Keep::First => self.bytes.truncate(most),
                Keep::Last => drop(self.bytes.drain(..self.bytes.len() - most)),
            }
        }
    }
}

impl Following {
    async fn finish(self) -> Output {
        if let Some(mut reader) = self.reader
            && timeout(AFTER_THE_END, &mut reader).await.is_err()
        {
            reader.abort();
        }
        self.read.take()
    }
}
