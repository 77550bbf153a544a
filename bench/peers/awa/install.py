"""Makes awa's tables and chooses its queue storage, as the start of a worker does on a fresh database."""

import asyncio
import os

import awa


async def main():
    url = os.environ["DATABASE_URL"]
    await awa.migrate(url)
    client = awa.AsyncClient(url)
    await client.install_queue_storage(schema="awa")
    await client.close()


asyncio.run(main())
