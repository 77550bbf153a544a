//! The worker: claims tasks while it has free slots, runs the handler for each, and ends in an orderly way.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{sleep, timeout};

use super::lease::{Leases, Reason};
use super::link::{Link, Outage};
use super::outcome::Outcome;
use super::report::Report;
use super::stop::{Phase, Phases};
use super::task::Task;
use super::{
    Context, End, Guard, Handler, Options, acknowledge, claim, command, heartbeat, http, log, rights, stop,
};
use crate::connect::Server;
use crate::failure::Failure;

/// How long killed handlers may take to end, and outcomes to be reported.
const END_LIMIT: Duration = Duration::from_secs(5);
/// How many ended tasks may wait for their report, for each slot, before the worker stops claiming.
const UNREPORTED: usize = 10;
/// How many claims in a row may return nothing after a wait that reported a task, before the worker pauses.
const EMPTY_WAITS: u32 = 10;

pub async fn run(server: Server, options: Options, guard: Guard) -> End {
    let context = Rc::new(Context {
        server: Rc::new(server),
        log: log::Log::start(options.log, options.verbose),
        options,
        leases: Leases::default(),
        stop: Phases::new(),
        guard,
        outage: Outage::default(),
    });
    let listener = Rc::clone(&context);
    let listening = spawn_local(async move { drop(stop::signals(&listener.stop).await) });
    let end = match open(&context).await {
        Ok(Some(links)) => serve(&context, links).await,
        Ok(None) => Ok(()),
        Err(failure) => Err(failure),
    };
    listening.abort();
    match &end {
        Ok(()) => context.log.info("exiting", json!({})),
        Err(failure) => context.log.error("exiting", json!({"error": failure.to_string()})),
    }
    // Handlers that could not be killed may still hold the context; then the last lines of the log are not waited for.
    let _ = listening.await;
    if let Ok(context) = Rc::try_unwrap(context).map_err(drop) {
        context.log.finish();
    }
    end
}

/// The connections that claim, extend and report.
type Links = [Link; 3];

/// Opens all connections before anything is claimed: what is claimed has to be extended and reported, and the server may
/// not have three connections for this role. Returns nothing if the worker is to end.
async fn open(context: &Rc<Context>) -> Result<Option<Links>, Failure> {
    let mut links = [Link::new(context), Link::impatient(context), Link::new(context)];
    for link in &mut links {
        loop {
            let opened = tokio::select! {
                opened = link.open() => opened.map(drop),
                () = context.stop.reached(Phase::Draining) => return Ok(None),
            };
            match opened {
                Ok(()) => break,
                Err(failure) if is_final(&failure, false) => return Err(failure),
                Err(failure) => pause(context, link, &failure).await,
            }
        }
        link.works();
    }
    Ok(Some(links))
}

/// Waits after a failure until the next attempt, or until the worker is to end.
async fn pause(context: &Context, link: &mut Link, failure: &Failure) {
    let pause = link.failed(failure);
    tokio::select! {
        () = sleep(pause) => {}
        () = context.stop.reached(Phase::Draining) => {}
    }
}

/// Works until the end, and reports what has ended.
async fn serve(context: &Rc<Context>, [claiming, extending, reporting]: Links) -> End {
    let (sender, receiver) = unbounded_channel();
    let mut acknowledging = spawn_local(acknowledge::run(Rc::clone(context), reporting, receiver));
    let mut beating = spawn_local(heartbeat::run(Rc::clone(context), extending));
    let slots = Arc::new(Semaphore::new(context.options.concurrency as usize));
    let mut end = {
        let mut working = pin!(work(context, claiming, &slots, &sender));
        tokio::select! {
            end = &mut working => end,
            failure = broken(&mut acknowledging, &mut beating) => {
                // What runs would be done again: it cannot be reported, or loses its lease.
                context.stop.advance(Phase::Killing);
                working.await.and(Err(failure))
            }
        }
    };
    context.stop.advance(Phase::Draining);
    drain(context, &slots, &sender).await;
    drop(sender);
    finish(acknowledging).await;
    let unreported = context.leases.count();
    if unreported > 0 {
        let why = format!("the outcomes of {unreported} tasks could not be reported");
        end = Err(match end {
            Ok(()) => Failure::new(why),
            Err(first) => Failure { message: format!("{}; {why}", first.message), ..first },
        });
    }
    context.stop.advance(Phase::Reported);
    finish(beating).await;
    end
}

