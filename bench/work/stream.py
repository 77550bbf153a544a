"""A shallow queue under a constant stream: whether its rate falls as dead rows gather.

Each client claims a batch, completes it and pushes as many tasks again, so the depth stays what it was.
"""

from .. import pgbench, systems
from ..measure import payload

DEPTH = 4_000
WORKERS = 64
BATCH = 10


def run(bench):
    return {system.key: one(bench, system) for system in (systems.OURSELVES, systems.SQL_ONLY)
            if system in bench.systems}


def one(bench, system):
    cluster, scale = bench.cluster, bench.scale
    system.fill(cluster, DEPTH, payload(100))
    cluster.settle(system.database)
    ran = pgbench.run(cluster, system.database, system.script("stream"), WORKERS, scale.stream_seconds,
                      variables={"batch": BATCH, "payload": payload(100)}, every=scale.stream_interval)
    rates = [BATCH * rate for rate in ran["rates"]]
    results = {"rates": rates, "interval": scale.stream_interval, "first": rates[0], "last": rates[-1],
               "ratio": rates[-1] / rates[0]}
    bench.say(f"stream {system.label}: {results}")
    return results
