"""A worker: claims letters, prints them page by page, and sends each exactly once.

    DATABASE_URL=postgresql://localhost/shop python worker.py mailer-1
"""

import asyncio
import json
import os
import signal
import sys

import asyncpg

LOST = ("QX001", "QX003")  # Another worker has the task, or has finished it.


async def handle(db, task, stopping):
    letter = json.loads(task["payload"])
    lease = task["id"], task["token"]
    for page in range(1, letter.get("pages", 1) + 1):
        await asyncio.sleep(0.02)  # The work, a piece at a time.
        extend = "SELECT * FROM queue.extend($1, $2, progress => jsonb_build_object('page', $3::int))"
        if (await db.fetchrow(extend, *lease, page))["cancel_requested"]:
            await db.execute("SELECT queue.confirm_cancel($1, $2)", *lease)
            return
        if stopping.is_set():
            await db.execute("SELECT queue.release($1, $2)", *lease)
            return
    # What the work writes commits together with the task, or not at all.
    async with db.transaction():
        await db.execute("INSERT INTO letters_sent (address) VALUES ($1)", letter["to"])
        await db.execute("SELECT queue.complete($1, $2)", *lease)


async def report(db, task, error):
    try:
        await db.execute("SELECT queue.fail($1, $2, $3)", task["id"], task["token"], repr(error))
    except asyncpg.PostgresError as refused:
        if refused.sqlstate not in LOST:
            raise
        print(f"task {task['id']}: {refused}", file=sys.stderr)


async def main(url, name):
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    db = await asyncpg.connect(url)
    while not stopping.is_set():
        task = await db.fetchrow("SELECT * FROM queue.claim(worker => $1)", name)
        if task is None:
            await db.execute("CALL queue.wait(timeout => '1 second')")
            continue
        try:
            await handle(db, task, stopping)
        except Exception as error:
            await report(db, task, error)
    await db.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["DATABASE_URL"], sys.argv[1]))
