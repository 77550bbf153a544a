"""Reports how attempts have ended. Whatever gathers while one report is under way goes in the next."""

from __future__ import annotations

import queue
import time
from collections import Counter
from datetime import timedelta
from typing import Any, Callable, Iterator, Sequence

import psycopg
from psycopg.errors import LockNotAvailable

from .caller import sqlstate
from .connection import (
    GROUP_SIZE, Connection, GaveUp, Link, first_line, is_about_server, is_about_values, is_long, is_too_large, summary,
)  # fmt: skip
from .heartbeat import Heartbeat, extend
from .log import Log
from .outcomes import UNCOMMITTED, Outcome
from .task import Task

Report = tuple[Task, Outcome]

# A transaction that a handler left open may lock its task. It must not delay the reports of others for ever.
_LOCK_TIMEOUT, _LOCK_TIMEOUT_ALONE, _PAUSE_IF_LOCKED = "1000", "50", 2.0
_MOST_IN_VAIN = 50  # statements that may fail in a row, for other reasons than their values, until the rest is sent later
_TRIES_IF_LONG = 3  # of a long report that is sent alone
_IDS = "CASE WHEN s.timeout IS NOT NULL THEN %s::bigint[] END, %s"
_LIMIT = "(SELECT set_config('lock_timeout', %s, true) OFFSET 0) AS s (timeout)"
_FROM = f"FROM {_LIMIT}, LATERAL"
_STATEMENTS = {
    "complete": f"SELECT a.id {_FROM} queue.complete_many({_IDS}, %s::jsonb[]) AS a (id)",
    "fail": f"SELECT a.id {_FROM} queue.fail_many({_IDS}, %s, %s, %s, %s::jsonb[]) AS a",
    "release": f"SELECT a.id {_FROM} queue.release_many({_IDS}, %s) AS a (id)",
}
_CANCEL = f"SELECT queue.confirm_cancel(CASE WHEN s.timeout IS NOT NULL THEN %s::bigint END, %s) FROM {_LIMIT}"
_REFUSED = ("QX001", "QX003", "QX005")


