"""One run of a worker: claims tasks, has them handled, and ends gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable

import psycopg
from psycopg.errors import QueryCanceled

from .acknowledge import Acknowledger
from .connection import Connect, Connection, GaveUp, Link, Outage, state_of
from .handlers import Handlers, Loop, Threads
from .heartbeat import Heartbeat
from .log import logger
from .outcomes import NOTHING, RELEASE, UNCOMMITTED, Outcome
from .task import COLUMNS, Task

STOP, PROGRESS = "stop", "progress"  # the messages to the thread that runs the worker; others are errors
_UNREPORTED = 10  # times the concurrency: with so many reports on their way, nothing more is claimed
_WAIT = "30 seconds"  # after that a waiting worker claims again
_LONGEST_PAUSE = 0.2  # between claims after waits that ended for nothing
_GRACE = 5.0  # seconds for handlers to heed the stop signal, and then for the last reports
_CLAIM_GRACE, _CANCEL_GRACE = 3.0, 1.0  # for a claim when the worker stops, and for its end after it is cancelled

_FATAL = ("QX002", "42501")  # no such queue, or no right on it: no retry helps
# As long as no claim has succeeded also: no extension, database or role, and arguments that are not valid.
_FATAL_AT_FIRST = ("3F000", "42883", "3D000", "28", "22", "54")


@dataclass(frozen=True)
class Settings:
    connect: Connect
    queues: list[str]
    concurrency: int
    lease: timedelta | None
    heartbeat: float
    shutdown_timeout: float
    name: str


class Run:
    def __init__(
        self,
        settings: Settings,
        handlers: Handlers,
        commands: queue.SimpleQueue[object],
        ready: threading.Event,
        loop: asyncio.AbstractEventLoop | None,
        task: asyncio.Task[Any] | None,
    ) -> None:
        """loop runs the handlers that are coroutine functions; task is the asyncio task that runs the worker there."""
        self._settings, self._handlers, self._commands, self._ready = settings, handlers, commands, ready
        self._stopping, self._claim_ended, self._gave_up = threading.Event(), threading.Event(), threading.Event()
        outage = Outage(logger)
        # The claiming connection is given up as soon as the worker is to stop, the others when all is reported.
        self._link = Link(settings.connect, settings.name, outage, self._stopping, self._cannot_connect)
        # Leases can be lost while the heartbeat waits before it connects again.
        beating = Link(settings.connect, settings.name, outage, self._gave_up, longest_pause=1.0)
        reporting = Link(settings.connect, settings.name, outage, self._gave_up)
        lease = settings.lease
        self._heartbeat = Heartbeat(beating, lease, settings.heartbeat, logger, self._connected)
        self._acknowledger = Acknowledger(reporting, self._heartbeat, lease, logger, self._connected, self._reported)
        self._threads = Threads(handlers, self._ended)
        self._loop = None if loop is None else Loop(handlers, self._ended, loop, task)

        self._slots = threading.Condition()  # with a reentrant lock; guards the four below
        self._free = settings.concurrency
        self._running: set[Task] = set()
        self._unreported = 0
        self._unconnected = 2  # of the links for heartbeats and reports
        self._waiting = False
        self._hurry = False  # after a second signal

        # A single name costs the server less than a list.
        one = len(settings.queues) == 1
        self._queues: str | list[str] = settings.queues[0] if one else settings.queues
        type_ = "text" if one else "text[]"
        self._claim_statement = f"SELECT {COLUMNS} FROM queue.claim(%s, %s::{type_}, %s, %s)"
        self._wait_statement = f"CALL queue.wait(%s::{type_}, '{_WAIT}', worker => %s)"

    def run(self) -> None:
        """Returns after the graceful end that a stop begins. Raises the error that has ended the worker."""
        self._thread(self._claim)
        acknowledger = self._thread(self._acknowledger.run)
        self._thread(self._heartbeat.beat)
        self._thread(self._heartbeat.watch)
        message: object = PROGRESS
        try:
            while message == PROGRESS:
                message = self._commands.get()
        except BaseException as error:  # of the user's signal handler
            message = error
        try:
            self._drain(acknowledger)
        finally:  # whatever happens, nothing may keep the leases of tasks that nobody works on
            self._gave_up.set()
            self._heartbeat.end()
            self._threads.end()
        if isinstance(message, BaseException):
            raise message

    def _drain(self, acknowledger: threading.Thread) -> None:
        """Waits for what runs, stops what takes too long, and has everything reported."""
        logger.info("worker %s stops, %d tasks are running", self._settings.name, len(self._running))
        with self._slots:
            self._stopping.set()
            self._slots.notify_all()
        self._thread(self._interrupt)
        if not self._await_end(self._settings.shutdown_timeout):
            with self._slots:
                tasks = list(self._running)
            for task in tasks:
                task.stop("shutdown")
            if not self._hurry:
                self._await_end(_GRACE)
            self._release_running()
        if self._hurry:
            self._claim_ended.wait(_CANCEL_GRACE)
        if self._unreported == 0:
            self._gave_up.set()  # there is no reason to wait for connections
        self._acknowledger.end()
        acknowledger.join(_GRACE)
        if self._unreported > 0:
            logger.error("%d outcomes could not be reported: the tasks are retried when their leases end", self._unreported)

    def _thread(self, target: Callable[[], object]) -> threading.Thread:
        def guarded() -> None:
            try:
                target()
            except GaveUp:
                pass
            except BaseException as error:  # the worker cannot go on without this thread
                self._commands.put(error)

        thread = threading.Thread(target=guarded, name="queue_ext worker", daemon=True)
        thread.start()
        return thread

    # The claiming thread.

    def _claim(self) -> None:
        try:
            self._link.call(lambda connection: None, lambda error: False)
            in_vain = 0
            while free := self._await_free():
                claimed_at, rows = self._link.call(lambda connection: self._claim_some(connection, free), self._is_fatal)
                if not self._ready.is_set():
                    logger.info("worker %s claims tasks from %s", self._settings.name, ", ".join(self._settings.queues))
                    self._ready.set()
                self._start(self._held([Task(row) for row in rows], claimed_at), claimed_at)
                if len(rows) < free:  # there are no more
                    self._link.call(self._wait, self._is_fatal)
                # A wait can end at once, for example by a statement timeout. Then the loop must not become a busy one.
                in_vain = 0 if rows else in_vain + 1
                if in_vain > 3:
                    self._stopping.wait(random.uniform(0, min(_LONGEST_PAUSE, 0.1 * 2 ** min(in_vain - 4, 10))))
        finally:
            self._link.close()
            self._claim_ended.set()
            self._commands.put(PROGRESS)

    def _await_free(self) -> int:
        """Waits for free slots, and returns how many there are; 0 when the worker stops.

        None is free before leases can be extended and outcomes reported, or while too many outcomes are not reported."""
        with self._slots:
            while (free := self._count_free()) <= 0 and not self._stopping.is_set():
                self._slots.wait()
            return 0 if self._stopping.is_set() else free

    def _count_free(self) -> int:
        return 0 if self._unconnected else min(self._free, _UNREPORTED * self._settings.concurrency - self._unreported)

    def _connected(self) -> None:
        with self._slots:
            self._unconnected -= 1
            self._slots.notify()

    def _reported(self) -> None:
        with self._slots:
            self._unreported -= 1
            self._slots.notify()

    def _report(self, task: Task, outcome: Outcome) -> None:
        with self._slots:
            self._unreported += 1
        self._acknowledger.report(task, outcome)

    def _claim_some(self, connection: Connection, limit: int) -> tuple[float, list[tuple[Any, ...]]]:
        before = time.monotonic()
        arguments = [self._settings.lease, self._queues, limit, self._settings.name]
        return before, connection.execute(self._claim_statement, arguments).fetchall()

    def _held(self, tasks: list[Task], claimed_at: float) -> list[Task]:
        """Those whose leases have not ended while the answer was on its way: another worker can have the others."""
        now = time.monotonic()
        held = [task for task in tasks if claimed_at + task.lease_seconds > now]
        if len(held) < len(tasks):
            count = len(tasks) - len(held)
            logger.warning("%d leases ended before the claim was answered: it waited for a lock, or the process was busy", count)
        return held

    def _start(self, tasks: list[Task], claimed_at: float) -> None:
        if self._stopping.is_set():
            for task in tasks:
                self._report(task, RELEASE)
            return
        self._heartbeat.add(tasks, claimed_at)
        with self._slots:
            self._free -= len(tasks)
            self._running.update(tasks)
        self._threads.start([task for task in tasks if not self._handlers.is_async(task)])
        if self._loop is not None:
            self._loop.start([task for task in tasks if self._handlers.is_async(task)])

    def _wait(self, connection: Connection) -> None:
        self._waiting = True
        try:
            if not self._stopping.is_set():
                connection.execute(self._wait_statement, [self._queues, self._settings.name])
        except QueryCanceled:  # by _interrupt, or by a statement timeout
            pass
        except psycopg.OperationalError:
            # The next claim connects again. Another wait would say too late that this has succeeded.
            if not connection.closed:
                raise
        finally:
            self._waiting = False

    def _interrupt(self) -> None:
        """Ends the wait of the claiming thread, and a claim that takes long: if it waits for a lock, it would take tasks later,
        for nobody. Repeated, since a request that comes before the statement has no effect."""
        until = time.monotonic() + _CLAIM_GRACE  # the tasks of a claim can be given back
        while not self._claim_ended.is_set():
            connection = self._link.connection
            is_late = self._hurry or time.monotonic() > until
            if (self._waiting or is_late) and connection is not None:
                # While cancel() waits for an answer, no other thread runs. psycopg 3.1 has nothing else.
                with contextlib.suppress(psycopg.Error, OSError):
                    getattr(connection, "cancel_safe", connection.cancel)()
            self._claim_ended.wait(0.05)

    def _is_fatal(self, error: BaseException) -> bool:
        state = state_of(error) or ""
        return state in _FATAL or (not self._ready.is_set() and state.startswith(_FATAL_AT_FIRST))

    def _cannot_connect(self, error: BaseException) -> bool:
        is_of_driver = isinstance(error, (psycopg.Error, OSError))
        return self._is_fatal(error) or not (is_of_driver or self._ready.is_set())

    # The end of a handler, in its thread.

    def _ended(self, task: Task, outcome: Outcome, error: BaseException | None) -> None:
        with self._slots:
            if task not in self._running:  # it was released when the worker stopped
                return
            task.ended = True
            self._report(task, outcome)
            self._running.remove(task)
            self._free += 1
            self._slots.notify()
        if outcome.verb == "fail" and outcome is not UNCOMMITTED:
            # Not the message of the error, which may contain parts of the payload.
            logger.warning("task %d: attempt %d failed: %s", task.id, task.attempt, type(error).__name__)
        if self._stopping.is_set():
            self._commands.put(PROGRESS)

    # The end of the worker.

    def _await_end(self, seconds: float) -> bool:
        """Waits until all handlers have ended. Returns False after so many seconds, or at a second signal."""
        deadline = time.monotonic() + seconds
        while self._running or not self._claim_ended.is_set():
            try:
                message = self._commands.get(timeout=min(max(0, deadline - time.monotonic()), threading.TIMEOUT_MAX))
            except queue.Empty:
                return False
            if message == STOP:
                self._hurry = True
                return False
        return True

    def _release_running(self) -> None:
        with self._slots:
            tasks, self._running = self._running, set()
        for task in tasks:
            logger.warning("task %d: released, although its handler still runs", task.id)
            self._report(task, NOTHING if task.completed else RELEASE)
