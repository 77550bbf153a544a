//! The command line.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::work::{Format, Results};

const CONNECTING: &str = "\
Connecting:
  --url or DATABASE_URL is a URL (postgresql://user@host/database) or a connection string (host=... dbname=...).
  Without it, PGHOST, PGUSER, PGSERVICE, PGPASSFILE and the other variables of psql are used, and its service and
  password files. TLS: sslmode=disable|prefer|require|verify-ca|verify-full, sslrootcert=FILE|system.

Exit codes: 0 success, 1 error, 2 wrong use.";

/// Works on, shows and changes the tasks of queue_ext, the job queue inside PostgreSQL.
#[derive(Parser)]
#[command(name = "queue", version, arg_required_else_help = true, after_help = CONNECTING, max_term_width = 110)]
pub struct Arguments {
    /// Where the database is
    #[arg(long, global = true, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub url: Option<String>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a command, or send an HTTP request, for each task
    #[command(after_help = WORK)]
    Work(Box<Work>),
    /// Add a task
    #[command(after_help = PUSH)]
    Push(Box<Push>),
    /// Show a task
    #[command(after_help = "Examples:\n  queue get 42\n  queue get 42 --json | jq .errors")]
    Get {
        /// The id of the task
        id: i64,
        #[command(flatten)]
        output: Output,
    },
    /// Print a line whenever a task is added, claimed or ends
    #[command(after_help = TAIL)]
    Tail {
        /// The queue; all queues if it is not given
        queue: Option<String>,
        /// Start with what happened in this time before now
        #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "0s")]
        since: Duration,
        #[command(flatten)]
        output: Output,
    },
    /// Show queues and workers, and keep the picture up to date
    #[command(after_help = TOP)]
    Top {
        /// The time between two updates
        #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "2s")]
        interval: Duration,
        /// Print the picture once and exit, as without a terminal
        #[arg(long)]
        once: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Put the dead letters of a queue back into it
    #[command(after_help = "Examples:\n  queue redrive mail\n  queue redrive mail --max 10")]
    Redrive {
        /// The queue
        queue: String,
        /// The largest number of dead letters to put back, the oldest first; all if it is not given
        #[arg(long, value_name = "NUMBER")]
        max: Option<i32>,
        #[command(flatten)]
        output: Output,
    },
    /// Cancel tasks. A running task is asked to stop
    #[command(after_help = "Example:\n  queue cancel 41 42")]
    Cancel {
        /// The ids of the tasks
        #[arg(required = true)]
        ids: Vec<i64>,
        #[command(flatten)]
        output: Output,
    },
    /// Pause a queue: nothing is claimed from it until it is resumed
    Pause {
        /// The queue
        queue: String,
        #[command(flatten)]
        output: Output,
    },
    /// Resume a paused queue
    Resume {
        /// The queue
        queue: String,
        #[command(flatten)]
        output: Output,
    },
    /// Check the database; the exit code is 0 (ok), 1 (warning) or 2 (critical, or not reachable)
    #[command(after_help = HEALTH)]
    Health {
        /// Report a queue whose task has been due for longer than this
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        due_for: Option<Duration>,
        /// Report a queue of which more tasks than this failed within an hour
        #[arg(long, value_name = "NUMBER")]
        failed: Option<i64>,
        #[command(flatten)]
        output: Output,
    },
    /// Serve the web dashboard; `queue dashboard --help` lists its options
    #[command(disable_help_flag = true)]
    Dashboard {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        arguments: Vec<String>,
    },
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  queue completions bash > ~/.local/share/bash-completion/completions/queue"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Args)]
pub struct Output {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const WORK: &str = "\
For a command:
  The payload is its standard input, as JSON. QUEUE_TASK_ID, QUEUE_TASK_TOKEN, QUEUE_TASK_QUEUE, QUEUE_TASK_KIND,
  QUEUE_TASK_ATTEMPT, QUEUE_TASK_MAX_ATTEMPTS and QUEUE_TASK_HEADERS (JSON) are set. Exit code 0: the task is done.
  65, or a --discard-code: it has failed for good. Any other code, or a signal: it is retried after the queue's
  backoff. To stop the command, its process group gets SIGTERM, and SIGKILL after --kill-after. When the command has
  ended, what it left in its group is killed.

For an HTTP address:
  A POST with the payload as body, and the headers Queue-Task-Id, -Token, -Queue, -Kind, -Attempt and
  Idempotency-Key. 2xx: the task is done. A --discard-status: it has failed for good. Anything else, and no answer:
  it is retried, after Retry-After if the response has that header.

To stop:
  SIGTERM or SIGINT: claim nothing more, let handlers finish for --shutdown-timeout, then stop them and give their
  tasks back. A second signal kills them at once.

Examples:
  queue work mail -- ./send-mail.sh
  queue work urgent mail --concurrency 50 --result json -- python3 handle.py
  queue work mail --http https://example.com/hooks/mail --header \"Authorization: Bearer $TOKEN\"";

#[derive(Args)]
pub struct Work {
    /// The queues, in order of preference
    #[arg(required = true, value_name = "QUEUE")]
    pub queues: Vec<String>,
    /// Send a POST request to this address for each task
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    pub http: Option<String>,
    /// A header of each request, as NAME:VALUE; can be given several times
    #[arg(long, value_name = "NAME:VALUE")]
    pub header: Vec<String>,
    /// How many tasks are handled at a time
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub concurrency: u32,
    /// How long a lease lasts that is not extended; by default as the task or its queue says
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    pub lease: Option<Duration>,
    /// The longest time between two extensions of the leases; also a third of the shortest lease at most
    #[arg(long, value_name = "DURATION", value_parser = positive, default_value = "10s")]
    pub heartbeat: Duration,
    /// The longest time for one attempt; then it is stopped and has failed. No limit by default
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    pub timeout: Option<Duration>,
    /// How long handlers may finish after SIGTERM
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub shutdown_timeout: Duration,
    /// How long after SIGTERM a command is killed
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    pub kill_after: Duration,
    /// The name of the worker; by default the host and the process id
    #[arg(long)]
    pub name: Option<String>,
    /// What to store as the result of the task
    #[arg(long, value_enum, default_value = "none")]
    pub result: Results,
    /// An exit code with which a task has failed for good; can be given several times
    #[arg(long, value_name = "CODE", default_value = "65", value_delimiter = ',')]
    pub discard_code: Vec<i32>,
    /// A status with which a task has failed for good; can be given several times
    #[arg(long, value_name = "STATUS", default_value = "400,410,422", value_delimiter = ',')]
    pub discard_status: Vec<u16>,
    /// How log lines look
    #[arg(long, value_enum, default_value = "text")]
    pub log: Format,
    /// Log the begin and the end of each task
    #[arg(long, short)]
    pub verbose: bool,
    /// The command and its arguments, after `--`
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "http")]
    pub command: Vec<OsString>,
}

const PUSH: &str = "\
Examples:
  queue push mail '{\"to\": \"ada@example.com\"}'
  queue push mail '{\"to\": \"ada@example.com\"}' --kind welcome --delay 10m --key welcome-ada
  cat payload.json | queue push mail -
  jq -c '.[]' addresses.json | queue push mail --lines";

#[derive(Args)]
pub struct Push {
    /// The queue
    pub queue: String,
    /// The payload, as JSON; `-` reads it from standard input
    #[arg(default_value = "{}", conflicts_with = "lines")]
    pub payload: String,
    /// Add a task for each line of standard input, which is its payload. Each thousand lines are added together
    #[arg(long, conflicts_with = "key")]
    pub lines: bool,
    /// What sort of work this is
    #[arg(long)]
    pub kind: Option<String>,
    /// The time until the task can be claimed
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "run_at")]
    pub delay: Option<Duration>,
    /// The earliest time at which the task can be claimed, such as 2030-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub run_at: Option<String>,
    /// The task with the smallest priority is claimed first
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// At most one unfinished task of the queue has this key
    #[arg(long)]
    pub key: Option<String>,
    /// What to do if the key is taken
    #[arg(long, value_name = "ACTION", value_parser = ["skip", "replace", "reschedule", "error"])]
    pub on_duplicate: Option<String>,
    /// How long the key stays taken after the end of the task
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub key_ttl: Option<Duration>,
    /// Whether --key-ttl counts from the end of the task or from its push
    #[arg(long, value_name = "WHEN", value_parser = ["end", "push"])]
    pub key_ttl_from: Option<String>,
    /// Tasks with the same group key run in order
    #[arg(long, value_name = "GROUP")]
    pub group_key: Option<String>,
    /// The number of attempts
    #[arg(long, value_name = "NUMBER")]
    pub max_attempts: Option<i32>,
    /// The delays between attempts, as JSON: {"kind": "fixed", "base": "1 min"}
    #[arg(long, value_name = "JSON")]
    pub backoff: Option<String>,
    /// Metadata, as a JSON object
    #[arg(long, value_name = "JSON")]
    pub headers: Option<String>,
    /// The ids of tasks that must complete first, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub after: Vec<i64>,
    /// What happens if one of those tasks fails or is cancelled
    #[arg(long, value_name = "ACTION", value_parser = ["cancel", "fail", "continue"], requires = "after")]
    pub on_predecessor_failure: Option<String>,
    /// How long a lease of this task lasts
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    pub lease: Option<Duration>,
    /// How long an attempt may take
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    pub timeout: Option<Duration>,
    /// The start deadline, as a time
    #[arg(long, value_name = "TIME")]
    pub start_by: Option<String>,
    /// The start deadline, as a time from now
    #[arg(long, value_name = "DURATION", value_parser = positive, conflicts_with = "start_by")]
    pub ttl: Option<Duration>,
    /// How much of a rate limit the task uses up
    #[arg(long, value_name = "NUMBER")]
    pub weight: Option<i32>,
    /// The batch to which the task is added
    #[arg(long, value_name = "ID")]
    pub batch: Option<i64>,
    #[command(flatten)]
    pub output: Output,
}

