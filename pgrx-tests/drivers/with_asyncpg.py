"""Makes the calls that it reads with asyncpg, in the mode that its argument names."""

import asyncio
import os
import sys

import asyncpg
from calls import batches, tell_error, tell_rows


async def main(mode):
    # Through PgBouncer, whose server connections do not know each other's statements, no statement is kept.
    kept = {"statement_cache_size": 0} if mode == "pooled" else {}
    connection = await asyncpg.connect(os.environ["DATABASE_URL"], **kept)
    for batch in batches():
        for statement, arguments in batch:
            try:
                tell_rows(await connection.fetch(statement, *arguments))
            except asyncpg.PostgresError as error:
                tell_error(error.sqlstate)


asyncio.run(main(sys.argv[1]))
