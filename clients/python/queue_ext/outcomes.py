"""How an attempt ends: what a handler can raise, and what the worker then reports to the server."""

from __future__ import annotations

import asyncio
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

from .values import Delay, to_json, to_pause

if TYPE_CHECKING:
    from .task import Task


class Retry(Exception):
    """The attempt failed. The task is retried after the delay, or after its backoff if there is none."""

    def __init__(self, delay: Delay | None = None, message: str = "the handler asked for a retry") -> None:
        super().__init__(message)
        self.delay = None if delay is None else to_pause(delay)


class Discard(Exception):
    """The task can never succeed. It moves to the dead letters without further attempts."""

    def __init__(self, message: str = "the handler discarded the task") -> None:
        super().__init__(message)


class Snooze(Exception):
    """The task is to run later. It goes back to the queue for so long, and the attempt does not count."""

    def __init__(self, delay: Delay) -> None:
        super().__init__(f"snoozed for {delay}")
        self.delay = to_pause(delay)


class Suspended(Exception):
    """The handler has suspended its task by queue.sleep, queue.await_event or queue.await_task, and has committed that. Nothing is
    reported: the task is claimed again when its wait is over. If it was not suspended, it is when its lease ends."""


class Stopped(BaseException):
    """The handler stops because it was told to. Not an Exception, so that "except Exception" lets it pass."""


class Outcome(NamedTuple):
    """What is reported. The reports of many tasks go in one statement if all but text and details are equal."""

    verb: str  # complete, fail, release or cancel; nothing: no report
    text: str | None = None  # the result as JSON, or the error
    details: str | None = None
    delay: float | None = None  # in seconds; None means the backoff
    permanent: bool = False


NOTHING = Outcome("nothing")
# What a handler that has completed its task itself ends with. The server refuses it after the commit.
UNCOMMITTED = Outcome("fail", "the transaction that completed the task was not committed")
RELEASE = Outcome("release", delay=0)
_LONGEST = 65_536  # characters of an error that queue_ext stores
_OF_REASON = {"cancelled": Outcome("cancel"), "shutdown": RELEASE, "lost": NOTHING}


def of_result(task: Task, result: Any) -> Outcome:
    """The outcome of a handler that has returned. Raises an error if the result is not JSON."""
    return UNCOMMITTED if task.completed else Outcome("complete", None if result is None else to_json(result))


def of_error(task: Task, error: BaseException) -> Outcome:
    """The outcome of a handler that has raised an error, whatever the error is."""
    try:
        return _of_error(task, error)
    except BaseException as own:  # of a __str__, or a subclass that does not call the constructor of Retry
        return Outcome("fail", f"{type(error).__name__}, which cannot be read because of {type(own).__name__}")


def _of_error(task: Task, error: BaseException) -> Outcome:
    if isinstance(error, (Stopped, asyncio.CancelledError)) and task.reason is not None:
        return _OF_REASON[task.reason]
    if isinstance(error, Suspended):
        return NOTHING
    if isinstance(error, Snooze):
        return Outcome("release", delay=to_pause(error.delay))
    if isinstance(error, Retry):
        delay = None if error.delay is None else to_pause(error.delay)
        return Outcome("fail", _storable(str(error)), delay=delay)
    if isinstance(error, Discard):
        return Outcome("fail", _storable(str(error)), permanent=True)
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__package__") == __package__:
        frames = frames.tb_next  # the frames of this package help nobody
    lines = traceback.format_exception(type(error), error, frames)
    return Outcome("fail", _storable("".join(lines)), to_json({"type": type(error).__name__}))


def _storable(text: str) -> str:
    """PostgreSQL stores no empty error, and neither zero bytes nor lone surrogates in any text. queue_ext stores the beginning
    of a longer error, but the message is at the end of a traceback."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2 - 20]}\n[shortened]\n{text[-_LONGEST // 2 + 20 :]}"
    text = text.replace("\0", "\\x00") or "error without a message"
    return text.encode(errors="backslashreplace").decode()
