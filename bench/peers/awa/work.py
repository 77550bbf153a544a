"""Runs jobs with awa's own client: work.py JOBS CONCURRENCY"""

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass

import awa

jobs, concurrency = map(int, sys.argv[1:])


@dataclass
class Bench:
    pad: str


async def main():
    client = awa.AsyncClient(os.environ["DATABASE_URL"], max_connections=concurrency + 5)
    finished = asyncio.Event()
    times = []

    @client.task(Bench, kind="bench", queue="bench")
    async def bench(job):
        times.append(time.perf_counter())
        if len(times) == jobs:
            finished.set()

    await client.start([("bench", concurrency)], poll_interval_ms=50)
    await finished.wait()
    await client.shutdown()
    print(json.dumps({"jobs": len(times), "seconds": times[-1] - times[0]}))


asyncio.run(main())
