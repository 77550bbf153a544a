"""Reports how attempts have ended. Whatever gathers while one report is under way goes in the next."""

from __future__ import annotations

import logging
import queue
import time
from datetime import timedelta
from typing import Any, Sequence

import psycopg
from psycopg.errors import LockNotAvailable

from .connection import Connection, Link, first_line, is_about_values
from .heartbeat import Heartbeat, extend
from .outcomes import Outcome
from .task import Task

Report = tuple[Task, Outcome]

# A transaction that a handler left open may lock its task. It must not delay the reports of others for ever.
_LOCK_TIMEOUT, _PAUSE_IF_LOCKED = "1000", 2.0
_IDS = "CASE WHEN s.timeout IS NOT NULL THEN %s::bigint[] END, %s"
_FROM = "FROM (SELECT set_config('lock_timeout', %s, true) OFFSET 0) AS s (timeout), LATERAL"
_STATEMENTS = {
    "complete": f"SELECT a.id {_FROM} queue.complete_many({_IDS}, %s::jsonb[]) AS a (id)",
    "fail": f"SELECT a.id {_FROM} queue.fail_many({_IDS}, %s, %s, %s, %s::jsonb[]) AS a",
    "release": f"SELECT a.id {_FROM} queue.release_many({_IDS}, %s) AS a (id)",
}
_CANCEL = "SELECT queue.confirm_cancel(%s, %s)"
_REFUSED = ("QX001", "QX003", "QX005")


class Acknowledger:
    """The reports on their way to the server. A thread of its own runs it."""

    def __init__(self, link: Link, heartbeat: Heartbeat, lease: timedelta | None, logger: logging.Logger) -> None:
        self._link, self._heartbeat, self._lease, self._logger = link, heartbeat, lease, logger
        self._inbox: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        self._locked: list[Report] = []  # reports of tasks that another transaction has locked
        self._retry_at = 0.0

    def report(self, task: Task, outcome: Outcome) -> None:
        if outcome.verb == "nothing":
            self._heartbeat.remove(task)
        else:
            self._inbox.put((task, outcome))

    def end(self) -> None:
        """Ends the thread once everything that was reported before is sent."""
        self._inbox.put(None)

    def run(self) -> None:
        try:
            self._send_until_the_end()
        finally:
            self._link.close()

    def _send_until_the_end(self) -> None:
        last = False
        while not (last and not self._locked):
            groups: dict[tuple[Any, ...], list[Report]] = {}
            reports = self._gather(wait=not last)
            last = last or None in reports
            for report in filter(None, reports):
                outcome = report[1]
                groups.setdefault((outcome.verb, outcome.delay, outcome.permanent), []).append(report)
            for group in groups.values():
                self._send(group)

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

    def _send(self, group: list[Report]) -> None:
        tries = 0

        def use(connection: Connection) -> set[int]:
            nonlocal tries
            tries += 1
            return self._execute(connection, group)

        try:
            accepted = self._link.call(use, lambda e: is_about_values(e) or isinstance(e, LockNotAvailable))
        except psycopg.Error as error:
            if len(group) > 1:  # one of them is at fault
                for report in group:
                    self._send([report])
            elif isinstance(error, LockNotAvailable):
                self._locked.append(group[0])
                self._retry_at = time.monotonic() + _PAUSE_IF_LOCKED
            else:
                self._send_instead(*group[0], error)
            return
        for task, outcome in group:
            self._heartbeat.remove(task)
            # After a lost connection nobody knows whether the first report was accepted.
            if task.id not in accepted and tries == 1:
                self._logger.warning("task %d: too late to %s it, its lease is lost", task.id, outcome.verb)

    def _send_instead(self, task: Task, outcome: Outcome, error: psycopg.Error) -> None:
        """The server cannot store the result or the error, for example in its encoding."""
        text = f"the result cannot be stored: {first_line(error)}" if outcome.verb == "complete" else outcome.text or ""
        failed = outcome._replace(verb="fail", text=text.encode("ascii", "backslashreplace").decode(), details=None)
        if failed == outcome:
            self._logger.error("task %d: its report is not accepted: %s", task.id, first_line(error))
            self._heartbeat.remove(task)
        else:
            self._send([(task, failed)])

    def _execute(self, connection: Connection, group: Sequence[Report]) -> set[int]:
        """Sends reports whose outcomes differ only in their texts. Returns the ids of the tasks that were accepted."""
        tasks, outcome = [task for task, _ in group], group[0][1]
        if outcome.verb != "complete" and any(task.unsent_progress for task in tasks):
            extend(connection, tasks, self._lease)  # for the next attempt
        if outcome.verb == "cancel":
            return {task.id for task in tasks if _confirm_cancel(connection, task)}
        arguments: list[Any] = [_LOCK_TIMEOUT, [task.id for task in tasks], [task.token for task in tasks]]
        texts = [one.text for _, one in group]
        delay = None if outcome.delay is None else timedelta(seconds=outcome.delay)
        if outcome.verb == "complete":
            arguments += [texts if any(text is not None for text in texts) else None]
        elif outcome.verb == "fail":
            arguments += [texts, delay, outcome.permanent, [one.details for _, one in group]]
        else:
            arguments += [delay]
        return {row[0] for row in connection.execute(_STATEMENTS[outcome.verb], arguments)}


def _confirm_cancel(connection: Connection, task: Task) -> bool:
    try:
        connection.execute(_CANCEL, [task.id, task.token])
        return True
    except psycopg.Error as error:
        if error.sqlstate in _REFUSED:
            return False
        raise
