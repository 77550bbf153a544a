"""Runs jobs with Procrastinate's own worker: work.py JOBS CONCURRENCY

As many connections as jobs at a time, which is what its documents ask for. There are no batches. It is notified of new jobs.
"""

import asyncio
import logging
import sys

import procrastinate
from handled import Handled

jobs, concurrency = map(int, sys.argv[1:])
logging.disable(logging.WARNING)
app = procrastinate.App(connector=procrastinate.PsycopgConnector(min_size=concurrency, max_size=concurrency + 2))
handled, finished = Handled(jobs), asyncio.Event()


@app.task(name="bench", queue="bench", pass_context=False)
async def bench(n=None, **_):
    if handled.add(n):
        finished.set()


async def main():
    async with app.open_async():
        worker = asyncio.create_task(
            app.run_worker_async(queues=["bench"], concurrency=concurrency, install_signal_handlers=False))
        await asyncio.wait([worker, asyncio.create_task(finished.wait())], return_when=asyncio.FIRST_COMPLETED)
        # It ends the jobs that are running first.
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    handled.print()


asyncio.run(main())
