"""One run of one system: loaded, settled, measured, checked. And several systems in turn."""

import base64
import random
import statistics

from . import pgbench

# The server's counters during a run. Each update or delete leaves one dead row version.
COUNTERS = """
    SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn,
           (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),
           (SELECT coalesce(sum(n_tup_upd + n_tup_del), 0) FROM pg_stat_user_tables)
"""


def payload(size):
    """A JSON object of about that many bytes, which does not compress, and is the same every time."""
    noise = random.Random(size).randbytes(size)
    return '{"pad": "%s"}' % base64.b64encode(noise).decode()[: max(size - 11, 1)]


class Starved(pgbench.Failed):
    """The run finished all tasks before its time was over."""


def one(cluster, system, script, clients, seconds, tasks, size=100, batch=1, fill=True):
    """Loads the tasks, runs the script against them, and returns the rate and the costs per task."""
    if fill:
        system.fill(cluster, tasks, payload(size))
        cluster.settle(system.database)
    # A push finishes no task, so transactions are counted.
    counted = system.counts_tasks and script != "push"
    left = system.left(cluster)
    before, processor = cluster.query(system.database, COUNTERS), cluster.processor_seconds()
    clients = system.batch_clients if batch > 1 and system.batch_clients else clients
    try:
        ran = pgbench.run(cluster, system.database, system.script(script), clients, seconds, latencies=True, role=system.role,
                          variables={"batch": batch, "payload": payload(size), "id": 0, "token": 0})
    except pgbench.Failed:
        # The probable reason: a claim that finds nothing ends its client.
        if counted and system.left(cluster) < clients * batch:
            raise Starved(f"{system.key}: {left} tasks were too few for {seconds} seconds") from None
        raise
    processor = cluster.processor_seconds() - processor
    wal, commits, dead = (now - then for now, then in zip(cluster.query(system.database, COUNTERS), before))
    if counted:
        remaining = system.left(cluster)
        finished = left - remaining
        if remaining < clients * batch:
            raise Starved(f"{system.key}: {left} tasks were too few for {seconds} seconds")
    else:
        finished = ran["count"]
    if not finished:
        raise pgbench.Failed(f"{system.key}: finished nothing in {seconds} seconds")
    return {
        "rate": finished / ran["seconds"],
        "finished": finished,
        "per_cpu_second": finished / processor if processor else None,
        "p50_ms": pgbench.quantile(ran["latencies"], 0.5),
        "p99_ms": pgbench.quantile(ran["latencies"], 0.99),
        "wal_bytes": float(wal) / finished,
        "commits": commits / finished,
        "dead_rows": float(dead) / finished,
    }


def in_turn(cluster, systems, rounds, say, script, clients, seconds, tasks, size=100, batch=1):
    """A B A B: each round runs every system once. Returns the medians of the rounds per system.

    A system whose tasks run out gets more and the round again. One that fails is left out from then
    on, with its error in its place.
    """
    runs = {system.key: [] for system in systems}
    errors = {}
    load = {system.key: tasks for system in systems}
    for _ in range(rounds):
        for system in systems:
            while system.key not in errors:
                try:
                    result = one(cluster, system, script, clients, seconds, load[system.key], size, batch)
                except Starved as short:
                    if load[system.key] > 20 * tasks:
                        errors[system.key] = str(short)
                    load[system.key] *= 2
                except (pgbench.Failed, RuntimeError) as error:
                    errors[system.key] = str(error)
                else:
                    runs[system.key].append(result)
                    say(f"{script} {clients:>3} workers {size:>6} B  {system.label:<28} {result['rate']:>9.0f}/s")
                    break
            else:
                say(f"{script} {clients:>3} workers  {system.label}: {errors[system.key]}")
    return {key: {"error": errors[key]} if key in errors else medians(list_) for key, list_ in runs.items()}


def medians(runs):
    """The median of every figure, and the rates of all rounds."""
    middle = {name: statistics.median(run[name] for run in runs) for name in runs[0] if runs[0][name] is not None}
    return {**middle, "rounds": [run["rate"] for run in runs]}
