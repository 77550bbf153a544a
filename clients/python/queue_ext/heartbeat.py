"""Extends the leases of all running tasks, in threads and on a connection that handlers cannot block."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Callable, Iterable, Iterator, Sequence

import psycopg

from .caller import sqlstate
from .connection import (
    GROUP_SIZE, Connection, Link, is_about_server, is_about_values, is_long, is_too_large, limited, summary,
)  # fmt: skip
from .log import Log
from .task import Task

_LARGEST_GROUP = 10_000  # leases that are extended in one statement; the server takes ten times as many
_MOST_IN_VAIN = 50  # statements that may fail before one succeeds, until the server is taken for the reason, and not the tasks
_LONGEST_DELAY = 10.0  # of a heartbeat, by long progress
_EXTEND = """
SELECT id, extract(epoch FROM lease_until - statement_timestamp())::text, cancel_requested, extended
FROM queue.extend_many(%s, %s, %s, %s::jsonb[], skip_locked => true)"""


def extend(
    connection: Connection,
    tasks: Sequence[Task],
    lease: timedelta | None,
    logger: Log,
    with_long: bool = True,
) -> list[Task]:
    """Extends the leases, and stops tasks that are cancelled or lost. Returns those that another transaction has locked, for
    example one in which their handler completes them: they are not changed, and not waited for.

    The server can refuse the progress or, by a trigger of the user, the lease of one task. Then the tasks are halved until that
    one is alone, and from then on it is sent by itself after the others. with_long says whether long progress is sent."""
    together = [task for task in tasks if task.times_refused == 0]
    alone = [[task] for task in tasks if task.times_refused > 0]
    parts = [(part, [_progress(task, with_long) for task in part]) for part in [*_parts(together, with_long), *alone]]
    parts.reverse()  # the last one is sent first
    locked: list[Task] = []
    refused: list[tuple[Task, psycopg.Error]] = []
    in_vain, succeeded = 0, False
    while parts:
        part, progress = parts.pop()
        try:
            locked += _extend(connection, part, lease, progress)
        except psycopg.Error as error:
            if not _is_about_tasks(error, connection, progress):
                raise
            refusal = error
        else:
            succeeded = True
            continue
        in_vain += 1
        if len(part) > 1:
            half = len(part) // 2
            parts += [(part[half:], progress[half:]), (part[:half], progress[:half])]
        elif progress[0] is not None:
            if _cannot_be_stored(refusal, len(progress[0]), connection.closed):
                _give_up_progress(part[0], logger)
            parts.append((part, [None]))
        else:
            if is_too_large(refusal) and part[0].times_refused == 0:
                # As likely, the server has no time for any of them, and that takes long to find out.
                in_vain, succeeded = _MOST_IN_VAIN, False
            refused.append((part[0], refusal))
        if in_vain >= _MOST_IN_VAIN and not succeeded:
            for task, _ in refused:
                task.times_refused += 1
            raise refusal
    if refused and not (succeeded or any(is_about_values(refusal) for _, refusal in refused)):
        raise refused[0][1]
    for task, refusal in refused:
        task.times_refused += 1
        if not task.is_refusal_logged:
            logger.warning("task %d: the server does not extend its lease: %s", task.id, summary(refusal))
        task.is_refusal_logged = True
    return locked


def _progress(task: Task, with_long: bool) -> str | None:
    text = task.unsent_progress
    return None if is_long(len(text or ""), False) and not with_long else text


def _parts(tasks: Sequence[Task], with_long: bool) -> Iterator[list[Task]]:
    part: list[Task] = []
    size = 0
    for task in tasks:
        length = len(_progress(task, with_long) or "")
        if part and (size + length > GROUP_SIZE or len(part) == _LARGEST_GROUP):
            yield part
            part, size = [], 0
        part.append(task)
        size += length
    if part:
        yield part


def _cannot_be_stored(error: BaseException, size: int, is_lost: bool) -> bool:
    return is_about_values(error) or (is_too_large(error) and is_long(size, is_lost))


def _give_up_progress(task: Task, logger: Log) -> None:
    logger.warning("task %d: its progress cannot be stored", task.id)
    task.unsent_progress = None


def _is_about_tasks(error: psycopg.Error, connection: Connection, progress: Sequence[str | None]) -> bool:
    """Whether the progress, or a trigger of the user on one of the tasks, can be the reason for the error."""
    longest = max(len(text or "") for text in progress)
    if longest > 0 and is_too_large(error) and (len(progress) > 1 or is_long(longest, connection.closed)):
        return True
    if sqlstate(error) is None:  # of the driver
        return longest > 0 and is_about_values(error)
    return not (connection.closed or is_about_server(error))


def _extend(
    connection: Connection, tasks: Sequence[Task], lease: timedelta | None, progress: Sequence[str | None]
) -> list[Task]:
    began = time.monotonic()
    arrays = [[task.id for task in tasks], [task.token for task in tasks], lease, list(progress) if any(progress) else None]
    answers = {row[0]: row[1:] for row in connection.execute(_EXTEND, arrays)}
    locked = []
    for task, sent in zip(tasks, progress):
        if task.id not in answers:
            # The transaction that completes a task can have been committed, and nothing is lost.
            if not task.completed:
                task.stop("lost")
            continue
        length, cancel_requested, extended = answers[task.id]
        seconds = float(length)
        task.deadline = began + seconds
        if cancel_requested:
            task.stop("cancelled")
        if not extended:
            locked.append(task)
            continue
        task.lease_seconds = seconds
        task.times_refused = 0
        if task.unsent_progress is sent:
            task.unsent_progress = None
    return locked


def _size(task: Task) -> int:
    return len(task.unsent_progress or "")


class Heartbeat:
    """The leases that this worker holds."""

    def __init__(
        self,
        link: Link,
        lease: timedelta | None,
        longest_pause: float,
        logger: Log,
        connected: Callable[[], None],
    ) -> None:
        self._link, self._lease, self._longest_pause, self._logger = link, lease, longest_pause, logger
        self._connected = connected
        self._held: dict[int, Task] = {}
        self._changed = threading.Condition()  # with a reentrant lock
        self._next_beat = self._next_deadline = float("inf")
        self._ended = False

    def add(self, tasks: Iterable[Task], claimed_at: float) -> None:
        """Takes care of new tasks. claimed_at is the time of time.monotonic() before the claim."""
        with self._changed:
            for task in tasks:
                before = self._held.get(task.id)
                # This worker has claimed the task again: it has lost the lease, unless the report is just being accepted.
                if before is not None and not before.ended:
                    before.stop("lost")
                    self._logger.warning("task %d: its lease was lost", task.id)
                self._held[task.id] = task
                task.deadline = claimed_at + task.lease_seconds
                task.beat_at = claimed_at + self._pause(task)
                if task.beat_at < self._next_beat or task.deadline < self._next_deadline:
                    self._changed.notify_all()

    def remove(self, task: Task) -> bool:
        """Returns False if it was removed before."""
        with self._changed:
            held = self._held.get(task.id) is task
            if held:
                del self._held[task.id]
            return held

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def beat(self) -> None:
        """Sends heartbeats until the end. A thread of its own runs it."""
        try:
            self._link.call(lambda connection: None, lambda error: False)
            self._connected()
            while self._await(self._until_beat):
                tasks, locked = self._link.call(self._extend_all, lambda error: False)
                now = time.monotonic()
                for task in tasks:
                    task.beat_at = now + self._pause(task) / (4 if task in locked else 1)
                    if task.reason == "lost" and not task.ended:
                        self._lose(task)
                with self._changed:
                    self._changed.notify_all()  # for watch(): a lease may have become shorter
                self._send_long([task for task in tasks if task not in locked])
        finally:
            self._link.close()

    def _send_long(self, tasks: Sequence[Task]) -> None:
        """Sends long progress, of one task after the other as long as no heartbeat is due: a slow connection may need longer for
        it than a lease lasts. It is given up for now after a third of the shortest lease. The shortest is sent first, so that one
        that is too long does not delay others."""
        # The report of a task that has ended must not find it locked. It sends the progress itself if that is of use.
        long = [task for task in tasks if is_long(_size(task), False)]
        for task in sorted(long, key=_size):
            if self._ended or self._until_beat() <= 0:
                return
            if task.ended:
                continue
            try:
                self._link.call(lambda connection: self._extend_long(connection, task), lambda error: True)
            except (psycopg.Error, OSError) as error:
                if _cannot_be_stored(error, _size(task), self._link.connection is None):
                    _give_up_progress(task, self._logger)
                    continue
                if not task.is_progress_late:
                    reason = summary(error)
                    self._logger.warning("task %d: its progress is not stored yet, trying again: %s", task.id, reason)
                task.is_progress_late = True
                return

    def _extend_all(self, connection: Connection) -> tuple[list[Task], list[Task]]:
        """Returns the tasks, and those of them that are locked."""
        tasks = self._tasks()
        return tasks, extend(connection, tasks, self._lease, self._logger, with_long=False)

    def _extend_long(self, connection: Connection, task: Task) -> None:
        # Cancelled and cut in time for the shortest lease.
        with limited(connection, max(0, min(_LONGEST_DELAY, self._until_deadline() / 3))):
            _extend(connection, [task], self._lease, [task.unsent_progress])

    def watch(self) -> None:
        """Stops tasks whose lease has run out by the local clock, because heartbeats do not reach the server. A thread of its
        own runs it, because that of the heartbeats may be waiting for the network."""
        while self._await(self._until_deadline):
            now = time.monotonic()
            for task in self._tasks():
                if task.deadline <= now and not (task.ended or task.completed):
                    task.stop("lost")
                    self._lose(task)

    def _await(self, seconds_until: Callable[[], float]) -> bool:
        """Waits until the time has come. Returns False at the end of the worker."""
        with self._changed:
            while not self._ended and (pause := seconds_until()) > 0:
                self._changed.wait(min(pause, threading.TIMEOUT_MAX))
            return not self._ended

    def _tasks(self) -> list[Task]:
        with self._changed:
            return list(self._held.values())

    def _lose(self, task: Task) -> None:
        if self.remove(task):
            self._logger.warning("task %d: its lease is lost", task.id)

    def _pause(self, task: Task) -> float:
        return min(self._longest_pause, task.lease_seconds / 3)

    def _until_beat(self) -> float:
        self._next_beat = min((task.beat_at for task in self._tasks()), default=float("inf"))
        return self._next_beat - time.monotonic()

    def _until_deadline(self) -> float:
        # A task whose handler has ended or completed it is not stopped: the server decides whether that is in time.
        tasks = (task for task in self._tasks() if not (task.ended or task.completed))
        self._next_deadline = min((task.deadline for task in tasks), default=float("inf"))
        return self._next_deadline - time.monotonic()