/// Lets a part of the worker end, for a limited time.
async fn finish(mut part: JoinHandle<()>) {
    if !part.is_finished() && timeout(END_LIMIT, &mut part).await.is_err() {
        // It holds the context, and then the last lines of the log would not be waited for.
        part.abort();
        let _ = part.await;
    }
}

/// Waits until a part of the worker has ended before the others, which only a panic can cause.
async fn broken(acknowledging: &mut JoinHandle<()>, beating: &mut JoinHandle<()>) -> Failure {
    let part = tokio::select! {
        _ = acknowledging => "reporting outcomes",
        _ = beating => "extending leases",
    };
    Failure::new(format!("{part} has failed because of a defect in queue work"))
}

/// Claims until the worker is to end, or an error shows that it cannot go on.
async fn work(
    context: &Rc<Context>,
    mut link: Link,
    slots: &Arc<Semaphore>,
    sender: &UnboundedSender<Report>,
) -> End {
    let options = &context.options;
    let (mut ready, mut empty_waits) = (false, 0);
    let draining = || context.stop.reached(Phase::Draining);
    loop {
        let free = tokio::select! {
            free = free_slots(context, slots) => free,
            () = draining() => return Ok(()),
        };
        if context.stop.now() > Phase::Working {
            return Ok(());
        }

        // A server that does not answer must not hold up the end for long.
        let late = async {
            draining().await;
            sleep(END_LIMIT).await;
        };
        let mut result = claim::claim(&mut link, context, free, late).await;
        if let Ok(tasks) = &mut result {
            link.works();
            if !ready {
                ready = true;
                let fields = json!({"queues": options.queues, "worker": options.name, "concurrency": options.concurrency});
                context.log.info("ready", fields);
            }
            let claimed = tasks.len();
            empty_waits = if claimed == 0 { empty_waits + 1 } else { 0 };
            for task in tasks.drain(..) {
                begin(context, slots, sender, task);
            }
            if claimed == free {
                continue;
            }
            if empty_waits > EMPTY_WAITS {
                sleep(Duration::from_millis(100)).await;
            }
            result = claim::wait(&mut link, context).await.map(|()| Vec::new());
        }
        if let Err(failure) = result {
            if is_final(&failure, ready) {
                return Err(rights::explained(&mut link, context, failure).await);
            }
            pause(context, &mut link, &failure).await;
        }
    }
}

/// Waits until there is a free slot, and returns how many tasks may be claimed. While outcomes cannot be reported, this ends
/// at a limit: tasks would be done again and again, and their results fill the memory.
async fn free_slots(context: &Context, slots: &Semaphore) -> usize {
    let concurrency = context.options.concurrency as usize;
    loop {
        drop(slots.acquire().await);
        let free = slots.available_permits();
        let unreported = (context.leases.count() + free).saturating_sub(concurrency);
        match free.min((UNREPORTED * concurrency).saturating_sub(unreported)) {
            0 => context.leases.removed.notified().await,
            free => return free,
        }
    }
}

/// Whether trying again cannot help.
fn is_final(failure: &Failure, ready: bool) -> bool {
    let always = ["QX002", "42501"];
    let at_first = ["28", "3D000", "3F000", "42883", "42P01", "22", "54"];
    always.iter().any(|code| failure.is(code)) || (!ready && at_first.iter().any(|code| failure.is(code)))
}

