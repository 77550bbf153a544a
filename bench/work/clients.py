"""Jobs a second through each system's own client, with the settings that were fastest here among those that its documentation
offers; and how long a job waits for its handler when 200 are pushed a second."""

import re
import statistics
import subprocess
import time

from .. import systems
from ..measure import COUNTERS, payload
from ..pgbench import quantile

# Of each system: a client, its program, concurrent jobs and further arguments. graphile-worker's 24 are those of its own
# benchmark; Procrastinate becomes slower with more than a few, awa faster up to hundreds, and River up to
# thousands.
LIBRARIES = [
    ("Python, threads", "work_threads.py", [100]),
    ("Python, asyncio", "work_asyncio.py", [100]),
    ("TypeScript", "work.mjs", [100]),
    ("queue work, HTTP", "work_http.py", [100]),
]
CLIENTS = {
    "queue_ext": [*LIBRARIES, ("a loop in Python, one at a time", "loop.py", [24]),
                  ("a loop in Python, batches of 100", "loop.py", [8, 100])],
    "queue_ext_sql_only": LIBRARIES,
    "pg_boss": [("batches of 100", "work.mjs", [8])],
    "graphile_worker": [("local queue of 500", "work.mjs", [24])],
    "river": [("5,000 workers", "work.rs", [5_000])],
    "procrastinate": [("8 at a time", "work.py", [8])],
    "pgqueuer": [("batches of 100", "work.py", [100])],
    "awa": [("200 workers", "work.py", [200])],
}
# Of these, and not of those that have no loop for a single job.
PICKUP = {"queue_ext": LIBRARIES, "queue_ext_sql_only": LIBRARIES,
          **{key: CLIENTS[key] for key in ("pg_boss", "graphile_worker", "river", "procrastinate")}}
# Python clients that take one job at a time need no more for a stable figure.
SLOW = {"procrastinate": 10, "awa": 2, "pgqueuer": 2}
PUSHES = 200  # a second
WARM = 1  # seconds after the first job, which do not count
STARTING = 4  # seconds that a client may take to start


def run(bench):
    """Every client in turn, in rounds. Each must finish exactly its tasks."""
    scale = bench.scale
    results = {}
    for _ in range(scale.client_rounds):
        for name, system, program, arguments in each(bench, CLIENTS):
            try:
                found = one(bench.cluster, system, program, scale.client_tasks // SLOW.get(system.key, 1), arguments)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                bench.say(f"client {name}: {error}")
                results[name] = {"error": str(error)[:300]}
                continue
            bench.say(f"client {name:<40} {found['rate']:>9.0f}/s")
            results.setdefault(name, {"system": system.key, "runs": []}).get("runs", []).append(found)
    for result in results.values():
        for figure in ("rate", "wal_bytes", "commits", "dead_rows"):
            if "runs" in result:
                result[figure] = statistics.median(run[figure] for run in result["runs"])
    return results


def each(bench, clients):
    for system in bench.systems:
        for client, program, arguments in clients.get(system.key, []):
            yield f"{system.label}: {client}", system, system.file(program), arguments


def one(cluster, system, program, tasks, arguments):
    """One run of a client: all tasks, and nothing left."""
    system.fill(cluster, tasks, payload(100))
    cluster.settle(system.database)
    before = cluster.query(system.database, COUNTERS)
    ended = []

    def finish():
        """A job that was handed to its handler is not finished yet."""
        limit = time.monotonic() + 60
        while system.left(cluster) and time.monotonic() < limit:
            time.sleep(0.002)
        ended.append(time.monotonic())

    said = systems.run_client(cluster, system.database, program, tasks, *arguments, handled=finish)
    wal, commits, dead = (float(now - then) for now, then in zip(cluster.query(system.database, COUNTERS), before))
    if left := system.left(cluster):
        raise RuntimeError(f"{left} of {tasks} jobs were left")
    return {"rate": tasks / (ended[0] - said["first"]), "finished": tasks, "wal_bytes": wal / tasks, "commits": commits / tasks,
            "dead_rows": dead / tasks}


def pickup(bench):
    """From the moment at which a push's commit returned to the call of its handler, with an idle client and a steady rate."""
    results = {}
    for name, system, program, arguments in each(bench, PICKUP):
        try:
            results[name] = found = picked_up(bench.cluster, system, program, arguments, bench.scale.pickup_seconds)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            bench.say(f"pickup {name}: {error}")
            results[name] = {"error": str(error)[:300]}
            continue
        bench.say(f"pickup {name:<40} p50 {found['p50_ms']:.2f} ms, p99 {found['p99_ms']:.2f} ms")
    return results


def picked_up(cluster, system, program, arguments, seconds):
    system.fill(cluster, 0, payload(100))
    cluster.settle(system.database)
    jobs = PUSHES * (STARTING + WARM + seconds)
    push = re.sub(r"(?<!:):payload", "%s", (system.script("pickup") if system.has("pickup") else system.script("push")).read_text())
    committed = []
    process = systems.start_client(cluster, system.database, program, jobs, *arguments, pickup=True)
    try:
        with cluster.connect(system.database) as connection:
            started = time.monotonic()
            for n in range(jobs):
                time.sleep(max(0.0, started + n / PUSHES - time.monotonic()))
                connection.execute(push, [f'{{"n": {n}}}'], prepare=True)
                committed.append(time.monotonic())
    except BaseException:
        process.kill()
        raise
    said = systems.await_client(process, program)
    pushed = len(committed) / (committed[-1] - started)
    # A handler can begin before the answer to the commit has arrived.
    waits = sorted(max(0.0, at - committed[n]) * 1000 for n, at in said["at"] if committed[n] > said["first"] + WARM)
    if pushed < 0.97 * PUSHES or len(waits) < PUSHES * seconds:
        raise RuntimeError(f"{pushed:.0f} pushes a second, {len(waits)} measured")
    return {"system": system.key, "pushed": pushed, "samples": len(waits), "p50_ms": quantile(waits, 0.5), "p99_ms": quantile(waits, 0.99),
            "max_ms": waits[-1]}
