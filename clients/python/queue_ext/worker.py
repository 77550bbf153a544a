"""A worker: its handlers, how it is started and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import queue
import socket
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any, Callable, Sequence, TypeVar

import psycopg

from .connection import Connect
from .drain import Drain
from .handlers import Around, Handler, Handlers
from .log import logger
from .run import STOP, Run, Settings
from .signals import calling
from .values import Delay, to_seconds

H = TypeVar("H", bound=Handler)
A = TypeVar("A", bound=Around)

# The first worker of a process needs none.
_suffixes = itertools.chain([""], (f"/{n}" for n in itertools.count(2)))


class Worker:
    """Claims tasks from queues and calls a handler for each, many at a time.

    - connection: a connection string, or a function that returns a new connection of psycopg.
    - queues: the name of a queue, or names in the order of preference.
    - concurrency: how many tasks are handled at a time.
    - lease: how long a task waits if this process dies. None means the lease of the task or of its queue.
    - heartbeat: the longest time between two heartbeats, which extend the leases. A third of a short lease is sooner.
    - shutdown_timeout: how long handlers may go on after the worker was told to stop.
    - name: shown by queue.workers, and in the errors of tasks. The default has the host's name and the process id, and
      a number from the second worker of a process on.

    Times are numbers of seconds or timedeltas. "ready" is set after the first claim that has succeeded. A worker runs once.
    """

    def __init__(
        self,
        connection: Connect,
        queues: str | Sequence[str] = "default",
        *,
        concurrency: int = 10,
        lease: Delay | None = None,
        heartbeat: Delay = 10,
        shutdown_timeout: Delay = 30,
        name: str | None = None,
    ) -> None:
        if isinstance(connection, str):
            psycopg.conninfo.conninfo_to_dict(connection)  # raises an error if it is malformed
        queues = [queues] if isinstance(queues, str) else list(queues)
        if not queues:
            raise ValueError("a worker needs at least one queue")
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        if lease is not None and not 0 < to_seconds(lease) < float("inf"):
            raise ValueError("lease must be a finite time of more than 0 seconds")
        if not to_seconds(heartbeat) > 0:  # nor NaN
            raise ValueError("heartbeat must be more than 0 seconds")
        if not to_seconds(shutdown_timeout) >= 0:
            raise ValueError("shutdown_timeout must be at least 0 seconds")
        self._settings = Settings(
            connect=connection,
            queues=queues,
            concurrency=concurrency,
            lease=None if lease is None else timedelta(seconds=to_seconds(lease)),
            heartbeat=to_seconds(heartbeat),
            shutdown_timeout=to_seconds(shutdown_timeout),
            name=name or "",
        )
        self.ready = threading.Event()
        self._handlers = Handlers()
        # Signal handlers put messages into it. Unlike other queues and locks, it is safe to use there.
        self._commands: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._started = False

    def handler(self, kind: str | None = None) -> Callable[[H], H]:
        """Decorates the handler of a kind of tasks; without a kind, the handler of all tasks that have no other.

        A handler takes a Task. What it returns is the result of the task, any JSON value. Coroutine functions run on an
        event loop, other functions in threads."""

        def register(handler: H) -> H:
            self._check_not_started()
            self._handlers.add(kind, handler)
            return handler

        return register

    def around(self, hook: A) -> A:
        """Decorates a function that is called as hook(task, call) and returns what call() returns, for tracing and metrics.

        Coroutine functions go around handlers that are coroutine functions, and await call(); others around others."""
        self._check_not_started()
        self._handlers.add_around(hook)
        return hook

    def run(self, *, signals: bool = True) -> None:
        """Works until stop() is called, or, in the main thread, until SIGTERM or SIGINT. Handlers that are coroutine functions
        share an event loop in a thread of its own."""
        loop = self._new_loop() if self._handlers.any_is_async() else None
        try:
            with calling(self.stop) if signals else contextlib.nullcontext():
                self._new_run(loop).run()
        finally:
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)

    async def run_async(self, *, signals: bool = True) -> None:
        """The same on the event loop of the caller. If it is cancelled, it stops gracefully before it returns."""
        loop = asyncio.get_running_loop()
        run, done = self._new_run(loop, asyncio.current_task()), loop.create_future()

        def supervise() -> None:
            error: BaseException | None = None
            try:
                run.run()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # somebody has closed the loop
                loop.call_soon_threadsafe(lambda: done.set_exception(error) if error else done.set_result(None))

        cancelled: asyncio.CancelledError | None = None
        with calling(self.stop) if signals else contextlib.nullcontext():
            threading.Thread(target=supervise, name="queue_ext worker", daemon=True).start()
            while not done.done():
                try:
                    await asyncio.wait([done])
                except asyncio.CancelledError as error:
                    cancelled = error
                    self.stop()
        if cancelled is not None:
            raise cancelled
        done.result()

    def stop(self) -> None:
        """Makes run() return after the handlers have ended. A second call makes it release their tasks at once. Can be called
        from any thread and from a signal handler."""
        self._commands.put(STOP)

    def drain(self, connection: Any, *, raise_errors: bool = False, limit: int = 10_000) -> int:
        """For tests: handles all due tasks, one after the other, on the caller's connection and in its transaction.

        Returns how many times a handler was called. With raise_errors an error of a handler is raised and not recorded. A
        task that becomes due again and again ends it at the limit."""
        return Drain(self._settings_of_run(), self._handlers, raise_errors, limit).run(connection)

    async def drain_async(self, connection: Any, *, raise_errors: bool = False, limit: int = 10_000) -> int:
        """The same on an asynchronous connection."""
        return await Drain(self._settings_of_run(), self._handlers, raise_errors, limit).run_async(connection)

    def _check_not_started(self) -> None:
        if self._started:
            raise RuntimeError("add handlers and hooks before the worker runs")

    def _new_run(self, loop: asyncio.AbstractEventLoop | None, task: asyncio.Task[Any] | None = None) -> Run:
        if self._started:
            raise RuntimeError("a worker runs only once: make another one")
        self._started = True
        return Run(self._settings_of_run(), self._handlers, self._commands, self.ready, loop, task)

    def _settings_of_run(self) -> Settings:
        """The settings with a name, which is made late because the process may have been forked since the constructor."""
        name = self._settings.name or f"{socket.gethostname()[:100]}:{os.getpid()}{next(_suffixes)}"
        return replace(self._settings, name=name)

    @staticmethod
    def _new_loop() -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()

        def run() -> None:
            is_stopped = False
            while not is_stopped:
                try:
                    loop.run_forever()
                    is_stopped = True
                except BaseException as error:  # asyncio passes on SystemExit and KeyboardInterrupt; its awaiter gets it, too
                    logger.error("the event loop continues after %s", type(error).__name__)
            loop.close()

        threading.Thread(target=run, name="queue_ext event loop", daemon=True).start()
        return loop
