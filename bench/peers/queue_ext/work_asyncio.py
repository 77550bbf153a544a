"""Runs tasks with queue_ext's library for Python, on an event loop: work_asyncio.py TASKS CONCURRENCY"""

import sys

from handled import PICKUP, Handled
from queue_ext import Worker

tasks, concurrency = map(int, sys.argv[1:])
handled = Handled(tasks)
worker = Worker("", "bench", concurrency=concurrency)


@worker.handler()
async def handle(task):
    if handled.add(task.payload["n"] if PICKUP else None):
        worker.stop()


worker.run()
handled.print()
