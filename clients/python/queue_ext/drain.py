"""Handles the due tasks on the caller's connection and in its transaction, for tests."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Callable, Generator, Union

from .caller import Parameters, Rows, execute, execute_async, sqlstate
from .handlers import Handlers
from .outcomes import Discard, Outcome, Retry, Snooze, Stopped, Suspended
from .run import Settings
from .task import COLUMNS, Task
from .values import to_interval, to_json

_CLAIM = f"""SELECT {COLUMNS} FROM queue.claim(CAST(%(lease)s AS interval),
    ARRAY(SELECT jsonb_array_elements_text(CAST(%(queues)s AS jsonb))), 1, %(name)s)"""
# The functions for many tasks leave out a task whose lease is lost. The others would raise an error, which would end the
# transaction.
_LEASE = "ARRAY[CAST(%(id)s AS bigint)], ARRAY[CAST(%(token)s AS bigint)]"
_PROGRESS = f"SELECT FROM queue.extend_many({_LEASE}, progress => ARRAY[CAST(%(progress)s AS jsonb)])"
_REPORTS = {
    "complete": f"SELECT FROM queue.complete_many({_LEASE}, ARRAY[CAST(%(text)s AS jsonb)])",
    "fail": f"""SELECT FROM queue.fail_many({_LEASE}, ARRAY[%(text)s], CAST(%(delay)s AS interval),
        CAST(%(permanent)s AS boolean), ARRAY[CAST(%(details)s AS jsonb)])""",
    "release": f"SELECT FROM queue.release_many({_LEASE}, CAST(%(delay)s AS interval))",
}

Request = Union[Task, tuple[str, Parameters]]  # a task to be handled, or a statement to be executed
Answer = Union[tuple[Outcome, Union[BaseException, None]], Rows]  # how the task ended, or the rows


class Drain:
    def __init__(self, settings: Settings, handlers: Handlers, raise_errors: bool, limit: int) -> None:
        self._settings, self._handlers, self._raise_errors, self._limit = settings, handlers, raise_errors, limit

    def run(self, connection: Any) -> int:
        def answer(request: Request) -> Answer:
            if not isinstance(request, Task):
                return execute(connection, *request)
            if self._handlers.is_async(request):
                return asyncio.run(self._handlers.run_async(request))
            return self._handlers.run(request)

        steps = self._steps()
        resume: Callable[[], Request] = partial(next, steps)
        while True:
            try:
                request = resume()
            except StopIteration as end:
                return int(end.value)
            try:
                resume = partial(steps.send, answer(request))
            except Exception as error:
                resume = partial(steps.throw, error)

    async def run_async(self, connection: Any) -> int:
        async def answer(request: Request) -> Answer:
            if not isinstance(request, Task):
                return await execute_async(connection, *request)
            if self._handlers.is_async(request):
                return await self._handlers.run_async(request)
            return self._handlers.run(request)

        steps = self._steps()
        resume: Callable[[], Request] = partial(next, steps)
        while True:
            try:
                request = resume()
            except StopIteration as end:
                return int(end.value)
            try:
                resume = partial(steps.send, await answer(request))
            except Exception as error:
                resume = partial(steps.throw, error)

    def _steps(self) -> Generator[Request, Any, int]:
        settings = self._settings
        lease = None if settings.lease is None else to_interval(settings.lease)
        claim = {"lease": lease, "queues": to_json(settings.queues), "name": settings.name}
        for count in range(self._limit):
            rows = yield _CLAIM, claim
            if not rows:
                return count
            task = Task(rows[0])
            # What a handler has written before its error is undone, and an error of a statement does not end the transaction.
            try:
                yield "SAVEPOINT queue_ext", {}
                in_transaction = True
            except Exception as refusal:
                if sqlstate(refusal) != "25P01":
                    raise
                in_transaction = False  # the connection is in autocommit mode
            outcome, error = yield task
            if not (error is None or isinstance(error, (Exception, Stopped))):
                raise error  # ends the process, or cancels the caller
            if self._raise_errors and error is not None and not isinstance(error, (Retry, Snooze, Discard, Suspended)):
                raise error
            if in_transaction:
                is_kept = error is None or isinstance(error, Suspended)
                try:
                    yield ("RELEASE" if is_kept else "ROLLBACK TO") + " SAVEPOINT queue_ext", {}
                except Exception as refusal:
                    if sqlstate(refusal) != "25P02":  # the handler has caught the error of a statement
                        raise
                    yield "ROLLBACK TO SAVEPOINT queue_ext", {}
            lease_of_task = {"id": str(task.id), "token": str(task.token)}
            if task.unsent_progress is not None:
                yield _PROGRESS, {**lease_of_task, "progress": task.unsent_progress}
            if outcome.verb in _REPORTS:
                yield _REPORTS[outcome.verb], {**lease_of_task, **_as_text(outcome)}
        raise RuntimeError(f"stopped after {self._limit} tasks: a task seems to become due again and again")


def _as_text(outcome: Outcome) -> dict[str, str | None]:
    delay = None if outcome.delay is None else to_interval(outcome.delay)
    return {"text": outcome.text, "details": outcome.details, "delay": delay, "permanent": str(outcome.permanent)}
