"""Tasks that carry the trace context of their producer, with OpenTelemetry: docs/tracing.md.

    python tracing.py push "host=localhost dbname=shop"    pushes an order
    python tracing.py work "host=localhost dbname=shop"    does the tasks that are due, and exits

It prints its spans, one per line. A service would send them to its collector instead of using ConsoleSpanExporter.
"""

import os
import sys

import psycopg
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.trace import Link, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from psycopg.types.json import Jsonb

tracer = trace.get_tracer("shop")
propagator = TraceContextTextMapPropagator()  # traceparent and tracestate, and nothing else


def span(name, operation, kind, queue, links=()):
    attributes = {
        "messaging.system": "postgresql_queue",
        "messaging.operation.name": name,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
    }
    return tracer.start_as_current_span(f"{name} {queue}", kind=kind, links=links, attributes=attributes)


def push(connection, queue, payload):
    with span("send", "send", SpanKind.PRODUCER, queue) as current:
        headers = {}
        propagator.inject(headers)
        statement = "SELECT queue.push(%s, %s, headers => %s) AS id"
        task = connection.execute(statement, [queue, Jsonb(payload), Jsonb(headers)]).fetchone()
        current.set_attribute("messaging.message.id", str(task["id"]))


def origin(task):
    """A link to the span in which the task was pushed; none if the headers have no valid context."""
    headers = task["headers"] or {}
    carrier = {name: headers[name] for name in propagator.fields if isinstance(headers.get(name), str)}
    found = trace.get_current_span(propagator.extract(carrier)).get_span_context()
    return [Link(found)] if found.is_valid else []


def claim(connection, queue, max_tasks):
    with span("receive", "receive", SpanKind.CLIENT, queue) as current:
        statement = "SELECT * FROM queue.claim('30 seconds', %s, %s, %s)"
        tasks = connection.execute(statement, [queue, max_tasks, f"tracing.py {os.getpid()}"]).fetchall()
        current.set_attribute("messaging.batch.message_count", len(tasks))
        for link in (link for task in tasks for link in origin(task)):
            current.add_link(link.context)
    return tasks


def settle(connection, task, name, statement, *arguments):
    with span(name, "settle", SpanKind.CLIENT, task["queue"]) as current:
        current.set_attribute("messaging.message.id", str(task["id"]))
        connection.execute(statement, [task["id"], task["token"], *arguments])


def work(connection, task):
    """Your code."""
    connection.execute("INSERT INTO orders_shipped (number) VALUES (%s)", [task["payload"]["number"]])


def handle(connection, task):
    with span("process", "process", SpanKind.CONSUMER, task["queue"], origin(task)) as current:
        current.set_attribute("messaging.message.id", str(task["id"]))
        try:
            with connection.transaction():
                work(connection, task)
                settle(connection, task, "ack", "SELECT queue.complete(%s, %s)")
        except Exception as error:
            current.set_attribute("error.type", type(error).__name__)
            current.set_status(StatusCode.ERROR)
            if getattr(error, "sqlstate", None) not in ("QX001", "QX003"):  # The lease is lost: report nothing.
                settle(connection, task, "nack", "SELECT queue.fail(%s, %s, %s)", repr(error))


def main(what, conninfo):
    provider = TracerProvider()
    line = lambda span: span.to_json(indent=None) + "\n"
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=line)))
    trace.set_tracer_provider(provider)
    with psycopg.connect(conninfo, autocommit=True, row_factory=psycopg.rows.dict_row) as connection:
        if what == "push":
            with tracer.start_as_current_span("POST /orders", kind=SpanKind.SERVER):
                push(connection, "default", {"number": 7})
        else:
            while tasks := claim(connection, "default", 10):
                for task in tasks:
                    handle(connection, task)


if __name__ == "__main__":
    main(*sys.argv[1:])
