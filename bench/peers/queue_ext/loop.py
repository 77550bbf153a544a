"""A loop of one's own around the functions, with asyncpg: loop.py TASKS CONCURRENCY [BATCH]

Without heartbeats and the rest of what the libraries do. One at a time it uses complete_and_claim; with batches, claim and
complete_many.
"""

import asyncio
import sys

import asyncpg
from handled import Handled

tasks, concurrency, *batch = map(int, sys.argv[1:])
handled = Handled(tasks)


async def one_at_a_time(connection):
    claim = await connection.prepare("SELECT id, token, payload FROM queue.claim('1 minute', 'bench')")
    claim_next = await connection.prepare(
        "SELECT id, token, payload FROM queue.complete_and_claim($1, $2, NULL, '1 minute', 'bench')")
    task = await claim.fetchrow()
    while task:
        handled.add()
        task = await claim_next.fetchrow(task["id"], task["token"])


async def in_batches(connection, size):
    claim = await connection.prepare("SELECT id, token, payload FROM queue.claim('1 minute', 'bench', $1)")
    complete = await connection.prepare("SELECT queue.complete_many($1, $2)")
    while claimed := await claim.fetch(size):
        for _ in claimed:
            handled.add()
        await complete.fetch([task["id"] for task in claimed], [task["token"] for task in claimed])


async def main():
    connections = [await asyncpg.connect() for _ in range(concurrency)]
    work = (in_batches(each, *batch) if batch else one_at_a_time(each) for each in connections)
    await asyncio.gather(*work)
    handled.print()


asyncio.run(main())
