"""Runs tasks as an application would, with asyncpg: work.py TASKS CONCURRENCY [BATCH]

There is no client library: a worker is a loop around a statement or two. One at a time that is
complete_and_claim; with batches, claim and complete_many.
"""

import asyncio
import json
import sys
import time

import asyncpg

tasks, concurrency, *batch = map(int, sys.argv[1:])
times = []


async def one_at_a_time(connection):
    claim = await connection.prepare("SELECT id, token, payload FROM queue.claim('1 minute', 'bench')")
    claim_next = await connection.prepare(
        "SELECT id, token, payload FROM queue.complete_and_claim($1, $2, NULL, '1 minute', 'bench')")
    task = await claim.fetchrow()
    while task:
        times.append(time.perf_counter())
        task = await claim_next.fetchrow(task["id"], task["token"])


async def in_batches(connection, size):
    claim = await connection.prepare("SELECT id, token, payload FROM queue.claim('1 minute', 'bench', $1)")
    complete = await connection.prepare("SELECT queue.complete_many($1, $2)")
    while claimed := await claim.fetch(size):
        times.extend([time.perf_counter()] * len(claimed))
        await complete.fetch([task["id"] for task in claimed], [task["token"] for task in claimed])


async def main():
    connections = [await asyncpg.connect() for _ in range(concurrency)]
    work = (in_batches(each, *batch) if batch else one_at_a_time(each) for each in connections)
    await asyncio.gather(*work)
    assert len(times) == tasks, f"{len(times)} of {tasks} tasks"
    print(json.dumps({"jobs": len(times), "seconds": time.perf_counter() - times[0]}))


asyncio.run(main())
