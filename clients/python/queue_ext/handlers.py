"""Calls handlers: plain functions in threads, and coroutine functions on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import sys
import threading
import traceback
from collections import deque
from typing import Any, Awaitable, Callable, Iterable, Union

from .outcomes import RELEASE, Outcome, Retry, of_error, of_result
from .task import Task

Handler = Callable[[Task], Any]
Around = Callable[[Task, Callable[[], Any]], Any]
Ended = Callable[[Task, Outcome, Union[BaseException, None]], None]


def is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))


class Handlers:
    """The handlers of a worker, and the hooks around each call."""

    def __init__(self) -> None:
        self._by_kind: dict[str | None, tuple[Handler, bool]] = {}  # and whether it is a coroutine function
        self._around: list[Around] = []

    def add(self, kind: str | None, handler: Handler) -> None:
        if kind in self._by_kind:
            raise ValueError(f"there is a handler for {'all kinds' if kind is None else f'kind {kind!r}'} already")
        self._by_kind[kind] = handler, is_async(handler)

    def add_around(self, hook: Around) -> None:
        self._around.append(hook)

    def any_is_async(self) -> bool:
        return any(asynchronous for _, asynchronous in self._by_kind.values())

    def is_async(self, task: Task) -> bool:
        found = self._find(task)
        return found is not None and found[1]

    def _find(self, task: Task) -> tuple[Handler, bool] | None:
        return self._by_kind.get(task.kind) or self._by_kind.get(None)

    def call(self, task: Task) -> Any:
        """Calls the handler within its hooks. The result of a coroutine function is a coroutine.

        Hooks that are coroutine functions go around handlers that are, and the others around the others."""
        found = self._find(task)
        if found is None:  # not for good: a newer worker may have one
            raise Retry(message="no handler for " + ("tasks without kind" if task.kind is None else f"kind {task.kind}"))
        handler, asynchronous = found
        call: Callable[[], Any] = functools.partial(handler, task)
        for hook in reversed(self._around):
            if is_async(hook) == asynchronous:
                call = functools.partial(hook, task, call)
        return call()

    def run(self, task: Task) -> tuple[Outcome, BaseException | None]:
        """Runs a plain function to its end."""
        process = os.getpid()
        try:
            task.check()
            outcome = of_result(task, self.call(task))
        except BaseException as error:  # whatever it is, it is the handler's
            _end_if_forked(process, error)
            return of_error(task, error), error
        _end_if_forked(process)
        return outcome, None

    async def run_async(
        self, task: Task, is_ending: Callable[[], bool] = lambda: False
    ) -> tuple[Outcome, BaseException | None]:
        """The same for a coroutine function. is_ending says whether its cancellation is that of everything on the loop."""
        process = os.getpid()
        try:
            task.check()
            result: Awaitable[Any] = self.call(task)
            outcome = of_result(task, await result)
        except asyncio.CancelledError as error:
            return RELEASE if task.reason is None and is_ending() else of_error(task, error), error
        except BaseException as error:
            _end_if_forked(process, error)
            return of_error(task, error), error
        _end_if_forked(process)
        return outcome, None


def _end_if_forked(process: int, error: BaseException | None = None) -> None:
    """Ends a process that the handler has forked, as Python ends one at the end of its main thread: the worker is not in it, and
    nobody would ever end it."""
    if os.getpid() == process:
        return
    code: object = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = 0 if error.code is None else error.code
    elif error is not None:
        traceback.print_exception(type(error), error, error.__traceback__)
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


class Threads:
    """Runs plain functions. The threads are daemons, so that one that blocks does not keep the process from ending."""

    def __init__(self, handlers: Handlers, ended: Ended) -> None:
        self._handlers, self._ended = handlers, ended
        self._changed = threading.Condition()  # guards the four below
        self._waiting: deque[Task] = deque()
        self._busy: set[Task] = set()  # those that wait and those that run
        self._count = 0  # of the threads
        self._is_over = False

    def start(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            with self._changed:
                self._busy.add(task)
                self._waiting.append(task)
                self._changed.notify()
                is_missing = len(self._busy) > self._count
                self._count += is_missing
            if is_missing:
                self._start_thread()

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _start_thread(self) -> None:
        threading.Thread(target=self._run, name="queue_ext handler", daemon=True).start()

    def _run(self) -> None:
        task: Task | None = None
        try:
            while True:
                with self._changed:
                    while not self._waiting:
                        if self._is_over:
                            return
                        self._changed.wait()
                    task = self._waiting[0]  # not popleft(), after which an error would lose the task
                    del self._waiting[0]
                self._end(task, *self._handlers.run(task))
        except BaseException as error:  # another thread has raised it in this one, outside of the handler
            self._start_thread()
            if task is not None:
                self._end(task, of_error(task, error), error)

    def _end(self, task: Task, outcome: Outcome, error: BaseException | None) -> None:
        """Has no effect the second time."""
        with self._changed:
            self._busy.discard(task)
        self._ended(task, outcome, error)


class Loop:
    """Runs coroutine functions on an event loop."""

    def __init__(
        self, handlers: Handlers, ended: Ended, loop: asyncio.AbstractEventLoop, worker: asyncio.Task[Any] | None
    ) -> None:
        """worker is the asyncio task that runs the worker, if it is on the same loop."""
        self._handlers, self._ended, self._loop, self._worker = handlers, ended, loop, worker
        self._running: set[asyncio.Task[None]] = set()  # asyncio itself has only weak references

    def start(self, tasks: list[Task]) -> None:
        self._loop.call_soon_threadsafe(self._start, tasks)

    def _start(self, tasks: list[Task]) -> None:
        for task in tasks:
            running = self._loop.create_task(self._run(task))
            self._running.add(running)
            running.add_done_callback(self._running.discard)

    async def _run(self, task: Task) -> None:
        current = asyncio.current_task()
        assert current is not None
        task.interrupt = functools.partial(self._interrupt, task, current)
        outcome, error = await self._handlers.run_async(task, self._is_ending)
        self._ended(task, outcome, error)

    def _is_ending(self) -> bool:
        """Whether somebody cancels all that is on the loop, as asyncio.run does at its end, and not the handler alone. Before
        Python 3.11 nobody can tell."""
        return sys.version_info >= (3, 11) and self._worker is not None and self._worker.cancelling() > 0

    def _interrupt(self, task: Task, running: asyncio.Task[None]) -> None:
        with contextlib.suppress(RuntimeError):  # somebody has closed the loop, and so nothing runs on it
            self._loop.call_soon_threadsafe(self._cancel, task, running)

    @staticmethod
    def _cancel(task: Task, running: asyncio.Task[None]) -> None:
        if not task.ended:
            running.cancel()
