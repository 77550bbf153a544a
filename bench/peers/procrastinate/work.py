"""Runs jobs with Procrastinate's own worker: work.py JOBS CONCURRENCY

As many connections as jobs at a time, which is what its documents ask for. There are no batches.
"""

import asyncio
import json
import logging
import sys
import time

import procrastinate

jobs, concurrency = map(int, sys.argv[1:])
logging.disable(logging.WARNING)
app = procrastinate.App(connector=procrastinate.PsycopgConnector(min_size=concurrency, max_size=concurrency + 2))
times = []


@app.task(name="bench", queue="bench", pass_context=False)
async def bench(**_):
    times.append(time.perf_counter())


async def main():
    async with app.open_async():
        # It stops when there is nothing left.
        await app.run_worker_async(queues=["bench"], concurrency=concurrency, wait=False,
                                   install_signal_handlers=False)
    assert len(times) == jobs, f"{len(times)} of {jobs} jobs"
    print(json.dumps({"jobs": len(times), "seconds": times[-1] - times[0]}))


asyncio.run(main())
