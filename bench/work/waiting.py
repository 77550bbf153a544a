"""The time until an idle worker gets a task that was pushed, became due, or whose lease expired.

The worker is another process, which sleeps in CALL queue.wait, and claims when that returns. If there is
no such procedure, it polls every two milliseconds instead, and the results show that.
"""

import multiprocessing
import random
import time

from .. import systems
from ..pgbench import quantile

DATABASE = systems.OURSELVES.database
CLAIM = """
    SELECT id, token, extract(epoch FROM clock_timestamp())::float8, extract(epoch FROM run_at)::float8
    FROM queue.claim('1 minute', 'bench')
"""
SPACING = 0.02


def has_wait(cluster):
    """Whether the extension can wait."""
    return cluster.query(DATABASE, "SELECT count(*) > 0 FROM pg_proc"
                                   " WHERE pronamespace = 'queue'::regnamespace AND proname = 'wait'")


def worker(cluster, waits, pipe):
    """The idle worker: reports every task that it claimed, with the time."""
    with cluster.connect(DATABASE) as connection:
        connection.execute("SELECT 1")
        pipe.send("ready")
        while True:
            task = connection.execute(CLAIM, prepare=True).fetchone()
            now = time.monotonic()
            if task:
                pipe.send((task[0], now, task[2], task[3]))
                connection.execute("SELECT queue.complete(%s, %s)", task[:2], prepare=True)
            elif waits:
                connection.execute("CALL queue.wait('bench', '30 seconds')")
            else:
                time.sleep(0.002)


def run(bench):
    cluster, scale = bench.cluster, bench.scale
    waits = has_wait(cluster)
    systems.OURSELVES.fill(cluster, 0, "{}")
    cluster.settle(DATABASE)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=worker, args=(cluster, waits, theirs), daemon=True)
    process.start()
    try:
        ours.recv()
        with cluster.connect(DATABASE) as connection:
            results = {
                "method": "CALL queue.wait" if waits else "polled every 2 ms: there is no queue.wait",
                "push": pushed(connection, ours, scale.wake_samples),
                "run_at": due(connection, ours, scale.timing_samples),
                "lease": expired(connection, ours, scale.timing_samples),
            }
    finally:
        process.terminate()
        process.join()
    for name in ("push", "run_at", "lease"):
        bench.say(f"waiting {name}: p50 {results[name]['p50_ms']:.2f} ms, p99 {results[name]['p99_ms']:.2f} ms")
    return results


def told(pipe, limit=30):
    """The next report of the worker."""
    if not pipe.poll(limit):
        raise RuntimeError(f"the worker claimed nothing for {limit} seconds")
    return pipe.recv()


def summary(times):
    ordered = sorted(times)
    return {"p50_ms": quantile(ordered, 0.5), "p99_ms": quantile(ordered, 0.99), "samples": len(ordered)}


def pushed(connection, pipe, samples):
    """From the moment at which the push's commit returned to the moment at which the claim did."""
    times = []
    pause = random.Random(1)
    for _ in range(samples):
        time.sleep(pause.uniform(0.002, 0.006))  # The worker is back in its sleep, and at no fixed beat.
        connection.execute("SELECT queue.push('bench')", prepare=True)
        committed = time.monotonic()
        times.append(max(0.0, (told(pipe)[1] - committed) * 1000))
    return summary(times)


def due(connection, pipe, samples):
    """From run_at to the claim, by the server's clock."""
    for number in range(samples):
        connection.execute("SELECT queue.push('bench', delay => %s * interval '1 second')", [1 + number * SPACING])
    return summary((now - run_at) * 1000 for _, _, now, run_at in (told(pipe) for _ in range(samples)))


def expired(connection, pipe, samples):
    """From the end of a lease to the next claim of the task, by the server's clock."""
    ends = {}
    for number in range(samples):
        # Pushed and claimed in one transaction, so that the worker does not get it first.
        with connection.transaction():
            connection.execute("SELECT queue.push('bench')")
            lease = connection.execute(
                "SELECT id, extract(epoch FROM lease_until)::float8"
                " FROM queue.claim(%s * interval '1 second', 'bench')", [1 + number * SPACING]).fetchone()
        ends[lease[0]] = lease[1]
    told_of = (told(pipe) for _ in range(samples))
    return summary((now - ends[task]) * 1000 for task, _, now, _ in told_of)
