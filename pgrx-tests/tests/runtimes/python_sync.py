"""The contract program of the Python runtime, with handlers that are plain functions. runtimes.rs drives it."""

import logging
import os
import signal
import threading
import time

import psycopg

from queue_ext import Discard, Retry, Snooze, Stopped, Worker

URL = os.environ["DATABASE_URL"]
logging.basicConfig(level=logging.INFO)
worker = Worker(
    URL,
    os.environ["QUEUE"],
    concurrency=int(os.environ["CONCURRENCY"]),
    lease=float(os.environ["LEASE"]) if "LEASE" in os.environ else None,
    heartbeat=float(os.environ["HEARTBEAT"]),
    shutdown_timeout=float(os.environ["SHUTDOWN"]),
    name=os.environ["NAME"],
)


def connect():
    return psycopg.connect(URL, prepare_threshold=None)


def insert(db, task, what):
    db.execute("INSERT INTO effects (task, token, what) VALUES (%s, %s, %s)", [task.id, task.token, what])


def record(task, what):
    with connect() as db:
        insert(db, task, what)


@worker.handler("effect")
def effect(task):
    with connect() as db:
        insert(db, task, "effect")
        task.complete(db, {"ok": True})


@worker.handler("lock")
def lock(task):
    with connect() as db:
        db.execute("SELECT queue.step(%s, %s, 'locks', 'true')", [task.id, task.token])
        db.execute("SELECT pg_sleep(%s)", [task.payload["seconds"]])
        insert(db, task, "effect")
        task.complete(db)


@worker.handler("plain")
def plain(task):
    return {"n": task.payload["n"]}


@worker.handler("sleep")
def sleep(task):
    record(task, "begun")
    if task.stopped.wait(task.payload["seconds"]):
        record(task, f"stopped: {task.reason}")
        raise Stopped
    record(task, "ended")


@worker.handler("stubborn")
@worker.handler("block")
def stubborn(task):
    record(task, "begun")
    time.sleep(task.payload["seconds"])
    record(task, "ended")


@worker.handler("raise")
def fail(task):
    raise RuntimeError("boom")


@worker.handler("retry")
def retry(task):
    if task.attempt == 1:
        raise Retry(task.payload["seconds"], "later")


@worker.handler("discard")
def discard(task):
    raise Discard("never")


@worker.handler("snooze")
def snooze(task):
    with connect() as db:
        query = "SELECT FROM effects WHERE task = %s AND what = 'snoozed'"
        before = db.execute(query, [task.id]).fetchone()
    if before is None:
        record(task, "snoozed")
        raise Snooze(task.payload["seconds"])


@worker.handler("die")
def die(task):
    os.kill(os.getpid(), signal.SIGKILL)


@worker.handler("stale")
def stale(task):
    with connect() as db:
        insert(db, task, "stale")
        with connect() as operator:
            operator.execute("SELECT queue.end_lease(%s)", [task.id])
        task.complete(db)


def announce():
    worker.ready.wait()
    print("ready", flush=True)


threading.Thread(target=announce, daemon=True).start()
worker.run()
