"""SIGTERM and SIGINT stop the workers that run in this process."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any, Callable, Iterator

_NUMBERS = (signal.SIGTERM, signal.SIGINT)
_stops: list[Callable[[], None]] = []  # of the running workers; used only by the main thread
_before: dict[int, Any] = {}


@contextlib.contextmanager
def calling(stop: Callable[[], None]) -> Iterator[None]:
    """Calls stop at each signal, if this is the main thread, the only one that can change what a signal does.

    Several workers can run at a time, and end in any order: the first installs the function, the last one removes it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _stops:
        # Not loop.add_signal_handler: it would not be called while a handler blocks the event loop.
        _before.update({number: signal.signal(number, _stop_all) for number in _NUMBERS})
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)
        for number, handler in _before.items() if not _stops else ():
            if signal.getsignal(number) is _stop_all:  # nobody has replaced it meanwhile
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _stop_all(*_: object) -> None:
    for stop in list(_stops):
        stop()
