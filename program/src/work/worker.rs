//! The worker: claims tasks while it has free slots, runs the handler for each, and ends in an orderly way.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::acknowledge::{self, Report};
use super::lease::{Leases, Reason};
use super::link::{Link, Outage};
use super::outcome::Outcome;
use super::stop::{Phase, Phases};
use super::task::Task;
use super::{Context, End, Guard, Handler, Options, claim, command, heartbeat, http, log, stop};
use crate::connect::Server;
use crate::failure::Failure;

/// How long killed handlers may take to end, and outcomes to be reported.
const END_LIMIT: Duration = Duration::from_secs(5);
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
    let (sender, receiver) = unbounded_channel();
    let acknowledging = spawn_local(acknowledge::run(Rc::clone(&context), receiver));
    let beating = spawn_local(heartbeat::run(Rc::clone(&context)));
    let listener = Rc::clone(&context);
    let listening = spawn_local(async move { drop(stop::signals(&listener.stop).await) });

    let slots = Arc::new(Semaphore::new(context.options.concurrency as usize));
    let mut end = work(&context, &slots, &sender).await;
    context.stop.advance(Phase::Draining);
    drain(&context, &slots, &sender).await;
    drop(sender);
    let _ = timeout(END_LIMIT, acknowledging).await;
    let unreported = context.leases.all().len();
    if unreported > 0 {
        end = end.and(Err(Failure::new(format!("the outcomes of {unreported} tasks could not be reported"))));
    }
    beating.abort();
    listening.abort();
    match &end {
        Ok(()) => context.log.info("exiting", json!({})),
        Err(failure) => context.log.error("exiting", json!({"error": failure.to_string()})),
    }
    // Handlers that could not be killed may still hold the context; then the last lines of the log are not waited for.
    let _ = (beating.await, listening.await);
    if let Ok(context) = Rc::try_unwrap(context).map_err(drop) {
        context.log.finish();
    }
    end
}

/// Claims until the worker is to end, or an error shows that it cannot go on.
async fn work(context: &Rc<Context>, slots: &Arc<Semaphore>, sender: &UnboundedSender<Report>) -> End {
    let options = &context.options;
    let mut link = Link::new(context);
    let (mut ready, mut empty_waits) = (false, 0);
    let draining = || context.stop.reached(Phase::Draining);
    loop {
        // Waits for one free slot, and then takes all that are free.
        tokio::select! {
            slot = slots.acquire() => drop(slot),
            () = draining() => return Ok(()),
        }
        let free = slots.available_permits();
        if context.stop.now() > Phase::Working {
            return Ok(());
        }

        // A server that does not answer must not hold up the end for long.
        let late = async {
            draining().await;
            sleep(END_LIMIT).await;
        };
        let mut result = tokio::select! {
            result = claim::claim(&mut link, options, free) => result,
            () = late => return Ok(()),
        };
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
                return Err(failure);
            }
            let pause = link.failed(&failure);
            tokio::select! {
                () = sleep(pause) => {}
                () = draining() => return Ok(()),
            }
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
    let (context, sender) = (Rc::clone(context), sender.clone());
    spawn_local(async move {
        context.log.debug("begun", task.fields());
        let began = tokio::time::Instant::now();
        let outcome = match &context.options.handler {
            // It was claimed while the worker was asked to end.
            _ if context.stop.now() > Phase::Working => Outcome::Released(Duration::ZERO),
            Handler::Command(words) => command::run(&context, &task, words).await,
            Handler::Http(target) => http::run(&context, &task, target).await,
        };
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
            let _ = sender.send(Report { lease: Rc::clone(&task.lease), outcome });
        }
        drop(slot);
    });
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
    for lease in context.leases.all() {
        context.log.error("the handler cannot be ended", json!({"task": lease.id}));
        let _ = sender.send(Report { lease, outcome: Outcome::Released(Duration::ZERO) });
    }
}
