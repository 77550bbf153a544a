"""Loads jobs into awa with its client's COPY: fill.py JOBS PAYLOAD"""

import asyncio
import json
import os
import sys

import awa


async def main(jobs, payload):
    client = awa.AsyncClient(os.environ["DATABASE_URL"])
    for start in range(0, jobs, 10_000):
        await client.enqueue_many_copy([payload] * min(10_000, jobs - start), kind="bench", queue="bench")
    await client.close()


asyncio.run(main(int(sys.argv[1]), json.loads(sys.argv[2])))
