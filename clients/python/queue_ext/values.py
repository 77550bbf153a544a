"""Values as text, in the form that PostgreSQL reads. Text means the same to every driver."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any, Union

Delay = Union[float, timedelta]  # a number means seconds

_LONGEST_PAUSE = 100 * 365.25 * 86_400
_ZERO = re.compile(r"(?<!\\)(\\\\)*\\u0000")


def to_json(value: Any) -> str:
    """Raises ValueError or TypeError for what PostgreSQL cannot store, so that it is found where the value is from."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    text.encode()  # finds lone surrogates
    if _ZERO.search(text):
        raise ValueError("a string contains a zero byte, which PostgreSQL cannot store")
    return text


def to_seconds(delay: Delay) -> float:
    return delay.total_seconds() if isinstance(delay, timedelta) else float(delay)


def to_pause(delay: Delay) -> float:
    """A number of seconds that PostgreSQL takes as an interval from now."""
    seconds = to_seconds(delay)
    if not 0 <= seconds <= _LONGEST_PAUSE:
        raise ValueError(f"a delay must be between 0 seconds and 100 years, not {seconds} seconds")
    return seconds


def to_interval(delay: Delay | str) -> str:
    return delay if isinstance(delay, str) else f"{to_seconds(delay):.6f} seconds"


def to_timestamp(moment: datetime | str) -> str:
    return moment if isinstance(moment, str) else moment.isoformat()
