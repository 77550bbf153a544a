"""Runs one statement on a connection of the caller's, and in its transaction, whatever library the connection is from.

Parameters are written %(name)s and passed as text, which all drivers send alike. Casts are written CAST(... AS ...), because
SQLAlchemy reads a colon as the beginning of a parameter.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, cast

import psycopg
from psycopg.rows import tuple_row

_PARAMETER = re.compile(r"%\((\w+)\)s")

Rows = list[tuple[Any, ...]]
Parameters = Mapping[str, "str | None"]


def execute(connection: Any, statement: str, parameters: Parameters) -> Rows:
    """Takes a connection or cursor of psycopg or psycopg2, one of Django's, or a Connection or Session of SQLAlchemy."""
    if _is_of(connection, "sqlalchemy"):
        result = connection.execute(_text(statement), dict(parameters))
        if hasattr(result, "__await__"):
            result.close()
            raise TypeError("this is an asynchronous connection: use the function whose name ends with _async")
        return [tuple(row) for row in (result.fetchall() if result.returns_rows else [])]
    if hasattr(connection, "fetchall"):  # a cursor, whose rows can have any form
        connection = connection.connection
    if isinstance(connection, (psycopg.AsyncConnection, psycopg.AsyncCursor)):
        raise TypeError("this is an asynchronous connection: use the function whose name ends with _async")
    if not hasattr(connection, "cursor"):
        raise TypeError(f"cannot execute a statement on {type(connection).__qualname__}: pass a connection")
    is_psycopg = isinstance(connection, psycopg.Connection)
    with connection.cursor(row_factory=tuple_row) if is_psycopg else connection.cursor() as cursor:
        cursor.execute(_PARAMETER.sub(r"CAST(%(\1)s AS text)", statement), dict(parameters))
        rows = cursor.fetchall() if cursor.description else []
        return [tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in rows]


async def execute_async(connection: Any, statement: str, parameters: Parameters) -> Rows:
    """Takes an AsyncConnection or AsyncCursor of psycopg, or an AsyncConnection or AsyncSession of SQLAlchemy."""
    if _is_of(connection, "sqlalchemy"):
        result = await connection.execute(_text(statement), dict(parameters))
        return [tuple(row) for row in (result.fetchall() if result.returns_rows else [])]
    if isinstance(connection, psycopg.AsyncCursor):
        connection = connection.connection
    if not isinstance(connection, psycopg.AsyncConnection):
        raise TypeError(f"{type(connection).__qualname__} is not an asynchronous connection of psycopg or SQLAlchemy")
    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(_PARAMETER.sub(r"CAST(%(\1)s AS text)", statement), parameters)
        return await cursor.fetchall() if cursor.description else []


def sqlstate(error: BaseException | None) -> str | None:
    """The SQLSTATE of an error, which Django and SQLAlchemy wrap in errors of their own."""
    while error is not None:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if state:
            return cast(str, state)
        error = error.__cause__
    return None


def _is_of(value: object, library: str) -> bool:
    return any(base.__module__.partition(".")[0] == library for base in type(value).__mro__)


def _text(statement: str) -> Any:
    import sqlalchemy

    return sqlalchemy.text(_PARAMETER.sub(r"CAST(:\1 AS text)", statement))
