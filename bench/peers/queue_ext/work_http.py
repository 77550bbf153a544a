"""Runs tasks with the program queue, which sends each to this HTTP server: work_http.py TASKS CONCURRENCY"""

import asyncio
import json
import re
import sys

from handled import PICKUP, Handled

tasks, concurrency = map(int, sys.argv[1:])
handled = Handled(tasks)
length = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


async def main():
    finished = asyncio.Event()

    async def serve(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(int(length.search(head)[1]))
                if handled.add(json.loads(body)["n"] if PICKUP else None):
                    finished.set()
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # The connection is over.
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    worker = await asyncio.create_subprocess_exec(
        "target/release/queue", "work", "bench", "--http", f"http://127.0.0.1:{port}/", "--concurrency", str(concurrency),
        stderr=asyncio.subprocess.PIPE)
    log = asyncio.create_task(worker.stderr.read())
    ended = asyncio.create_task(worker.wait())
    await asyncio.wait([ended, asyncio.create_task(finished.wait())], return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        worker.terminate()
    if await ended:
        raise SystemExit((await log).decode())
    handled.print()


asyncio.run(main())