const TAIL: &str = "\
Needs the operator's right on the queue, or on all queues. Reads what has changed at least every half second, less often
if the database is large. Ctrl-C ends it.

Examples:
  queue tail
  queue tail mail --since 10m
  queue tail --json | jq 'select(.event == \"failed\")'";

const TOP: &str = "\
Keys: q ends it, the space bar updates the picture at once.

Examples:
  queue top
  queue top --json | jq '.queues[] | select(.dead > 0)'";

const HEALTH: &str = "\
Needs the operator's right on any queue, or pg_monitor.

Examples:
  queue health
  queue health --due-for 1m --failed 0 || notify-operators";

fn duration(text: &str) -> Result<Duration, String> {
    /// A thousand years. Clocks and intervals have no room for the longest durations that can be written.
    const LONGEST: Duration = Duration::from_secs(1000 * 366 * 24 * 60 * 60);
    let duration = humantime::parse_duration(text);
    match duration.map_err(|why| format!("{why}; write it as 500ms, 10s or 5m"))? {
        duration if duration > LONGEST => Err("it has to be at most 1000 years".to_owned()),
        duration => Ok(duration),
    }
}

fn positive(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it has to be more than 0".to_owned()),
        duration => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_has_no_contradictions() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn work_takes_queues_and_a_command() {
        let line = ["queue", "work", "a", "b", "--lease", "500ms", "--", "sh", "-c", "exit 1"];
        let Command::Work(work) = Arguments::parse_from(line).command else { panic!("not work") };
        assert_eq!(work.queues, ["a", "b"]);
        assert_eq!(work.command, ["sh", "-c", "exit 1"]);
        assert_eq!((work.lease, work.discard_code), (Some(Duration::from_millis(500)), vec![65]));
    }

    #[test]
    fn work_needs_either_a_command_or_an_address() {
        let refused = |line: &[&str]| Arguments::try_parse_from(line).is_err();
        assert!(refused(&["queue", "work", "a"]));
        assert!(refused(&["queue", "work", "a", "--http", "http://x", "--", "sh"]));
        assert!(refused(&["queue", "work", "--", "sh"]));
        assert!(refused(&["queue", "work", "a", "--lease", "0s", "--", "sh"]));
    }

    #[test]
    fn a_duration_that_no_clock_has_is_refused() {
        let works = |timeout: &str| {
            let line = ["queue", "work", "a", "--timeout", timeout, "--kill-after", timeout, "--", "sh"];
            Arguments::try_parse_from(line).is_ok()
        };
        assert!(works("1000years"));
        assert!(!works("300000000000years"));
    }
}
