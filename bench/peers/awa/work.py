"""Runs jobs with awa's own client: work.py JOBS CONCURRENCY"""

import asyncio
import os
import sys
from dataclasses import dataclass

import awa
from handled import Handled

jobs, concurrency = map(int, sys.argv[1:])


@dataclass
class Bench:
    pad: str


async def main():
    client = awa.AsyncClient(os.environ["DATABASE_URL"], max_connections=concurrency + 5)
    finished, handled = asyncio.Event(), Handled(jobs)

    @client.task(Bench, kind="bench", queue="bench")
    async def bench(job):
        if handled.add():
            finished.set()

    await client.start([("bench", concurrency)], poll_interval_ms=50)
    await finished.wait()
    await client.shutdown()
    handled.print()


asyncio.run(main())
