"""Adds tasks to a queue, in the transaction of the caller's connection."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Sequence, TypedDict, Union

from .caller import execute, execute_async
from .values import Delay, to_interval, to_json, to_timestamp

if TYPE_CHECKING:
    from typing_extensions import Unpack

Interval = Union[Delay, str]  # '5 minutes' is passed on as it is


class PushOptions(TypedDict, total=False):
    """The parameters of queue.push. None means the default, as if the option were not given."""

    priority: int | None
    run_at: datetime | str | None
    delay: Interval | None
    key: str | None
    on_duplicate: str | None
    group_key: str | None
    max_attempts: int | None
    headers: Mapping[str, Any] | None
    after: Sequence[int] | None
    backoff: Mapping[str, Any] | None
    key_ttl: Interval | None
    on_predecessor_failure: str | None
    key_ttl_from: str | None
    kind: str | None
    lease: Interval | None
    timeout: Interval | None
    start_by: datetime | str | None
    ttl: Interval | None
    weight: int | None
    batch: int | None


class PushManyOptions(PushOptions, total=False):
    """The parameters of queue.push_many."""

    keys: Sequence[str | None] | None
    group_keys: Sequence[str | None] | None


def push(connection: Any, queue: str, payload: Any = {}, **options: Unpack[PushOptions]) -> int:
    """Adds a task, in the transaction of the connection. Returns the id of the task.

    Raises RuntimeError if a trigger of yours on queue.tasks has suppressed the task."""
    return _id(execute(connection, *_statement("push", queue, payload, options)))


async def push_async(connection: Any, queue: str, payload: Any = {}, **options: Unpack[PushOptions]) -> int:
    """The same on an asynchronous connection."""
    return _id(await execute_async(connection, *_statement("push", queue, payload, options)))


def push_many(connection: Any, queue: str, payloads: Iterable[Any], **options: Unpack[PushManyOptions]) -> list[int]:
    """Adds a task for each payload: all of them or none. Returns the ids in the order of the payloads, without
    those of tasks that a trigger of yours has suppressed."""
    rows = execute(connection, *_statement("push_many", queue, list(payloads), options))
    return [row[0] for row in rows]


async def push_many_async(
    connection: Any, queue: str, payloads: Iterable[Any], **options: Unpack[PushManyOptions]
) -> list[int]:
    """The same on an asynchronous connection."""
    rows = await execute_async(connection, *_statement("push_many", queue, list(payloads), options))
    return [row[0] for row in rows]


# For each type that is not sent as str(value): how the text is made, and the SQL that reads it. The elements of the
# arrays come from a JSON array, because drivers differ in how they send lists.
_TYPES: dict[str, tuple[Callable[[Any], str], str]] = {
    "jsonb": (to_json, "CAST({} AS jsonb)"),
    "interval": (to_interval, "CAST({} AS interval)"),
    "timestamptz": (to_timestamp, "CAST({} AS timestamptz)"),
    "text[]": (to_json, "ARRAY(SELECT jsonb_array_elements_text(CAST({} AS jsonb)))"),
    "bigint[]": (to_json, "ARRAY(SELECT CAST(jsonb_array_elements_text(CAST({} AS jsonb)) AS bigint))"),
    "jsonb[]": (to_json, "ARRAY(SELECT jsonb_array_elements(CAST({} AS jsonb)))"),
}

# The SQL types of the parameters. All others are text.
_PARAMETERS = {
    "payload": "jsonb", "payloads": "jsonb[]", "priority": "integer", "run_at": "timestamptz", "delay": "interval",
    "max_attempts": "integer", "headers": "jsonb", "after": "bigint[]", "backoff": "jsonb", "key_ttl": "interval",
    "lease": "interval", "timeout": "interval", "start_by": "timestamptz", "ttl": "interval", "weight": "integer",
    "batch": "bigint", "keys": "text[]", "group_keys": "text[]",
}  # fmt: skip

_KNOWN = PushManyOptions.__annotations__.keys()


def _id(rows: Sequence[Sequence[Any]]) -> int:
    id = rows[0][0]
    if id is None:
        raise RuntimeError("a trigger on queue.tasks has suppressed the task")
    return int(id)


def _statement(function: str, queue: str, payload: Any, options: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    unknown = options.keys() - _KNOWN
    if unknown:
        raise TypeError(f"queue.{function} has no parameter {sorted(unknown)[0]!r}")
    arguments = ["%(queue)s"]
    parameters = {"queue": queue}
    given = {"payload" if function == "push" else "payloads": payload}
    for name, value in [*given.items(), *((n, v) for n, v in options.items() if v is not None)]:
        type_ = _PARAMETERS.get(name, "text")
        to_text, sql = _TYPES.get(type_, (str, f"CAST({{}} AS {type_})"))
        arguments.append(f"{name} => " + sql.format(f"%({name})s"))
        parameters[name] = to_text(value)
    return f"SELECT * FROM queue.{function}({', '.join(arguments)})", parameters
