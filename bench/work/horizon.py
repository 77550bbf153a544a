"""The rate while an open transaction holds back vacuum.

The rate is measured before, and again after every so many more finished tasks. What lies between is
finished in large batches, which leave the same dead rows in less time. One measurement of four seconds can differ by a
fifth from the next, so the rates before and at the end are medians of three.
"""

from statistics import median

from .. import pgbench, systems
from ..measure import payload

WORKERS = 8
BATCH = 1000
BATCH_CLIENTS = 2
GROUPS = 1_000
REPEATED = 3


def run(bench):
    return {system.key: one(bench, system) for system in (systems.OURSELVES, systems.SQL_ONLY, systems.SKIP_LOCKED)
            if system in bench.systems}


def groups(bench):
    """The same with tasks in so many groups, each of which runs one at a time."""
    return {system.key: one(bench, system, GROUPS) for system in (systems.OURSELVES, systems.SQL_ONLY) if system in bench.systems}


def one(bench, system, groups=0):
    """The curve of one system: rate by the number of tasks finished since the transaction began."""
    cluster, scale = bench.cluster, bench.scale
    seconds = min(scale.seconds, 4)
    total = scale.pinned_tasks // (5 if groups else 1)
    # The rates are measured with tasks beyond those that are finished in between.
    measured = (scale.pinned_steps + 2 + REPEATED) * seconds * 10_000
    system.fill(cluster, total + total // scale.pinned_steps + measured, payload(100), groups)
    cluster.settle(system.database)

    def rate():
        left = system.left(cluster)
        ran = pgbench.run(cluster, system.database, system.script("one"), WORKERS, seconds)
        return (left - system.left(cluster)) / ran["seconds"]

    def finish(tasks):
        """At least so many, in large batches."""
        if tasks > 0:
            pgbench.run(cluster, system.database, system.script("batch"), BATCH_CLIENTS,
                        transactions=-(-tasks // (BATCH * BATCH_CLIENTS)), variables={"batch": BATCH})

    # The first run after a checkpoint writes full pages to the WAL. It must not be the run with which later ones are
    # compared.
    finish(total // scale.pinned_steps)
    unpinned = median(rate() for _ in range(REPEATED))
    bench.say(f"horizon {system.label}{', groups' if groups else ''}: {unpinned:.0f}/s before")
    curve = []
    with cluster.connect(system.database, autocommit=False) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT pg_current_xact_id()")
        start = system.left(cluster)
        for step in range(1, scale.pinned_steps + 1):
            finish(total * step // scale.pinned_steps - (start - system.left(cluster)))
            finished = start - system.left(cluster)
            curve.append([finished, rate()])
            bench.say(f"horizon {system.label}{', groups' if groups else ''}: {curve[-1][1]:.0f}/s after {finished} tasks")
    pinned = median(measured for _, measured in curve[-REPEATED:])
    return {"unpinned": unpinned, "curve": curve, "pinned": pinned, "ratio": pinned / unpinned}
