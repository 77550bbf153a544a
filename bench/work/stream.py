"""A shallow queue under a constant stream: whether its rate falls as dead rows gather, and how high it is.

Each client claims a batch, completes it and pushes as many tasks again, so the depth stays what it was. PgQ shares no work between
consumers: one of its clients consumes, and all push.
"""

from .. import pgbench
from ..measure import payload

DEPTH = 4_000
WORKERS = 64
BATCH = 10
OTHERS = 30  # seconds, for the systems whose rate is only compared


def run(bench):
    return {system.key: one(bench, system) for system in bench.having("stream")}


def one(bench, system):
    cluster, scale = bench.cluster, bench.scale
    system.fill(cluster, DEPTH, payload(100))
    cluster.settle(system.database)
    left = system.left(cluster)
    ran = pgbench.run(cluster, system.database, system.script("stream"), WORKERS,
                      scale.stream_seconds if system.ours else min(OTHERS, scale.stream_seconds),
                      variables={"batch": BATCH, "payload": payload(100)}, every=scale.stream_interval)
    rates = [BATCH * rate for rate in ran["rates"]]
    finished = left + BATCH * ran["count"] - system.left(cluster)
    results = {"rate": finished / ran["seconds"], "rates": rates, "interval": scale.stream_interval, "first": rates[0],
               "last": rates[-1], "ratio": rates[-1] / rates[0]}
    bench.say(f"stream {system.label}: {results}")
    return results
