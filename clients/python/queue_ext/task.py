"""A claimed task, as its handler sees it."""

from __future__ import annotations

import contextlib
import json
import threading
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, Callable, Iterator, Sequence

from .caller import execute, execute_async
from .outcomes import Stopped
from .values import to_json

# The columns of a claim, in the order of Task's constructor. JSON and times come as text, which no driver converts and no
# setting changes. The length of the lease is computed by the server, because clocks of two machines differ.
COLUMNS = """id, token, queue, kind, payload::text, headers::text, attempt, max_attempts, priority, key, group_key,
progress::text, extract(epoch FROM run_at)::text, extract(epoch FROM created_at)::text,
extract(epoch FROM lease_until - statement_timestamp())::text"""

_COMPLETE = "SELECT queue.complete(CAST(%(id)s AS bigint), CAST(%(token)s AS bigint), CAST(%(result)s AS jsonb))"


class Task:
    """One attempt of a task. Its worker holds the lease until the handler has ended.

    payload, headers, progress, run_at and created_at are read from their texts when they are first used. PostgreSQL stores
    values that Python cannot represent: such a value is then an error of the handler, and no other task is affected."""

    def __init__(self, row: Sequence[Any]) -> None:
        self.id: int = row[0]
        self.token: int = row[1]
        self.queue: str = row[2]
        self.kind: str | None = row[3]
        self._payload, self._headers = row[4], row[5]
        self.attempt: int = row[6]
        self.max_attempts: int = row[7]
        self.priority: int = row[8]
        self.key: str | None = row[9]
        self.group_key: str | None = row[10]
        self._progress, self._run_at, self._created_at = row[11], row[12], row[13]

        self.stopped = threading.Event()
        self.reason: str | None = None  # why it was stopped: cancelled, lost or shutdown
        self.completed = False  # by complete()

        # The rest is for the worker.
        self.lease_seconds = float(row[14])
        self.deadline = self.beat_at = 0.0  # by time.monotonic()
        self.ended = False  # the handler has
        self.refusals = 0  # of its report, because it is too long
        self.times_refused = 0  # to extend its lease, one after the other
        self.is_refusal_logged = False
        self.is_late = False  # its report was not accepted at first
        self.unsent_progress: str | None = None
        self.is_progress_late = False  # it is long, and was not stored at first
        self.interrupt: Callable[[], object] = lambda: None  # how an asynchronous handler learns of the stop
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Task {self.id} of {self.queue}, attempt {self.attempt}>"  # without the payload: it may be secret

    @cached_property
    def payload(self) -> Any:
        return json.loads(self._payload)

    @cached_property
    def headers(self) -> dict[str, Any] | None:
        headers: dict[str, Any] | None = self._headers and json.loads(self._headers)
        return headers

    @cached_property
    def progress(self) -> Any:
        return self._progress and json.loads(self._progress)

    @cached_property
    def run_at(self) -> datetime:
        return datetime.fromtimestamp(float(self._run_at), timezone.utc)

    @cached_property
    def created_at(self) -> datetime:
        return datetime.fromtimestamp(float(self._created_at), timezone.utc)

    def check(self) -> None:
        """Raises Stopped if the handler should stop. Call it between the steps of long work."""
        if self.stopped.is_set():
            raise Stopped(self.reason)

    def set_progress(self, value: Any) -> None:
        """Stores any JSON value with the task, at the next heartbeat. The next attempt finds it in task.progress."""
        self.unsent_progress = to_json(value)

    def complete(self, connection: Any, result: Any = None) -> None:
        """Completes the task in the transaction of the connection: what else the transaction writes takes effect once.

        Commit afterwards. The worker does not report the task again, whatever the handler returns. If the lease is lost,
        the call raises the driver's error with SQLSTATE QX001; let it pass, so that the transaction rolls back."""
        with self._completing():
            execute(connection, _COMPLETE, self._lease(result))

    async def complete_async(self, connection: Any, result: Any = None) -> None:
        """The same on an asynchronous connection."""
        with self._completing():
            await execute_async(connection, _COMPLETE, self._lease(result))

    def stop(self, reason: str) -> None:
        """Tells the handler to stop. The first reason stays."""
        with self._lock:
            if self.ended or self.reason is not None:
                return
            self.reason = reason
            self.stopped.set()
        self.interrupt()

    @contextlib.contextmanager
    def _completing(self) -> Iterator[None]:
        before = self.completed
        # A heartbeat may find no task any more before the answer is here, and nothing is lost.
        self.completed = True
        try:
            yield
        except BaseException:
            self.completed = before
            raise

    def _lease(self, result: Any) -> dict[str, str | None]:
        return {"id": str(self.id), "token": str(self.token), "result": None if result is None else to_json(result)}
