"""The contract program of the Python runtime, with handlers that are coroutine functions. runtimes.rs drives it."""

import asyncio
import logging
import os
import signal
import threading
import time

import psycopg

from queue_ext import Discard, Retry, Snooze, Worker

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


async def connect():
    return await psycopg.AsyncConnection.connect(URL, prepare_threshold=None)


async def insert(db, task, what):
    await db.execute("INSERT INTO effects (task, token, what) VALUES (%s, %s, %s)", [task.id, task.token, what])


async def record(task, what):
    async with await connect() as db:
        await insert(db, task, what)


@worker.handler("effect")
async def effect(task):
    async with await connect() as db:
        await insert(db, task, "effect")
        await task.complete_async(db, {"ok": True})


@worker.handler("lock")
async def lock(task):
    async with await connect() as db:
        await db.execute("SELECT queue.step(%s, %s, 'locks', 'true')", [task.id, task.token])
        await db.execute("SELECT pg_sleep(%s)", [task.payload["seconds"]])
        await insert(db, task, "effect")
        await task.complete_async(db)


@worker.handler("plain")
async def plain(task):
    return {"n": task.payload["n"]}


@worker.handler("sleep")
async def sleep(task):
    try:
        await record(task, "begun")
        await asyncio.sleep(task.payload["seconds"])
    except asyncio.CancelledError:
        await record(task, f"stopped: {task.reason}")
        raise
    await record(task, "ended")


@worker.handler("stubborn")
async def stubborn(task):
    await record(task, "begun")
    end = time.monotonic() + task.payload["seconds"]
    while (pause := end - time.monotonic()) > 0:
        try:
            await asyncio.sleep(pause)
        except asyncio.CancelledError:
            pass
    await record(task, "ended")


@worker.handler("block")
async def block(task):
    await record(task, "begun")
    time.sleep(task.payload["seconds"])
    await record(task, "ended")


@worker.handler("raise")
async def fail(task):
    raise RuntimeError("boom")


@worker.handler("retry")
async def retry(task):
    if task.attempt == 1:
        raise Retry(task.payload["seconds"], "later")


@worker.handler("discard")
async def discard(task):
    raise Discard("never")


@worker.handler("snooze")
async def snooze(task):
    async with await connect() as db:
        query = "SELECT FROM effects WHERE task = %s AND what = 'snoozed'"
        before = await (await db.execute(query, [task.id])).fetchone()
    if before is None:
        await record(task, "snoozed")
        raise Snooze(task.payload["seconds"])


@worker.handler("die")
async def die(task):
    os.kill(os.getpid(), signal.SIGKILL)


@worker.handler("stale")
async def stale(task):
    async with await connect() as db:
        await insert(db, task, "stale")
        async with await connect() as operator:
            await operator.execute("SELECT queue.end_lease(%s)", [task.id])
        await task.complete_async(db)


def announce():
    worker.ready.wait()
    print("ready", flush=True)


async def main():
    await worker.run_async()
    # asyncio.run would wait for handlers that ignore the stop, although their tasks are released.
    os._exit(0)


threading.Thread(target=announce, daemon=True).start()
asyncio.run(main())
