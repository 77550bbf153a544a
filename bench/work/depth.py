"""The cost of a claim, and of what monitoring reads, with very many tasks in the queue, queued or scheduled.

Claims are measured in three databases in turn: one with few tasks, one with many queued, one with as many scheduled and
a few due. The time is that of the claim's statement as its caller sees it, without the commit. Monitoring is measured
with many queued, and in a fourth database with the SQL-only edition.
"""

import time
from concurrent.futures import ThreadPoolExecutor

from .. import systems
from ..measure import payload
from ..pgbench import quantile

FEW = 10_000
CHUNK = 1_000_000
PUSH = "INSERT INTO queue.tasks (queue, payload, run_at) SELECT 'bench', %s::jsonb, {} FROM generate_series(1, %s) AS i"
MONITORING = {"queue.stats": "TABLE queue.stats", "queue.workers": "TABLE queue.workers",
              "queue.health()": "SELECT * FROM queue.health()", "CALL queue.maintain()": "CALL queue.maintain()"}
DUE, LATER = "clock_timestamp()", "clock_timestamp() + interval '1 day' + i * interval '1 millisecond'"


def run(bench):
    deep = bench.scale.deep_tasks
    databases = {"few": [(DUE, FEW)], "queued": [(DUE, deep)], "scheduled": [(LATER, deep), (DUE, FEW)], "sql_only": [(DUE, deep)]}
    claims = ["few", "queued", "scheduled"]
    for name in databases:
        bench.cluster.create_database(f"bench_depth_{name}")
    try:
        # In parallel, because loading takes most of the time and is not measured.
        with ThreadPoolExecutor() as loaders:
            started = [loaders.submit(load, bench, f"bench_depth_{name}", loads) for name, loads in databases.items()]
            for each in started:
                each.result()
        bench.cluster.settle("postgres")
        times = sample(bench.cluster, [f"bench_depth_{name}" for name in claims], bench.scale.deep_samples)
        monitoring = {edition: monitor(bench.cluster, f"bench_depth_{name}")
                      for edition, name in (("queue_ext", "queued"), ("queue_ext_sql_only", "sql_only"))}
    finally:
        for name in databases:
            bench.cluster.drop_database(f"bench_depth_{name}")
    results = {name: {"p50_ms": quantile(each, 0.5), "p99_ms": quantile(each, 0.99)}
               for name, each in zip(claims, times)}
    for name in ("queued", "scheduled"):
        results[name]["ratio"] = results[name]["p50_ms"] / results["few"]["p50_ms"]
    bench.say("depth " + ", ".join(f"{name} {each['p50_ms']:.3f} ms" for name, each in results.items()))
    bench.say(f"depth {monitoring}")
    return {**results, "monitoring": monitoring, "tasks": deep, "against": FEW}


def load(bench, database, loads):
    """A database with the extension and the tasks."""
    system = systems.SQL_ONLY if database.endswith("sql_only") else systems.OURSELVES
    bench.cluster.psql(database, system.script("install"), {})
    with bench.cluster.connect(database) as connection:
        connection.execute("SET synchronous_commit = off")
        for run_at, tasks in loads:
            for start in range(0, tasks, CHUNK):
                connection.execute(PUSH.format(run_at), [payload(100), min(CHUNK, tasks - start)])
    bench.cluster.settle(database)
    bench.say(f"depth {database} is loaded")


def monitor(cluster, database):
    """The median time of each query, in milliseconds, after maintenance and a first read, which count the tasks. A few tasks
    run meanwhile."""
    medians = {}
    with cluster.connect(database) as connection:
        connection.execute("SELECT queue.claim('1 hour', 'bench', 10)")
        connection.execute("CALL queue.maintain()")
        for name, query in MONITORING.items():
            times = []
            for _ in range(6):
                start = time.perf_counter()
                connection.execute(query)
                times.append((time.perf_counter() - start) * 1000)
            medians[name] = quantile(sorted(times[1:]), 0.5)
    return medians


def sample(cluster, databases, samples):
    """The sorted times of claims, in milliseconds, per database; one claim from each in turn."""
    connections = [cluster.connect(database, autocommit=False) for database in databases]
    times = [[] for _ in databases]
    for number in range(-50, samples):  # The first fifty are to warm up.
        for connection, found in zip(connections, times):
            connection.execute("SELECT 1")  # The transaction is begun before the clock runs.
            start = time.perf_counter()
            task = connection.execute("SELECT id, token FROM queue.claim('1 minute', 'bench')", prepare=True).fetchone()
            taken = (time.perf_counter() - start) * 1000
            connection.execute("SELECT queue.complete(%s, %s)", task, prepare=True)
            connection.commit()
            if number >= 0:
                found.append(taken)
    for connection in connections:
        connection.close()
    return [sorted(found) for found in times]
