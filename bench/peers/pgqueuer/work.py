"""Runs jobs with PgQueuer's own queue manager: work.py JOBS CONCURRENCY

asyncpg is the faster of its drivers, according to its documentation. Its unit of concurrency is the batch of a
dequeue; one manager with one connection has a batch for every worker asked for.
"""

import asyncio
import json
import logging
import sys
import time
from datetime import timedelta

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver

jobs, concurrency = map(int, sys.argv[1:])
logging.disable(logging.WARNING)
times = []


async def main():
    connection = await asyncpg.connect()
    queuer = PgQueuer(AsyncpgDriver(connection))

    @queuer.entrypoint("bench")
    async def bench(job):
        times.append(time.perf_counter())
        if len(times) == jobs:
            queuer.shutdown.set()

    await queuer.run(batch_size=max(concurrency, 10), dequeue_timeout=timedelta(seconds=1))
    print(json.dumps({"jobs": len(times), "seconds": times[-1] - times[0]}))


asyncio.run(main())
