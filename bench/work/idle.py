"""Many idle waiting workers: their cost, what they hold back, and which of them a push wakes."""

import select
import time
from pathlib import Path

from .. import systems
from .waiting import DATABASE, has_wait

WAIT = b"CALL queue.wait('bench', '120 seconds')"


def cpu_seconds(pid):
    """The processor time of a process so far. From the scheduler's statistics, because clock ticks do
    not count processes that use very little."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def run(bench):
    cluster, scale = bench.cluster, bench.scale
    if not has_wait(cluster):
        bench.say("idle: there is no queue.wait")
        return {"absent": "there is no queue.wait"}
    systems.OURSELVES.fill(cluster, 0, "{}")
    waiters = [cluster.connect(DATABASE) for _ in range(scale.waiters)]
    pids = [waiter.info.backend_pid for waiter in waiters]
    try:
        for waiter in waiters:
            waiter.pgconn.send_query(WAIT)
        # What a session does before it sleeps for the first time, such as planning, is not what waiting costs.
        while cluster.query(DATABASE, "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s)"
                                      " AND wait_event_type IS DISTINCT FROM 'Extension'", pids):
            time.sleep(0.1)
        before = sum(map(cpu_seconds, pids))
        time.sleep(scale.waiter_seconds)
        cpu = sum(map(cpu_seconds, pids)) - before
        holding = cluster.query(DATABASE, "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s)"
                                          " AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)", pids)
        returned = len(woken(waiters, 0))
        cluster.query(DATABASE, "SELECT queue.push('bench')")
        # Like a worker, the first one claims the task. If it did not, others would be woken for it.
        first = woken(waiters, 1000)[0]
        first.pgconn.get_result(), first.pgconn.get_result()
        first.execute("SELECT id FROM queue.claim('1 minute', 'bench')")
        time.sleep(1)
        woke = 1 + len(woken([waiter for waiter in waiters if waiter is not first], 0)) - returned
    finally:
        for waiter in waiters:
            waiter.cancel()
            waiter.close()
    results = {"waiters": len(waiters), "seconds": scale.waiter_seconds, "cpu_seconds": cpu,
               "cpu_share": cpu / scale.waiter_seconds, "holding_xmin": holding, "woken_early": returned, "woken": woke}
    bench.say(f"idle: {results}")
    return results


def woken(waiters, milliseconds):
    """The sessions that have returned, or return within that time."""
    poll = select.poll()
    for waiter in waiters:
        poll.register(waiter.pgconn.socket, select.POLLIN)
    ready = {socket for socket, _ in poll.poll(milliseconds)}
    return [waiter for waiter in waiters if waiter.pgconn.socket in ready]
