"""The worker's own connections, which are opened again after each loss, for as long as it takes."""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import threading
from typing import Any, Callable, Iterator, TypeVar, Union

import psycopg
from psycopg.errors import QueryCanceled
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from .caller import sqlstate
from .log import Log

T = TypeVar("T")
Connection = psycopg.Connection[Any]
Connect = Union[str, Callable[[], Connection]]  # a connection string, or a function that connects

# Without these, a connection whose server has vanished silently would not be noticed for many minutes.
_DEFAULTS = {
    "connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 20_000, "client_encoding": "UTF8",
}  # fmt: skip
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_MOST_REASONS = 10  # of one outage: some texts have a number or a time, and differ each time

GROUP_SIZE = 8_000_000  # characters that are sent in one statement; a longer text is sent alone
_LARGE = 64_000  # characters; a shorter text is not what takes a server too much time or memory

# The classes of SQLSTATE that are about the server, the connection, a lock, or an object that is missing or in use.
_NOT_ABOUT_VALUES = ("08", "25", "28", "3D", "3F", "40", "42", "53", "55", "57", "58", "XX")

# libpq does not report the SQLSTATE of a refused connection.
_REFUSALS = {
    "3D000": re.compile(r'database ".*" does not exist|no such database'),
    "28000": re.compile(r'role ".*" does not exist|no pg_hba.conf entry|password|authentication failed|no such user'),
    "42501": re.compile(r"permission denied for database"),
}


class GaveUp(Exception):
    """The connection did not come back before the worker had to end."""


class Outage:
    """Logs each reason why the database cannot be used once, and its end once, for all connections together."""

    def __init__(self, logger: Log) -> None:
        self._logger = logger
        self._failing: set[Link] = set()
        self._reasons: set[str] = set()
        self._lock = threading.Lock()

    def failed(self, link: Link, error: BaseException) -> None:
        reason = summary(error)
        with self._lock:
            self._failing.add(link)
            # One connection can fail by a trigger of the user on some tasks, and then all of them because the server is gone.
            if reason not in self._reasons and len(self._reasons) < _MOST_REASONS:
                self._reasons.add(reason)
                self._logger.warning("the database is not available, trying again: %s", reason)

    def worked(self, link: Link) -> None:
        with self._lock:
            if link in self._failing:
                self._failing.remove(link)
                if not self._failing:
                    self._reasons.clear()
                    self._logger.warning("the database is available again")


class Link:
    """One connection in autocommit mode, used by one thread."""

    def __init__(
        self,
        connect: Connect,
        name: str,
        outage: Outage,
        gave_up: threading.Event,
        cannot_connect: Callable[[BaseException], bool] = lambda error: False,
        longest_pause: float = _LONGEST_PAUSE,
    ) -> None:
        """cannot_connect decides whether an error of connecting is final."""
        self._connect, self._name, self._outage, self._gave_up = connect, name, outage, gave_up
        self._cannot_connect, self._longest_pause = cannot_connect, longest_pause
        self.connection: Connection | None = None

    def call(self, use: Callable[[Connection], T], is_final: Callable[[BaseException], bool]) -> T:
        """Returns what use returns. Repeats it on a new connection after each error that is not final.

        An error of the driver is final as long as the connection is well: the statement may have succeeded. A function of
        the user that connects can raise anything, and no error of connecting is an answer to the statement."""
        failures = 0
        while True:
            is_open = False
            try:
                if self.connection is None:
                    self.connection = self._open()
                is_open = True
                result = use(self.connection)
            except Exception as error:
                is_lost = self.connection is None or self.connection.closed
                if is_lost:
                    self.close()
                if is_open:
                    is_of_driver = isinstance(error, (psycopg.Error, OSError))
                    if not is_of_driver or is_final(error) or not (is_lost or sqlstate(error)):
                        if not is_lost:
                            self._outage.worked(self)
                        raise
                elif self._cannot_connect(error):
                    raise
                self.close()
                failures += 1
                # A connection can be lost although the server is well. Then the second try succeeds.
                if failures > 1:
                    self._outage.failed(self, error)
                cap = min(self._longest_pause, _FIRST_PAUSE * 2 ** min(failures - 1, 10))
                if self._gave_up.wait(random.uniform(0, cap)):
                    raise GaveUp from error
            else:
                self._outage.worked(self)
                return result

    def has_given_up(self) -> bool:
        return self._gave_up.is_set()

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def _open(self) -> Connection:
        if callable(self._connect):
            connection = self._connect()
            try:
                if connection.info.transaction_status != TransactionStatus.IDLE:  # of what the function has set
                    connection.commit()
                connection.autocommit, connection.row_factory = True, tuple_row
                if connection.info.encoding != "utf-8":  # it has not every character that a payload can have
                    connection.execute("SET client_encoding = 'UTF8'")
            except BaseException:
                connection.close()
                raise
        else:
            given = psycopg.conninfo.conninfo_to_dict(self._connect)
            settings: dict[str, Any] = {**_DEFAULTS, "fallback_application_name": self._name, **given}
            if "PGCONNECT_TIMEOUT" in os.environ and "connect_timeout" not in given:
                del settings["connect_timeout"]
            connection = psycopg.connect(**settings, autocommit=True)
        # PgBouncer in transaction mode gives each statement another server connection, which does not know the
        # statements that were prepared on others.
        connection.prepare_threshold = None
        return connection


