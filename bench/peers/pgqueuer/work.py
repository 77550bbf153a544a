"""Runs jobs with PgQueuer's own queue manager: work.py JOBS CONCURRENCY

asyncpg is the faster of its drivers, according to its documentation. Its unit of concurrency is the batch of a
dequeue; one manager with one connection has a batch for every worker asked for.
"""

import asyncio
import logging
import sys
from datetime import timedelta

import asyncpg
from handled import Handled
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver

jobs, concurrency = map(int, sys.argv[1:])
logging.disable(logging.WARNING)
handled = Handled(jobs)


async def main():
    connection = await asyncpg.connect()
    queuer = PgQueuer(AsyncpgDriver(connection))

    @queuer.entrypoint("bench")
    async def bench(job):
        if handled.add():
            queuer.shutdown.set()

    await queuer.run(batch_size=max(concurrency, 10), dequeue_timeout=timedelta(seconds=1))
    handled.print()


asyncio.run(main())
