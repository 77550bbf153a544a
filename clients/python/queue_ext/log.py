"""The log of workers."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class Log(_Adapter):
    """A logger from which no error comes: one of a logging handler of the user must not end a thread of the worker, whose tasks
    would be done again."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        kwargs.setdefault("stacklevel", 2)  # the place of the call is not here
        with contextlib.suppress(Exception):
            super().log(level, msg, *args, **kwargs)


logger = Log(logging.getLogger("queue_ext"), {})