def state_of(error: BaseException) -> str | None:
    """The SQLSTATE of an error, also of a refused connection if the server's messages are in English."""
    state = sqlstate(error)
    if state is None and isinstance(error, psycopg.OperationalError):
        return next((state for state, text in _REFUSALS.items() if text.search(str(error))), None)
    return state


def is_about_values(error: BaseException) -> bool:
    """Whether the server, or the driver, refuses the values of a statement: because of what they are, or by a constraint or
    a trigger that somebody added, which can use any SQLSTATE. Then no repetition helps."""
    state = sqlstate(error)
    return isinstance(error, psycopg.DataError) or (state is not None and state[:2] not in _NOT_ABOUT_VALUES)


def is_about_server(error: BaseException) -> bool:
    """Whether the server does not serve any statement at the moment."""
    state = sqlstate(error) or "08"
    is_about_connection = state[:2] == "08" or state[:3] == "57P"
    # With ERROR, a trigger has lost a connection of its own, for example to a foreign server.
    if is_about_connection and isinstance(error, psycopg.Error) and error.diag.severity_nonlocalized == "ERROR":
        return False
    return is_about_connection


def is_too_large(error: BaseException) -> bool:
    """Whether the server cannot take a statement because of its time, memory or length. Then a smaller one may succeed.

    A busy server reports the same, and PgBouncer uses 08P01 for most of its errors."""
    return sqlstate(error) in ("57014", "53200", "08P01")


def is_long(size: int, is_lost: bool) -> bool:
    """Whether a text of so many characters can be the reason why a statement is too large. If the connection is lost as
    well, an outage is more likely, unless the text is very long."""
    return size > (GROUP_SIZE if is_lost else _LARGE)


@contextlib.contextmanager
def limited(connection: Connection, seconds: float) -> Iterator[None]:
    """Cancels a statement after so many seconds, and then raises a TimeoutError. If it has not ended after twice the time, the
    network is too slow, and the connection is cut."""
    lock, over, is_late = threading.Lock(), threading.Event(), False

    def end() -> None:
        nonlocal is_late
        is_late = True
        with contextlib.suppress(psycopg.Error, OSError, AttributeError):  # psycopg 3.1 can cancel, but then no other thread runs
            connection.cancel_safe(timeout=max(0.1, seconds / 2))
        over.wait(seconds / 2)
        with lock, contextlib.suppress(psycopg.Error, OSError):
            if not over.is_set():  # otherwise the number can be that of another file
                with socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as copy:
                    copy.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except QueryCanceled:
        if is_late:
            raise TimeoutError("no answer in time") from None
        raise
    finally:
        timer.cancel()
        with lock:
            over.set()


def summary(error: BaseException) -> str:
    """What happened, for the log. A trigger of the user can have a payload in the text of its error, with any SQLSTATE. So only
    errors of a connection have their text: those without a SQLSTATE, and those with which the server ends a connection."""
    state = sqlstate(error)
    if state is None:
        is_of_connection = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, OSError))
    else:
        is_of_connection = isinstance(error, psycopg.Error) and error.diag.severity_nonlocalized in ("FATAL", "PANIC")
    if is_of_connection:
        return first_line(error)
    return type(error).__name__ + (f" (SQLSTATE {state})" if state else "")


def first_line(error: BaseException) -> str:
    """What happened, without the DETAIL, which can contain values, and so can the texts of other errors than psycopg's."""
    if not isinstance(error, (psycopg.Error, OSError)):
        return type(error).__name__
    return (str(error).splitlines() or [type(error).__name__])[0]