class Acknowledger:
    """The reports on their way to the server. A thread of its own runs it."""

    def __init__(
        self,
        link: Link,
        heartbeat: Heartbeat,
        lease: timedelta | None,
        logger: Log,
        connected: Callable[[], None],
        done: Callable[[], None],
    ) -> None:
        self._link, self._heartbeat, self._lease, self._logger = link, heartbeat, lease, logger
        self._connected, self._done = connected, done  # the latter for each report that needs no more
        self._inbox: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        self._locked: list[Report] = []  # reports of tasks that another transaction has locked
        self._retry_at = 0.0
        self._in_vain = 0

    def report(self, task: Task, outcome: Outcome) -> None:
        if outcome.verb == "nothing":
            self._finish(task)
        else:
            self._inbox.put((task, outcome))

    def _finish(self, task: Task) -> None:
        self._heartbeat.remove(task)
        self._done()

    def end(self) -> None:
        """Ends the thread once everything that was reported before is sent."""
        self._inbox.put(None)

    def run(self) -> None:
        try:
            self._link.call(lambda connection: None, lambda error: False)
            self._connected()
            self._send_until_the_end()
        finally:
            self._link.close()

    def _send_until_the_end(self) -> None:
        last = False
        while not last or (self._locked and not self._link.has_given_up()):
            groups: dict[tuple[object, ...], list[Report]] = {}
            reports = self._gather(wait=not last)
            last = last or None in reports
            for report in filter(None, reports):
                outcome = report[1]
                # A transaction that has completed a task may have locked it. Such a report must not delay others, and neither
                # must one that was not accepted at first.
                is_slow = (report[0].completed, report[0].is_late)
                key: tuple[object, ...] = (outcome.verb, outcome.delay, outcome.permanent, is_slow)
                if outcome.verb == "cancel":  # which has no statement for many tasks
                    key += (report[0].id,)
                groups.setdefault(key, []).append(report)
            self._in_vain = 0
            for group in groups.values():
                for part in _parts(group):
                    self._send(part)

    def _gather(self, wait: bool) -> list[Report | None]:
        """Waits for a report, and takes all that there are."""
        reports: list[Report | None] = []
        try:
            if self._locked:
                reports.append(self._inbox.get(timeout=max(0, self._retry_at - time.monotonic())))
            elif wait:
                reports.append(self._inbox.get())
            while True:
                reports.append(self._inbox.get_nowait())
        except queue.Empty:
            pass
        if self._locked and time.monotonic() >= self._retry_at:
            reports += self._locked
            self._locked = []
        return reports

    def _send(self, group: list[Report], repeated: bool = False) -> None:
        tries = 0
        is_late = all(task.is_late for task, _ in group)

        def use(connection: Connection) -> set[int]:
            nonlocal tries
            tries += 1
            return self._execute(connection, group)

        def is_final(error: BaseException) -> bool:
            # A group or a long text that is lost twice with an open connection may be the reason, and so may a report that
            # the server refuses twice. It must not delay the others.
            is_refused = not is_about_server(error)
            is_suspect = tries > 1 and (len(group) > 1 or _size(group[0]) > GROUP_SIZE or is_refused)
            if is_suspect or (is_late and is_refused):
                return True
            return is_about_values(error) or is_too_large(error) or isinstance(error, LockNotAvailable)

        try:
            accepted = self._link.call(use, is_final)
        except GaveUp:
            raise
        except Exception as error:
            if not (is_about_values(error) or isinstance(error, LockNotAvailable)):
                self._in_vain += 1
                if self._in_vain >= _MOST_IN_VAIN and isinstance(error, (psycopg.Error, OSError)):
                    self._postpone(group, error)
                    return
            # The tasks of a group that are locked wait alone. For all else, the one that is at fault is searched for.
            size = 1 if isinstance(error, LockNotAvailable) else (len(group) + 1) // 2
            if len(group) > 1:
                for start in range(0, len(group), size):
                    self._send(group[start : start + size], repeated or tries > 1)
            elif self._is_to_wait(group[0], error):
                self._locked.append(group[0])
                self._retry_at = time.monotonic() + _PAUSE_IF_LOCKED
            else:
                self._send_instead(*group[0], error)
            return
        self._in_vain = 0
        late: Counter[str] = Counter()
        for task, outcome in group:
            self._finish(task)
            # After a lost connection nobody knows whether the first report was accepted.
            if outcome is UNCOMMITTED and task.id in accepted:
                self._logger.warning("task %d: the transaction that completed it was not committed", task.id)
            if task.id not in accepted and tries == 1 and not (repeated or task.completed):
                self._logger.warning("task %d: too late to %s it, its lease is lost", task.id, outcome.verb)
                late[task.queue] += 1
        for name, count in late.items():
            # The server answers all three in the same way.
            reason = "the leases are lost, the queue was dropped, or the role has no right on it any more"
            self._logger.warning("queue %s: %d outcomes are not accepted: %s", name, count, reason)

    def _postpone(self, group: list[Report], error: Exception) -> None:
        """The server probably takes none. These come first the next time: the others were tried."""
        if any(not task.is_late for task, _ in group):
            self._logger.warning("%d reports are not accepted yet, trying again: %s", len(group), summary(error))
        for task, _ in group:
            task.is_late = True
        self._locked[:0] = group
        self._retry_at = time.monotonic() + _PAUSE_IF_LOCKED

    def _is_to_wait(self, report: Report, error: BaseException) -> bool:
        if is_about_values(error) or not isinstance(error, (psycopg.Error, OSError)):
            return False
        if isinstance(error, LockNotAvailable):
            return True
        task = report[0]
        if not task.is_late:
            self._logger.warning("task %d: its report is not accepted yet, trying again: %s", task.id, summary(error))
        task.is_late = True
        is_about_objects = (sqlstate(error) or "")[:2] in ("25", "3F", "40", "42", "55", "58")  # missing or in use, for any text
        if is_about_objects or not is_long(_size(report), self._link.connection is None):
            return True
        task.refusals += 1  # the report is too long, or the server is only busy
        return task.refusals < _TRIES_IF_LONG

    def _send_instead(self, task: Task, outcome: Outcome, error: Exception) -> None:
        """The server cannot store the result or the error, for example in its encoding."""
        reason = f"the {'result' if outcome.verb == 'complete' else 'outcome'} cannot be stored: {first_line(error)}"
        failed = outcome._replace(details=None) if outcome.verb == "fail" else Outcome("fail", reason)
        failed = failed._replace(text=(failed.text or "").encode("ascii", "backslashreplace").decode())
        if failed == outcome:
            self._logger.error("task %d: its report is not accepted: %s", task.id, summary(error))
            self._finish(task)
        else:
            self._send([(task, failed)])

    def _execute(self, connection: Connection, group: Sequence[Report]) -> set[int]:
        """Sends reports whose outcomes differ only in their texts. Returns the ids of the tasks that were accepted."""
        tasks, outcome = [task for task, _ in group], group[0][1]
        if outcome.verb != "complete" and any(task.unsent_progress for task in tasks):
            if extend(connection, tasks, self._lease, self._logger):  # for the next attempt
                raise LockNotAvailable("the task is locked, and so its progress cannot be stored yet")
        if outcome.verb == "cancel":
            return {task.id for task in tasks if _confirm_cancel(connection, task)}
        lock_timeout = _LOCK_TIMEOUT if len(group) > 1 else _LOCK_TIMEOUT_ALONE
        arguments: list[Any] = [lock_timeout, [task.id for task in tasks], [task.token for task in tasks]]
        texts = _array([one.text for _, one in group])
        delay = None if outcome.delay is None else timedelta(seconds=outcome.delay)
        if outcome.verb == "complete":
            arguments += [texts]
        elif outcome.verb == "fail":
            arguments += [texts, delay, outcome.permanent, _array([one.details for _, one in group])]
        else:
            arguments += [delay]
        return {row[0] for row in connection.execute(_STATEMENTS[outcome.verb], arguments)}


def _array(texts: list[str | None]) -> list[str | None] | None:
    """Nulls alone are no array: a role can have array_nulls off, and then the server reads them as texts."""
    return texts if any(text is not None for text in texts) else None


def _size(report: Report) -> int:
    return len(report[1].text or "") + len(report[0].unsent_progress or "")


def _parts(group: list[Report]) -> Iterator[list[Report]]:
    part: list[Report] = []
    size = 0
    for report in group:
        if part and size + _size(report) > GROUP_SIZE:
            yield part
            part, size = [], 0
        part.append(report)
        size += _size(report)
    yield part


def _confirm_cancel(connection: Connection, task: Task) -> bool:
    try:
        connection.execute(_CANCEL, [task.id, task.token, _LOCK_TIMEOUT_ALONE])
        return True
    except psycopg.Error as error:
        if error.sqlstate in _REFUSED:
            return False
        raise
