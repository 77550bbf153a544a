"""SIGTERM and SIGINT stop the workers that run in this process."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any, Callable, Iterator

_NUMBERS = (signal.SIGTERM, signal.SIGINT)
_stops: list[Callable[[], None]] = []  # of the running workers, in any thread
_before: dict[int, Any] = {}  # these two are used only by the main thread
_count = 0  # of the workers that run there


@contextlib.contextmanager
def calling(stop: Callable[[], None]) -> Iterator[None]:
    """Calls stop at each signal, as long as a worker runs in the main thread: the only one that can change what a signal does.

    Several workers can run at a time, and end in any order. The first in the main thread installs the function, and the last
    one there removes it. So a signal stops those in other threads too."""
    _stops.append(stop)
    try:
        if threading.current_thread() is threading.main_thread():
            with _installed():
                yield
        else:
            yield
    finally:
        if stop in _stops:  # not in a child process
            _stops.remove(stop)


@contextlib.contextmanager
def _installed() -> Iterator[None]:
    global _count
    if _count == 0:
        # Not loop.add_signal_handler: it would not be called while a handler blocks the event loop.
        for number in _NUMBERS:
            _before[number] = signal.getsignal(number)
            signal.signal(number, _stop_all)
    _count += 1
    try:
        yield
    finally:
        _count = max(0, _count - 1)
        if _count == 0:
            _restore()


def _restore() -> None:
    for number, handler in _before.items():
        if signal.getsignal(number) is _stop_all:  # nobody has replaced it meanwhile
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    _before.clear()


def _forget() -> None:
    """A process that a handler forks has no worker: with the signal handlers of its parent it would ignore the signals."""
    global _count
    _restore()
    _stops.clear()
    _count = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _stop_all(*_: object) -> None:
    for stop in list(_stops):
        stop()
