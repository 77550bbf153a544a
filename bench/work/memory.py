"""The memory of one backend over a million calls, and the shared memory of the extension."""

import threading
from pathlib import Path

from .. import pgbench, systems

DATABASE = "bench_memory"


def private_kb(pid):
    """The private memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return None


def run(bench):
    cluster, calls = bench.cluster, bench.scale.memory_calls
    cluster.create_database(DATABASE)
    cluster.psql(DATABASE, systems.OURSELVES.script("install"), {})
    # Commits are not measured, and a million of them take long.
    cluster.query("postgres", f"ALTER DATABASE {DATABASE} SET synchronous_commit = off")
    samples = []
    done = threading.Event()
    watcher = threading.Thread(target=watch, args=(cluster, samples, done))
    watcher.start()
    try:
        pgbench.run(cluster, DATABASE, Path(__file__).with_suffix(".sql"), 1, transactions=calls // 3,
                    variables={"cold": 1})
    finally:
        done.set()
        watcher.join()
        cluster.drop_database(DATABASE)
    shared = {}
    with cluster.connect("postgres") as connection:
        for name, size in connection.execute("SELECT name, allocated_size FROM pg_shmem_allocations"
                                             " WHERE name ILIKE 'queue%%'"):
            shared[name] = size
    # After a tenth of the calls, all permanent allocations have been made.
    warm, end = samples[len(samples) // 10], samples[-1]
    bench.say(f"memory: {warm} kB after a tenth of {calls} calls, {end} kB at the end; shared {shared}")
    return {"calls": calls, "warm_kb": warm, "end_kb": end, "samples_kb": samples, "shared_bytes": shared}


def watch(cluster, samples, done):
    """Records the backend's memory until it exits."""
    pid = None
    while not done.wait(0.25):
        if pid is None:
            pid = cluster.query("postgres", "SELECT max(pid) FROM pg_stat_activity WHERE datname = %s"
                                            " AND application_name = 'pgbench'", DATABASE)
        try:
            size = pid and private_kb(pid)
        except (FileNotFoundError, ProcessLookupError):
            return
        if size:
            samples.append(size)
