"""Jobs a second through each system's own client, with the settings that were fastest here
among those that its documentation offers."""

import statistics
import subprocess

from .. import systems
from ..measure import COUNTERS, payload

# Concurrent jobs, and further arguments of the program. graphile-worker's 24 are those of its own benchmark; Procrastinate
# becomes slower with more than a few, and awa faster up to hundreds.
SETTINGS = {
    "queue_ext": [("one at a time", [24]), ("batches of 100", [8, 100])],
    "queue_ext_sql_only": [("one at a time", [24]), ("batches of 100", [8, 100])],
    "pg_boss": [("batches of 100", [8])],
    "graphile_worker": [("local queue of 500", [24])],
    "procrastinate": [("one at a time", [8])],
    "pgqueuer": [("batches of 100", [100])],
    "awa": [("200 workers", [200])],
}
# Python clients that take one job at a time need no more for a stable figure.
SLOW = {"procrastinate": 10, "awa": 2, "pgqueuer": 2}


def run(bench):
    """Every client in turn, in rounds. Each must finish exactly its tasks."""
    scale = bench.scale
    results = {}
    for _ in range(scale.client_rounds):
        for system in bench.systems:
            if not system.client:
                continue
            for setting, arguments in SETTINGS[system.key]:
                name = f"{system.label}, {setting}"
                try:
                    found = one(bench.cluster, system, scale.client_tasks // SLOW.get(system.key, 1), arguments)
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


def one(cluster, system, tasks, arguments):
    """One run of a client: all tasks, and nothing left."""
    system.fill(cluster, tasks, payload(100))
    cluster.settle(system.database)
    before = cluster.query(system.database, COUNTERS)
    said = systems.run_client(cluster, system.database, system.client, tasks, *arguments)
    wal, commits, dead = (float(now - then) for now, then in zip(cluster.query(system.database, COUNTERS), before))
    if left := system.left(cluster):
        raise RuntimeError(f"{left} of {tasks} jobs were left")
    return {"rate": tasks / said["seconds"], "finished": tasks, "wal_bytes": wal / tasks, "commits": commits / tasks,
            "dead_rows": dead / tasks}
