//! `queue top`: queues and workers, as a picture that is kept up to date.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncReadExt;

use crate::connect::Session;
use crate::failure::Failure;
use crate::output::{self, age, plain};

/// Numbers are exact up to this many queues and workers; more would not fit on a screen.
const QUERY: &str = "
    SELECT jsonb_build_object(
        'database', current_database(), 'time', to_char(clock_timestamp(), 'HH24:MI:SS'),
        'counted_at', q.counted_at, 'queues', coalesce(q.queues, '[]'),
        'workers', coalesce((
            SELECT jsonb_agg(jsonb_build_object(
                'worker', w.worker, 'queue', w.queue, 'running', w.running, 'waiting', w.waiting, 'overdue', w.overdue,
                'working_seconds', extract(epoch FROM coalesce(w.counted_at, clock_timestamp()) - w.working_since)::float8)
                ORDER BY w.worker, w.queue)
            FROM queue.workers AS w), '[]'))
    FROM (
        SELECT to_char(max(s.counted_at), 'HH24:MI:SS') AS counted_at,
               jsonb_agg(to_jsonb(s) - 'oldest_due_age'
                   || jsonb_build_object('oldest_due_seconds', extract(epoch FROM s.oldest_due_age)::float8)
                   ORDER BY s.queue) AS queues
        FROM queue.stats AS s) AS q";

pub async fn run(
    session: &Session,
    interval: Duration,
    once: bool,
    as_json: bool,
) -> Result<ExitCode, Failure> {
    let interactive = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if as_json || once || !interactive {
        let found = session.json(QUERY, &[]).await?;
        output::print(&if as_json { format!("{found}\n") } else { picture(&found) })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    // After the first query, so that its error is not drawn over.
    let mut found = session.json(QUERY, &[]).await?;
    let _screen = Screen::open()?;
    // A thread of the runtime reads the keys; it does not keep the program from ending.
    let mut keys = tokio::io::stdin();
    loop {
        draw(&picture(&found))?;
        let mut key = [0];
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            read = keys.read(&mut key) => match (read?, key[0]) {
                (0, _) | (_, b'q' | b'Q') => return Ok(ExitCode::SUCCESS),
                (_, b' ') => {}
                _ => continue,
            },
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
            _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
        }
        found = session.json(QUERY, &[]).await?;
    }
}

fn picture(found: &Value) -> String {
    let list = |name: &str| found[name].as_array().cloned().unwrap_or_default();
    let seconds = |value: &Value| value.as_f64().map(age).unwrap_or_default();
    let queue = |queue: &Value| {
        let name = plain(&queue["queue"]) + if queue["paused"] == true { " (paused)" } else { "" };
        let numbers =
            ["queued", "running", "scheduled", "waiting", "blocked", "dead", "completed_per_second"];
        let mut row = vec![name];
        row.extend(numbers.map(|number| plain(&queue[number])));
        row.push(seconds(&queue["oldest_due_seconds"]));
        row
    };
    let worker = |worker: &Value| {
        let name = if worker["worker"].is_null() { "(no name)".to_owned() } else { plain(&worker["worker"]) };
        let mut row = vec![name, plain(&worker["queue"])];
        row.extend(["running", "waiting", "overdue"].map(|number| plain(&worker[number])));
        row.push(seconds(&worker["working_seconds"]));
        row
    };
    let queues: Vec<_> = list("queues").iter().map(queue).collect();
    let workers: Vec<_> = list("workers").iter().map(worker).collect();
    let headers =
        ["queue", "queued", "running", "scheduled", "waiting", "blocked", "dead", "per second", "oldest due"];
    let mut text = format!("{}  {}", plain(&found["database"]), plain(&found["time"]));
    if !found["counted_at"].is_null() {
        text += &format!("  tasks as counted by queue.maintain() at {}", plain(&found["counted_at"]));
    }
    text += "\n\n";
    text += &output::table(&headers, &queues);
    text.push('\n');
    text += &output::table(&["worker", "queue", "running", "waiting", "overdue", "longest"], &workers);
    text
}

/// Draws the lines that fit, each cut at the edge.
fn draw(picture: &str) -> Result<(), Failure> {
    let (rows, columns) = size();
    let mut screen = "\x1b[H".to_owned();
    for line in picture.lines().take(rows.saturating_sub(1)) {
        screen.extend(line.chars().take(columns));
        screen += "\x1b[K\r\n";
    }
    screen += "\x1b[J";
    Ok(output::print(&screen)?)
}

fn size() -> (usize, usize) {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the kernel fills the record.
    unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    if size.ws_row == 0 { (24, 80) } else { (size.ws_row.into(), size.ws_col.into()) }
}

/// The alternate screen, and keys without Enter; as before when this value is dropped.
struct Screen {
    before: libc::termios,
}

impl Screen {
    fn open() -> Result<Self, Failure> {
        // SAFETY: termios is plain data, which tcgetattr fills.
        let mut before: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: the record lives until the call returns.
        if unsafe { libc::tcgetattr(libc::STDIN_FILENO, &raw mut before) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        let mut raw = before;
        raw.c_lflag &= !(libc::ICANON | libc::ECHO);
        // SAFETY: as above.
        unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &raw const raw) };
        output::print("\x1b[?1049h\x1b[?25l")?;
        Ok(Self { before })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // SAFETY: the record was filled by tcgetattr.
        unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &raw const self.before) };
        drop(output::print("\x1b[?25h\x1b[?1049l"));
    }
}
