"""Makes Procrastinate's tables, as "procrastinate schema --apply" does."""

import asyncio

import procrastinate

app = procrastinate.App(connector=procrastinate.PsycopgConnector())


async def main():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


asyncio.run(main())