/// Starts the handler of a task. Its slot is free again when the handler has ended.
fn begin(context: &Rc<Context>, slots: &Arc<Semaphore>, sender: &UnboundedSender<Report>, task: Task) {
    context.leases.add(&task.lease);
    let slot = Arc::clone(slots).try_acquire_owned().ok();
    let (context, sender, task) = (Rc::clone(context), sender.clone(), Rc::new(task));
    spawn_local(async move {
        context.log.debug("begun", task.fields());
        let began = tokio::time::Instant::now();
        let outcome = outcome_of(handle(Rc::clone(&context), Rc::clone(&task))).await;
        task.lease.handled.set(true);
        let mut fields = task.fields();
        fields["outcome"] = json!(outcome.name());
        fields["seconds"] = json!((began.elapsed().as_secs_f64() * 1000.0).round() / 1000.0);
        match &outcome {
            Outcome::Done(_) => context.log.debug("ended", fields),
            Outcome::Failed(failed) => {
                // Only the first line: what follows was written by the handler.
                fields["error"] = json!(failed.error.lines().next());
                context.log.warn("failed", fields);
            }
            _ => context.log.info("stopped", fields),
        }
        if outcome == Outcome::Nothing {
            context.leases.remove(&task.lease);
        } else {
            let _ = sender.send(Report::new(Rc::clone(&task.lease), outcome));
        }
        drop(slot);
    });
}

async fn handle(context: Rc<Context>, task: Rc<Task>) -> Outcome {
    match &context.options.handler {
        // It was claimed while the worker was asked to end.
        _ if context.stop.now() > Phase::Working => Outcome::Released(Duration::ZERO),
        Handler::Command(words) => command::run(&context, &task, words).await,
        Handler::Http(target) => http::run(&context, &task, target).await,
    }
}

/// The outcome of a handler. If it panics, the attempt has failed; otherwise its lease would be extended for ever.
async fn outcome_of(handler: impl Future<Output = Outcome> + 'static) -> Outcome {
    let ended = spawn_local(handler).await;
    ended.unwrap_or_else(|_| {
        Outcome::failed("a defect in queue work ended the attempt; its standard error has more")
    })
}

/// Lets handlers finish, then asks them to stop, and gives back what still runs.
async fn drain(context: &Rc<Context>, slots: &Arc<Semaphore>, sender: &UnboundedSender<Report>) {
    let options = &context.options;
    // When all slots are free, no handler runs.
    let idle = async || drop(slots.acquire_many(options.concurrency).await);
    let running = options.concurrency as usize - slots.available_permits();
    if running > 0 {
        context.log.info("waiting for handlers to finish", json!({"running": running}));
    }
    tokio::select! {
        () = idle() => return,
        () = sleep(options.shutdown_timeout) => context.stop.advance(Phase::Stopping),
        () = context.stop.reached(Phase::Killing) => {}
    }
    for lease in context.leases.all() {
        lease.stop(Reason::Shutdown);
    }
    tokio::select! {
        () = idle() => return,
        () = sleep(options.kill_after) => context.stop.advance(Phase::Killing),
        () = context.stop.reached(Phase::Killing) => {}
    }
    if timeout(END_LIMIT, idle()).await.is_ok() {
        return;
    }
    for lease in context.leases.running() {
        context.log.error("the handler cannot be ended", json!({"task": lease.id}));
        let _ = sender.send(Report::new(lease, Outcome::Released(Duration::ZERO)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_one_thread<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, work)
    }

    async fn panics<T>() -> T {
        panic!("the panic of a test")
    }

    #[test]
    fn a_handler_that_panics_has_failed() {
        let outcome = in_one_thread(outcome_of(panics()));
        assert_eq!(outcome.name(), "failed");
        assert_eq!(in_one_thread(outcome_of(async { Outcome::Done(None) })), Outcome::Done(None));
    }

    #[test]
    fn a_part_that_panics_ends_the_worker() {
        let failure = in_one_thread(async {
            broken(&mut spawn_local(std::future::pending()), &mut spawn_local(panics())).await
        });
        assert!(failure.message.contains("extending leases"));
    }
}
