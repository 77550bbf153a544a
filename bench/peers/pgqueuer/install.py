"""Makes PgQueuer's tables, as "pgq install" does with its defaults."""

import asyncio

import asyncpg
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries


async def main():
    connection = await asyncpg.connect()
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


asyncio.run(main())
