"""The Python client's functions, one by one, against the server of DATABASE_URL.

    DATABASE_URL=... PYTHONPATH=clients/python python -m unittest pgrx-tests/tests/runtimes/test_python.py

Libraries that are not installed are skipped. Each test has a queue of its own.
"""

import asyncio
import contextlib
import ctypes
import importlib.util
import json
import logging
import os
import signal
import threading
import time
import unittest
import unittest.mock
from datetime import datetime, timedelta, timezone

import psycopg
from psycopg.rows import dict_row

from queue_ext import Discard, Retry, Snooze, Stopped, Task, Worker
from queue_ext import push, push_async, push_many, push_many_async
from queue_ext import heartbeat
from queue_ext.acknowledge import Acknowledger
from queue_ext.handlers import Threads
from queue_ext.run import Run as RunOfWorker

URL = os.environ["DATABASE_URL"]
logging.getLogger("queue_ext").setLevel(logging.CRITICAL)


def needs(*modules):
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return unittest.skipIf(missing, f"not installed: {', '.join(missing)}")


def await_condition(condition, seconds=30):
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"did not become true: {condition}")
        time.sleep(0.01)
    return value


class Case(unittest.TestCase):
    def setUp(self):
        self.db = psycopg.connect(URL, autocommit=True, row_factory=dict_row)
        self.addCleanup(self.db.close)
        self.queue = f"{type(self).__name__}.{self._testMethodName}.{os.getpid()}"
        options = json.dumps({"backoff": {"base": "0"}, "max_attempts": 3})
        self.db.execute("SELECT queue.create(%s, %s)", [self.queue, options])
        self.addCleanup(self.db.execute, "SELECT queue.drop(%s, force => true)", [self.queue])

    def get(self, id):
        return self.db.execute("SELECT * FROM queue.get(%s)", [id]).fetchone()

    def errors(self, id):
        return [error["error"] for error in self.get(id)["errors"] or []]

    def await_state(self, id, state):
        return await_condition(lambda: (task := self.get(id))["state"] == state and task)

    def payloads(self):
        query = "SELECT payload FROM queue.all_tasks WHERE queue = %s ORDER BY id"
        return [row["payload"] for row in self.db.execute(query, [self.queue])]

    def worker(self, **options):
        return Worker(URL, self.queue, **options)

    def url_of_role(self, settings):
        """The URL of a new superuser with these settings, such as {"datestyle": "German"}; or with a connection limit."""
        role = f"role_{os.getpid()}"
        limit = settings.pop("connection limit", -1)
        self.db.execute(f"CREATE ROLE {role} LOGIN {'NOSUPERUSER' if limit >= 0 else 'SUPERUSER'} CONNECTION LIMIT {limit}")
        self.addCleanup(self.db.execute, f"DROP ROLE {role}")
        self.addCleanup(self.db.execute, f"DROP OWNED BY {role}")
        for name, value in settings.items():
            self.db.execute(f"ALTER ROLE {role} SET {name} = '{value}'")
        if limit >= 0:
            self.db.execute("SELECT queue.grant_worker(%s, %s)", [role, self.queue])
        return psycopg.conninfo.make_conninfo(URL, user=role)

    @contextlib.contextmanager
    def running(self, worker):
        """Runs the worker in a thread, and passes on its error."""
        errors = []

        def run():
            try:
                worker.run()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            worker.stop()
            thread.join(30)
            self.assertFalse(thread.is_alive())
        if errors:
            raise errors[0]


class Push(Case):
    def check_transaction(self, connection, commit, rollback):
        """A push belongs to the transaction: it is rolled back and committed with it."""
        push(connection, self.queue, {"n": 1})
        rollback()
        id = push(connection, self.queue, {"n": "ü"}, kind="welcome", after=[], delay=0)
        ids = push_many(connection, self.queue, [{"n": 3}, None, [4]], keys=["a", None, "c"], priority=7)
        commit()
        self.assertEqual([self.get(one)["payload"] for one in [id, *ids]], [{"n": "ü"}, {"n": 3}, None, [4]])
        self.assertEqual(len(self.payloads()), 4)
        self.assertEqual(self.get(id)["kind"], "welcome")
        self.assertEqual([self.get(one)["key"] for one in ids], ["a", None, "c"])
        self.assertEqual({self.get(one)["priority"] for one in ids}, {7})

    async def check_transaction_async(self, connection):
        await push_async(connection, self.queue, {"n": 1})
        await connection.rollback()
        id = await push_async(connection, self.queue, {"n": "ü"}, delay=timedelta(hours=1))
        ids = await push_many_async(connection, self.queue, [{"n": 3}], keys=["a"])
        await connection.commit()
        self.assertEqual(self.payloads(), [{"n": "ü"}, {"n": 3}])
        self.assertEqual([type(one) for one in [id, *ids]], [int, int])

    def test_psycopg_connection_with_any_row_factory(self):
        for factory in (dict_row, psycopg.rows.namedtuple_row):
            with self.subTest(factory.__name__), psycopg.connect(URL, row_factory=factory) as connection:
                self.db.execute("DELETE FROM queue.tasks WHERE queue = %s", [self.queue])
                self.check_transaction(connection, connection.commit, connection.rollback)

    def test_psycopg_cursor(self):
        with psycopg.connect(URL) as connection, connection.cursor(row_factory=dict_row) as cursor:
            self.check_transaction(cursor, connection.commit, connection.rollback)

    def test_psycopg_async_connection_and_cursor(self):
        async def main():
            async with await psycopg.AsyncConnection.connect(URL) as connection:
                await self.check_transaction_async(connection)
                await push_async(connection.cursor(row_factory=dict_row), self.queue, {"n": 5})
                with self.assertRaisesRegex(TypeError, "_async"):
                    push(connection, self.queue)
            self.assertEqual(self.payloads()[-1], {"n": 5})

        asyncio.run(main())

    @needs("psycopg2")
    def test_psycopg2_connection_and_cursor(self):
        import psycopg2.extras

        connection = psycopg2.connect(URL, cursor_factory=psycopg2.extras.RealDictCursor)
        with contextlib.closing(connection):
            self.check_transaction(connection, connection.commit, connection.rollback)
            self.assertIsInstance(push(connection.cursor(), self.queue), int)

    @needs("sqlalchemy")
    def test_sqlalchemy_connection_and_session(self):
        import sqlalchemy.orm

        for driver in ("psycopg", "psycopg2"):
            if importlib.util.find_spec(driver) is None:
                continue
            engine = sqlalchemy.create_engine(URL.replace("postgresql:", f"postgresql+{driver}:"))
            for open in (engine.connect, lambda: sqlalchemy.orm.Session(engine)):
                with self.subTest(driver), open() as connection:
                    self.db.execute("DELETE FROM queue.tasks WHERE queue = %s", [self.queue])
                    self.check_transaction(connection, connection.commit, connection.rollback)
            engine.dispose()

    @needs("sqlalchemy", "greenlet")
    def test_sqlalchemy_async_connection_and_session(self):
        from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

        async def main(driver):
            engine = create_async_engine(URL.replace("postgresql:", f"postgresql+{driver}:"))
            for open in (engine.connect, lambda: AsyncSession(engine)):
                self.db.execute("DELETE FROM queue.tasks WHERE queue = %s", [self.queue])
                async with open() as connection:
                    await self.check_transaction_async(connection)
            await engine.dispose()

        for driver in ("psycopg", "asyncpg"):
            if importlib.util.find_spec(driver) is not None:
                with self.subTest(driver):
                    asyncio.run(main(driver))

    @needs("django")
    def test_django_connection_and_cursor(self):
        connection = django_connection()
        from django.db import transaction

        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            push(connection, self.queue, {"n": 1})
            raise ZeroDivisionError
        with transaction.atomic(), connection.cursor() as cursor:
            push(connection, self.queue, {"n": 2})
            push(cursor, self.queue, {"n": 3})
        self.assertEqual(self.payloads(), [{"n": 2}, {"n": 3}])
        worker = self.worker()
        worker.handler()(lambda task: task.payload["n"])
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            self.assertEqual(worker.drain(connection), 2)
            raise ZeroDivisionError
        self.assertEqual(len(self.payloads()), 2)
        connection.close()

    def test_every_option_arrives(self):
        before = push(self.db, self.queue)
        batch = self.db.execute("SELECT queue.create_batch(%s) AS id", [self.queue]).fetchone()["id"]
        in_an_hour = datetime.now(timezone.utc) + timedelta(hours=1)
        id = push(
            self.db, self.queue, {"n": 1}, priority=3, run_at=in_an_hour, key="k", on_duplicate="error", group_key="g",
            max_attempts=4, headers={"trace": "é"}, after=[before], backoff={"kind": "fixed"}, key_ttl="1 day",
            on_predecessor_failure="continue", key_ttl_from="push", kind="a", lease=90, timeout=timedelta(hours=2),
            start_by=in_an_hour + timedelta(hours=1), weight=1, batch=batch,
        )  # fmt: skip
        task = self.db.execute("SELECT * FROM queue.tasks WHERE id = %s", [id]).fetchone()
        expected = {
            "priority": 3, "run_at": in_an_hour, "key": "k", "group_key": "g", "max_attempts": 4, "kind": "a",
            "headers": {"trace": "é"}, "lease": timedelta(seconds=90), "timeout": timedelta(hours=2), "state": "waiting",
        }  # fmt: skip
        self.assertEqual({name: task[name] for name in expected}, expected)
        self.assertIsNotNone(self.get(push(self.db, self.queue, ttl="1 hour", delay=0.5)))

    def test_mistakes_raise_errors_that_say_what_to_do(self):
        with self.assertRaisesRegex(TypeError, "no parameter 'priorty'"):
            push(self.db, self.queue, priorty=1)
        with self.assertRaisesRegex(TypeError, "pass a connection"):
            push(URL, self.queue)
        for value in (float("nan"), {"a": ["\0"]}, "\\\0", "\ud800"):
            with self.subTest(value=value), self.assertRaises(ValueError):
                push(self.db, self.queue, value)
        self.assertEqual(self.get(push(self.db, self.queue, "\\u0000"))["payload"], "\\u0000")
        with self.assertRaisesRegex(psycopg.Error, "does not exist") as raised:
            push(self.db, "no such queue")
        self.assertEqual(raised.exception.sqlstate, "QX002")


def django_connection():
    import django
    from django.conf import settings

    if not settings.configured:
        parts = psycopg.conninfo.conninfo_to_dict(URL)
        names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
        database = {names[name]: value for name, value in parts.items() if name in names}
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **database}}, USE_TZ=True)
        django.setup()
    from django.db import connection

    return connection


class Drain(Case):
    def setUp(self):
        super().setUp()
        self.connection = psycopg.connect(URL)
        self.addCleanup(self.connection.close)
        self.work = self.worker()

    def push(self, **options):
        return push(self.connection, self.queue, **options)

    def get_here(self, id):
        row = self.connection.execute("SELECT state, result, errors, attempt, progress, run_at > now() FROM queue.get(%s)", [id])
        return dict(zip(("state", "result", "errors", "attempt", "progress", "later"), row.fetchone()))

    def test_runs_due_tasks_within_the_transaction(self):
        self.work.handler()(lambda task: {"was": task.payload, "attempt": task.attempt})
        ids = [self.push(payload={"n": n}) for n in range(3)]
        later = self.push(delay="1 hour")
        self.assertEqual(self.work.drain(self.connection), 3)
        self.assertEqual(self.get_here(ids[2])["result"], {"was": {"n": 2}, "attempt": 1})
        self.assertEqual(self.get_here(later)["state"], "queued")
        self.connection.rollback()
        self.assertEqual(self.payloads(), [])

    def test_a_task_has_the_documented_attributes(self):
        seen = []
        self.work.handler()(seen.append)
        id = self.push(payload=[1], kind="a", priority=2, key="k", group_key="g", headers={"h": 1}, max_attempts=5)
        self.work.drain(self.connection)
        task = seen[0]
        self.assertIsInstance(task, Task)
        self.assertEqual((task.id, task.queue, task.kind, task.payload), (id, self.queue, "a", [1]))
        self.assertEqual((task.attempt, task.max_attempts, task.priority, task.key), (1, 5, 2, "k"))
        self.assertEqual((task.group_key, task.headers, task.progress, task.reason), ("g", {"h": 1}, None, None))
        self.assertEqual([type(value) for value in (task.token, task.run_at, task.created_at)], [int, datetime, datetime])
        self.assertNotIn("[1]", repr(task))

    def test_outcomes(self):
        @self.work.handler("retry")
        def retry(task):
            if task.attempt == 1:
                raise Retry(message="later")

        @self.work.handler("retry in an hour")
        def retry_later(task):
            raise Retry(timedelta(hours=1))

        @self.work.handler("discard")
        def discard(task):
            raise Discard("never")

        @self.work.handler("snooze")
        def snooze(task):
            task.set_progress({"page": 3})
            raise Snooze(3600)

        @self.work.handler("raise")
        def fail(task):
            raise RuntimeError("boom \0 \ud800")

        @self.work.handler("no json")
        def no_json(task):
            return object()

        kinds = ("retry", "retry in an hour", "discard", "snooze", "raise", "no json", "unknown")
        ids = {kind: self.push(kind=kind) for kind in kinds}
        self.assertEqual(self.work.drain(self.connection), 2 + 1 + 1 + 1 + 3 + 3 + 3)
        tasks = {kind: self.get_here(id) for kind, id in ids.items()}
        self.assertEqual(tasks["retry"]["state"], "completed")
        self.assertEqual(tasks["retry"]["errors"][0]["error"], "later")
        self.assertEqual((tasks["retry in an hour"]["state"], tasks["retry in an hour"]["later"]), ("queued", True))
        self.assertEqual((tasks["discard"]["state"], tasks["discard"]["attempt"]), ("failed", 1))
        self.assertEqual((tasks["snooze"]["state"], tasks["snooze"]["attempt"]), ("queued", 0))
        self.assertEqual((tasks["snooze"]["later"], tasks["snooze"]["progress"]), (True, {"page": 3}))
        self.assertEqual((tasks["raise"]["state"], len(tasks["raise"]["errors"])), ("failed", 3))
        error = tasks["raise"]["errors"][0]
        self.assertIn('raise RuntimeError("boom', error["error"])
        self.assertEqual(error["details"], {"type": "RuntimeError"})
        self.assertIn("not JSON serializable", tasks["no json"]["errors"][0]["error"])
        self.assertEqual(tasks["unknown"]["errors"][0]["error"], "no handler for kind unknown")

    def test_what_a_failed_handler_wrote_is_undone(self):
        self.connection.execute("CREATE TEMPORARY TABLE written (n integer)")

        @self.work.handler()
        def write_and_fail(task):
            self.connection.execute("INSERT INTO written VALUES (%s)", [task.attempt])
            if task.attempt < 3:
                self.connection.execute("SELECT 1 / 0")

        id = self.push()
        self.assertEqual(self.work.drain(self.connection), 3)
        self.assertEqual(self.get_here(id)["state"], "completed")
        self.assertEqual(self.connection.execute("SELECT n FROM written").fetchall(), [(3,)])

    def test_a_task_that_its_handler_completes_is_not_reported_again(self):
        self.work.handler()(lambda task: task.complete(self.connection, {"ok": True}))
        id = self.push()
        self.assertEqual(self.work.drain(self.connection), 1)
        self.assertEqual((self.get_here(id)["state"], self.get_here(id)["result"]), ("completed", {"ok": True}))

    def test_delays_that_are_not_valid_are_errors_of_the_handler(self):
        inputs = [float("inf"), float("nan"), -1, 1e12, timedelta(days=-1), "soon"]
        for make in (Retry, Snooze):
            for delay in inputs:
                with self.subTest(make=make, delay=delay), self.assertRaises(ValueError):
                    make(delay)

    def test_exceptions_that_cannot_be_shown_are_failed_attempts(self):
        class NoDelay(Retry):
            def __init__(self):
                pass

        class NoDelayOrMessage(Snooze):
            def __init__(self):
                pass

        class NoText(Exception):
            def __str__(self):
                raise SystemExit("no text")

        class NoTextToDiscard(Discard):
            def __str__(self):
                raise ValueError("no text")

        class Later(Retry):
            delay = float("inf")

            def __init__(self):
                Exception.__init__(self, "later")

        for error in (NoDelay, NoDelayOrMessage, NoText, NoTextToDiscard, Later):
            with self.subTest(error=error):

                def fail(task, error=error):
                    raise error()

                work = self.worker()
                work.handler()(fail)
                id = self.push(max_attempts=1)
                self.assertEqual(work.drain(self.connection), 1)
                self.assertEqual(self.get_here(id)["state"], "failed")
                self.assertTrue(self.get_here(id)["errors"][0]["error"])

    def test_what_ends_the_process_is_raised(self):
        for asynchronous in (False, True):
            for error in (KeyboardInterrupt, SystemExit):
                with self.subTest(error=error, asynchronous=asynchronous):

                    def fail(task, error=error):
                        raise error

                    async def fail_async(task, error=error):
                        raise error

                    work = self.worker()
                    work.handler()(fail_async if asynchronous else fail)
                    self.push()
                    with self.assertRaises(error):
                        work.drain(self.connection)
                    self.connection.rollback()

    def test_errors_can_be_raised(self):
        self.work.handler()(lambda task: 1 / 0)
        self.push()
        with self.assertRaises(ZeroDivisionError):
            self.work.drain(self.connection, raise_errors=True)

    def test_a_task_that_is_due_again_and_again_ends_it(self):
        def snooze(task):
            raise Snooze(0)

        self.work.handler()(snooze)
        self.push()
        with self.assertRaisesRegex(RuntimeError, "again and again"):
            self.work.drain(self.connection, limit=5)

    def test_autocommit_coroutines_and_several_queues(self):
        other = f"{self.queue}.other"
        self.db.execute("SELECT queue.create(%s)", [other])
        self.addCleanup(self.db.execute, "SELECT queue.drop(%s, force => true)", [other])
        work, order = Worker(URL, [other, self.queue], lease=5), []

        @work.handler()
        async def handle(task):
            await asyncio.sleep(0)
            order.append(task.queue)

        for queue in (self.queue, other):
            push(self.db, queue)
        self.assertEqual(work.drain(self.db), 2)
        self.assertEqual(order, [other, self.queue])

    def test_on_asynchronous_connections(self):
        async def main():
            async with await psycopg.AsyncConnection.connect(URL) as connection:

                @self.work.handler("own")
                async def own(task):
                    await task.complete_async(connection, 1)

                @self.work.handler()
                async def fail(task):
                    await connection.execute("SELECT 1 / 0")

                own_id = await push_async(connection, self.queue, kind="own")
                await push_async(connection, self.queue, max_attempts=1)
                self.assertEqual(await self.work.drain_async(connection), 2)
                await connection.commit()
                self.assertEqual(self.get(own_id)["result"], 1)

        asyncio.run(main())

    @needs("sqlalchemy")
    def test_on_a_session_of_sqlalchemy(self):
        import sqlalchemy.orm

        engine = sqlalchemy.create_engine(URL.replace("postgresql:", "postgresql+psycopg:"))
        with sqlalchemy.orm.Session(engine) as session:

            @self.work.handler()
            def handle(task):
                if task.attempt == 1:
                    session.execute(sqlalchemy.text("SELECT 1 / 0"))
                task.complete(session, task.payload)

            id = push(session, self.queue, {"n": 1})
            self.assertEqual(self.work.drain(session), 2)
            session.commit()
        engine.dispose()
        self.assertEqual((self.get(id)["state"], self.get(id)["result"]), ("completed", {"n": 1}))


async def nothing(task):
    await asyncio.sleep(0)


def raise_in_thread(thread_id, error):
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(error))


class Run(Case):
    def test_plain_and_coroutine_functions_in_one_worker(self):
        worker = self.worker()

        @worker.handler("plain")
        def plain(task):
            return threading.current_thread().name

        @worker.handler("coroutine")
        async def coroutine(task):
            await asyncio.sleep(0)
            return threading.current_thread().name

        ids = [push(self.db, self.queue, kind=kind) for kind in ("plain", "coroutine")]
        with self.running(worker):
            results = [self.await_state(id, "completed")["result"] for id in ids]
        self.assertEqual(results, ["queue_ext handler", "queue_ext event loop"])

    def test_hooks_wrap_the_handlers_of_their_sort(self):
        worker, calls = self.worker(), []

        @worker.around
        def first(task, call):
            calls.append("first")
            return call() + 1

        @worker.around
        def second(task, call):
            calls.append("second")
            return call() * 2

        @worker.around
        async def third(task, call):
            calls.append("third")
            return await call() + 10

        @worker.handler("coroutine")
        async def coroutine(task):
            return 1

        worker.handler()(lambda task: 5)
        with psycopg.connect(URL) as connection:
            ids = [push(connection, self.queue), push(connection, self.queue, kind="coroutine")]
            worker.drain(connection)
        self.assertEqual([self.get(id)["result"] for id in ids], [11, 11])
        self.assertEqual(calls, ["first", "second", "third"])

    def test_one_result_that_cannot_be_stored_does_not_affect_the_others(self):
        worker, together = self.worker(concurrency=20), threading.Barrier(20, timeout=20)

        @worker.handler()
        def handle(task):
            if task.attempt == 1:
                together.wait()
            return "\0" if task.payload == 7 else task.payload

        ids = push_many(self.db, self.queue, range(20), max_attempts=1)
        # Strings that no database can store are found earlier. Others depend on the encoding of the server.
        with unittest.mock.patch("queue_ext.outcomes.to_json", json.dumps), self.running(worker):
            for n, id in enumerate(ids):
                self.await_state(id, "failed" if n == 7 else "completed")
        self.assertIn("the result cannot be stored", self.errors(ids[7])[0])

    def test_a_group_of_reports_that_is_too_large_is_sent_in_parts(self):
        execute, groups = Acknowledger._execute, []
        lost = psycopg.OperationalError("lost")

        def execute_small(self, connection, group):
            groups.append(sum(len(outcome.text or "") for _, outcome in group))
            if len(group) > 2:
                for one, _ in group:
                    if one.payload == 11:  # an answer of the server, or none
                        connection.close()
                        raise lost
                raise psycopg.errors.QueryCanceled("too slow")
            if any(one.payload == 7 and outcome.verb == "complete" for one, outcome in group):
                raise psycopg.errors.OutOfMemory("too large")
            if any(one.payload == 8 and outcome.verb == "complete" for one, outcome in group):
                raise OverflowError("of Python")
            return execute(self, connection, group)

        worker, together = self.worker(concurrency=20), threading.Barrier(20, timeout=20)

        @worker.handler()
        def handle(task):
            together.wait()
            return "x" * 1_000_000

        ids = push_many(self.db, self.queue, range(20), max_attempts=1)
        with unittest.mock.patch.object(Acknowledger, "_execute", execute_small):
            with unittest.mock.patch("queue_ext.acknowledge._PAUSE_IF_LOCKED", 0.05), self.running(worker):
                for n, id in enumerate(ids):
                    task = await_condition(lambda: (task := self.get(id))["state"] not in ("queued", "running") and task)
                    self.assertEqual((n, task["state"]), (n, "failed" if n in (7, 8) else "completed"))
        self.assertIn("the result cannot be stored", self.errors(ids[7])[0])
        self.assertLess(max(groups), 9_000_000)

    def test_claims_stop_while_reports_cannot_be_sent(self):
        execute, works, handled = Acknowledger._execute, threading.Event(), []

        def execute_later(self, connection, group):
            if not works.wait(0.05):
                raise psycopg.errors.AdminShutdown("not yet")
            return execute(self, connection, group)

        worker = self.worker(concurrency=2)
        worker.handler()(lambda task: handled.append(task.id))
        ids = push_many(self.db, self.queue, range(50))
        with unittest.mock.patch.object(Acknowledger, "_execute", execute_later), self.running(worker):
            await_condition(lambda: len(handled) >= 20)
            time.sleep(0.3)
            self.assertLessEqual(len(handled), 22)  # and those that were running
            works.set()
            for id in ids:
                self.await_state(id, "completed")

    def test_nothing_is_claimed_before_all_connections_are_open(self):
        worker = Worker(self.url_of_role({"connection limit": 1}), self.queue)
        worker.handler()(lambda task: None)
        id = push(self.db, self.queue)
        with self.assertLogs("queue_ext", "WARNING") as logs, self.running(worker):
            await_condition(lambda: any("too many connections" in line for line in logs.output))
            self.assertEqual((self.get(id)["attempt"], worker.ready.is_set()), (0, False))
            self.db.execute(f"ALTER ROLE role_{os.getpid()} CONNECTION LIMIT 3")
            self.assertEqual(self.await_state(id, "completed")["attempt"], 1)

    def test_a_long_result_that_always_loses_the_connection_is_a_failure(self):
        execute, worker = Acknowledger._execute, self.worker()

        def execute_short(self, connection, group):
            if any(outcome.verb == "complete" for _, outcome in group):
                connection.close()
                raise psycopg.OperationalError("lost")
            return execute(self, connection, group)

        worker.handler()(lambda task: "x" * 9_000_000)
        id = push(self.db, self.queue, max_attempts=1)
        with unittest.mock.patch.object(Acknowledger, "_execute", execute_short):
            with unittest.mock.patch("queue_ext.acknowledge._PAUSE_IF_LOCKED", 0.05), self.running(worker):
                self.await_state(id, "failed")
        self.assertIn("the result cannot be stored", self.errors(id)[0])

    def test_a_stop_does_not_wait_for_connections_that_nothing_needs(self):
        worker, opened = Worker(self.url_of_role({"connection limit": 1}), self.queue), time.monotonic()
        with self.assertLogs("queue_ext", "WARNING") as logs:
            with self.running(worker):
                await_condition(lambda: any("too many connections" in line for line in logs.output))
                opened = time.monotonic()
        self.assertLess(time.monotonic() - opened, 4)
        self.assertFalse(any("could not be reported" in line for line in logs.output), logs.output)

    def test_a_short_statement_timeout_and_a_locked_task_cost_no_leases(self):
        worker, locked, end = Worker(self.url_of_role({"statement_timeout": "500ms"}), self.queue, lease=2), threading.Event(), threading.Event()

        @worker.handler("locks")
        def lock(task):
            with psycopg.connect(URL) as connection:
                connection.execute("SELECT queue.step(%s, %s, 'a', '1')", [task.id, task.token])
                locked.set()
                end.wait(30)

        @worker.handler()
        def wait(task):
            self.assertTrue(locked.wait(30))
            return task.stopped.wait(task.payload)

        push(self.db, self.queue, kind="locks")
        long = push(self.db, self.queue, 4)
        with self.running(worker):
            task = self.await_state(long, "completed")
            end.set()
        self.assertEqual((task["result"], task["attempt"]), (False, 1))

    def test_a_task_that_a_transaction_has_locked_delays_no_others(self):
        worker, locks, end = self.worker(lease=2, concurrency=3), threading.Event(), threading.Event()

        @worker.handler("locks")
        def lock(task):
            with psycopg.connect(URL) as connection:
                connection.execute("SELECT queue.step(%s, %s, 'a', '1')", [task.id, task.token])
                locks.set()
                end.wait(30)

        @worker.handler()
        def wait(task):
            self.assertTrue(locks.wait(30))
            return task.stopped.wait(task.payload)

        locked = push(self.db, self.queue, kind="locks")
        long, short = push_many(self.db, self.queue, [5, 0])
        with self.running(worker):
            self.await_state(short, "completed")
            task = self.await_state(long, "completed")
            self.assertEqual((task["result"], task["attempt"]), (False, 1))
            end.set()
            await_condition(lambda: self.get(locked)["attempt"] > 1 or self.get(locked)["state"] == "completed")

    def test_progress_is_sent_with_the_heartbeat(self):
        worker, end = self.worker(lease=1), threading.Event()

        @worker.handler()
        def handle(task):
            task.set_progress({"page": 3})
            end.wait(30)

        id = push(self.db, self.queue)
        with self.running(worker):
            await_condition(lambda: self.get(id)["progress"] == {"page": 3})
            end.set()

    def test_long_progress_is_sent_in_statements_of_its_own(self):
        worker, end, sizes, extend = self.worker(lease=60, heartbeat=0.2), threading.Event(), [], heartbeat._extend
        together = threading.Barrier(3, timeout=30)

        def record(connection, tasks, *others):
            sizes.append(sum(len(task.unsent_progress or "") for task in tasks))
            return extend(connection, tasks, *others)

        @worker.handler()
        def handle(task):
            together.wait()
            task.set_progress("x" * 5_000_000)
            end.wait(30)

        ids = push_many(self.db, self.queue, range(3))
        with unittest.mock.patch.object(heartbeat, "_extend", record), self.running(worker):
            query = "SELECT count(*) AS n FROM queue.all_tasks WHERE queue = %s AND pg_column_size(progress) > 10000"
            await_condition(lambda: self.db.execute(query, [self.queue]).fetchone()["n"] == 3)
            end.set()
            for id in ids:
                self.assertEqual(self.await_state(id, "completed")["attempt"], 1)
        self.assertEqual(max(sizes), 5_000_002)

    def test_progress_that_cannot_be_stored_costs_no_lease(self):
        worker, together = self.worker(lease=1, concurrency=2), threading.Barrier(2, timeout=30)

        @worker.handler()
        def handle(task):
            together.wait()
            task.unsent_progress = task.payload
            return task.stopped.wait(3)

        ids = push_many(self.db, self.queue, ['"\\u0000"', "1"])
        with self.running(worker):
            tasks = [self.await_state(id, "completed") for id in ids]
        self.assertEqual([(task["attempt"], task["result"], task["progress"]) for task in tasks], [(1, False, None), (1, False, 1)])

    def test_progress_of_an_attempt_that_is_stopped_is_there_for_the_next(self):
        worker, begun = self.worker(shutdown_timeout=0), threading.Event()

        @worker.handler()
        def handle(task):
            begun.set()
            task.stopped.wait(30)
            task.set_progress("half")
            task.check()

        id = push(self.db, self.queue)
        with self.running(worker):
            self.assertTrue(begun.wait(30))
        task = self.get(id)
        self.assertEqual((task["state"], task["attempt"], task["progress"]), ("queued", 0, "half"))

    def test_stopped_passes_handlers_that_catch_every_exception(self):
        worker, begun = self.worker(lease=1), threading.Event()

        @worker.handler()
        def handle(task):
            begun.set()
            while True:
                try:
                    task.stopped.wait(30)
                    task.check()
                except Exception:
                    pass

        id = push(self.db, self.queue)
        with self.running(worker):
            self.assertTrue(begun.wait(30))
            self.db.execute("SELECT queue.cancel(%s)", [id])
            self.await_state(id, "cancelled")

    def test_values_that_python_cannot_represent_fail_their_task_alone(self):
        worker, seen = self.worker(lease=60), []

        @worker.handler("reads")
        def read(task):
            seen.append((task.payload, task.headers, task.progress, task.run_at))

        worker.handler("does not read")(lambda task: None)
        add = "SELECT queue.push(%s, payload => {}::jsonb, headers => {}::jsonb, kind => %s, max_attempts => 1{}) AS id"
        deep, number = "(repeat('[', 2000) || repeat(']', 2000))", "(repeat('9', 5001))"
        inputs = [
            (deep, "NULL", ""),  # too deep for some versions of Python
            (number, "NULL", ""),
            ("'{}'", "('{\"n\": ' || repeat('9', 5001) || '}')", ""),
            ("'{}'", "NULL", ", run_at => '0044-03-15 BC'"),
        ]
        add_one = lambda one, kind: self.db.execute(add.format(*one), [self.queue, kind]).fetchone()["id"]
        bad = [add_one(one, "reads") for one in inputs]
        unread = [add_one(one, "does not read") for one in inputs]
        good = push(self.db, self.queue, 1, kind="reads", headers={"a": "b"})
        with self.running(worker):
            query = "SELECT id, state, attempt FROM queue.all_tasks WHERE queue = %s AND state NOT IN ('queued', 'running')"
            await_condition(lambda: len(self.db.execute(query, [self.queue]).fetchall()) == len([*bad, *unread, good]))
            ended = {task["id"]: (task["state"], task["attempt"]) for task in self.db.execute(query, [self.queue])}
        self.assertEqual([ended[id] for id in bad[1:]], [("failed", 1)] * (len(bad) - 1))
        self.assertEqual([ended[id] for id in (*unread, good)], [("completed", 1)] * (len(unread) + 1))
        self.assertIn((1, {"a": "b"}, None), [values[:3] for values in seen])
        error = self.db.execute("SELECT errors FROM queue.get(%s)", [bad[1]]).fetchone()["errors"][0]
        self.assertEqual(error["details"], {"type": "ValueError"})

    def test_the_settings_of_the_role_do_not_matter(self):
        url = self.url_of_role({"datestyle": "German", "timezone": "Asia/Kathmandu", "extra_float_digits": "-5", "intervalstyle": "sql_standard"})
        worker, seen = Worker(url, self.queue, lease=60), []

        @worker.handler()
        def handle(task):
            seen.append((task.run_at, task.created_at))
            if task.attempt == 1:
                raise Retry(0.001)

        id = push(self.db, self.queue, run_at=datetime(2024, 2, 29, 12, 30, 15, 123457, timezone.utc))
        with self.running(worker):
            self.assertEqual(self.await_state(id, "completed")["attempt"], 2)
        self.assertEqual(seen[0][0], datetime(2024, 2, 29, 12, 30, 15, 123457, timezone.utc))
        created_at = self.db.execute("SELECT created_at FROM queue.all_tasks WHERE id = %s", [id]).fetchone()["created_at"]
        self.assertEqual(seen[0][1], created_at)

    def test_an_answer_that_cannot_be_read_is_no_outage(self):
        class Loader(psycopg.adapt.Loader):
            def load(self, data):
                raise psycopg.DataError("unreadable")

        def connect():
            connection = psycopg.connect(URL)
            connection.adapters.register_loader("int8", Loader)
            return connection

        id = push(self.db, self.queue)
        with self.assertRaisesRegex(psycopg.DataError, "unreadable"):
            Worker(connect, self.queue, lease=0.1).run(signals=False)
        self.assertEqual(self.get(id)["attempt"], 1)

    def test_a_function_can_open_the_connections(self):
        names = []

        def connect():
            names.append(threading.current_thread().name)
            return psycopg.connect(URL, row_factory=dict_row)

        worker = Worker(connect, self.queue)
        worker.handler()(lambda task: None)
        id = push(self.db, self.queue)
        with self.running(worker):
            self.await_state(id, "completed")
        self.assertGreaterEqual(len(names), 2)

    def test_errors_that_no_retry_helps_end_the_worker(self):
        role = f"nobody_{os.getpid()}"
        self.db.execute(f"CREATE ROLE {role} LOGIN")
        self.addCleanup(self.db.execute, f"DROP ROLE {role}")
        parts = psycopg.conninfo.conninfo_to_dict(URL)
        make = psycopg.conninfo.make_conninfo
        for connection, queue in (
            (URL, "no such queue"),
            (make(**{**parts, "dbname": "no such database"}), self.queue),
            (make(**{**parts, "dbname": "template1"}), self.queue),
            (make(**{**parts, "user": "no such role"}), self.queue),
            (make(**{**parts, "user": role}), self.queue),
        ):
            with self.subTest(connection=connection, queue=queue), self.assertRaises(psycopg.Error):
                Worker(connection, queue).run(signals=False)
        with self.assertRaises(psycopg.ProgrammingError):
            Worker("nonsense")

    def test_a_run_leaves_no_threads_behind(self):
        before = threading.active_count()
        worker = self.worker()
        worker.handler("coroutine")(nothing)
        worker.handler()(lambda task: None)
        ids = [*push_many(self.db, self.queue, range(20)), push(self.db, self.queue, kind="coroutine")]
        with self.running(worker):
            for id in ids:
                self.await_state(id, "completed")
        await_condition(lambda: threading.active_count() == before)

    def test_a_stop_before_the_start_and_a_second_run(self):
        worker = self.worker()
        worker.stop()
        worker.run()
        with self.assertRaisesRegex(RuntimeError, "only once"):
            worker.run()

    def test_a_cancelled_run_stops_gracefully(self):
        worker, begun = self.worker(), threading.Event()

        @worker.handler()
        async def handle(task):
            begun.set()
            await asyncio.sleep(0.2)

        id = push(self.db, self.queue)

        async def main():
            run = asyncio.create_task(worker.run_async())
            await asyncio.to_thread(begun.wait, 30)
            run.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await run

        asyncio.run(main())
        self.assertEqual(self.get(id)["state"], "completed")

    def test_an_exit_within_a_coroutine_ends_neither_the_loop_nor_the_worker(self):
        worker = self.worker(concurrency=1)

        async def leave():
            raise SystemExit(3)

        @worker.handler("exits")
        async def wait_for_exit(task):
            await asyncio.create_task(leave())

        worker.handler()(nothing)
        failed = push(self.db, self.queue, kind="exits", max_attempts=1)
        id = push(self.db, self.queue)
        with self.running(worker):
            self.await_state(failed, "failed")
            self.await_state(id, "completed")
        self.assertIn("SystemExit", self.errors(failed)[0])

    def test_an_error_raised_in_a_thread_from_outside_costs_no_slot(self):
        worker, threads = self.worker(concurrency=1), []

        @worker.handler()
        def handle(task):
            threads.append(threading.get_ident())

        end = Threads._end

        def end_after_an_error(self, task, *others):
            if task.kind == "hit":
                task.kind = "was hit"
                raise TimeoutError("from outside")
            end(self, task, *others)

        with self.running(worker):
            self.await_state(push(self.db, self.queue), "completed")
            raise_in_thread(threads[0], TimeoutError)  # an idle thread sees it when it wakes up
            for _ in range(3):
                self.await_state(push(self.db, self.queue), "completed")
            with unittest.mock.patch.object(Threads, "_end", end_after_an_error):
                self.await_state(push(self.db, self.queue, kind="hit", max_attempts=1), "failed")
            self.await_state(push(self.db, self.queue), "completed")

    def test_handlers_cannot_be_added_to_a_worker_that_runs(self):
        worker = self.worker()
        with self.running(worker):
            self.assertTrue(worker.ready.wait(30))
            with self.assertRaisesRegex(RuntimeError, "before"):
                worker.handler()(nothing)
            with self.assertRaisesRegex(RuntimeError, "before"):
                worker.around(lambda task, call: call())

    def test_a_signal_stops_all_workers_of_the_process(self):
        before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        workers = [self.worker(), self.worker(), self.worker()]

        async def main():
            runs = [asyncio.create_task(worker.run_async()) for worker in workers]
            for worker in workers:
                await asyncio.to_thread(worker.ready.wait, 30)
            workers[0].stop()
            await asyncio.wait_for(runs[0], 30)
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait_for(asyncio.gather(*runs), 30)

        asyncio.run(main())
        self.assertEqual([signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)], before)

    def test_a_completed_task_whose_transaction_was_rolled_back_keeps_its_lease(self):
        worker = self.worker(lease=1)

        @worker.handler()
        def handle(task):
            with psycopg.connect(URL) as connection:
                task.complete(connection)
                connection.rollback()
            stopped = task.stopped.wait(2.5)
            with psycopg.connect(URL) as connection:
                task.complete(connection, stopped)

        id = push(self.db, self.queue)
        with self.running(worker):
            task = self.await_state(id, "completed")
        self.assertEqual((task["result"], task["attempt"]), (False, 1))

    def test_a_completion_that_was_not_committed_is_a_failed_attempt(self):
        worker = self.worker(lease=60)

        @worker.handler()
        def handle(task):
            with psycopg.connect(URL) as connection:
                task.complete(connection)
                if task.attempt == 1:
                    connection.rollback()

        id = push(self.db, self.queue)
        with self.assertLogs("queue_ext", "WARNING") as logs, self.running(worker):
            self.assertEqual(self.await_state(id, "completed")["attempt"], 2)
        self.assertEqual(self.errors(id), ["the transaction that completed the task was not committed"])
        self.assertEqual(len(logs.output), 1, logs.output)
        self.assertIn("not committed", logs.output[0])

    def test_arguments_are_checked(self):
        for options in (
            {"heartbeat": 0}, {"heartbeat": -1}, {"heartbeat": float("nan")}, {"lease": 0}, {"lease": -1}, {"lease": float("inf")},
            {"shutdown_timeout": -1}, {"shutdown_timeout": float("nan")}, {"concurrency": 0}, {"queues": []},
        ):  # fmt: skip
            with self.subTest(options), self.assertRaises(ValueError):
                Worker(URL, **options)

    def test_a_shutdown_can_wait_for_ever(self):
        worker, begun, end = self.worker(shutdown_timeout=float("inf")), threading.Event(), threading.Event()

        @worker.handler()
        def handle(task):
            begun.set()
            end.wait(30)

        id = push(self.db, self.queue)
        with self.running(worker):
            self.assertTrue(begun.wait(30))
            worker.stop()
            end.set()
            self.await_state(id, "completed")

    def test_an_idle_worker_whose_waits_end_at_once_pauses(self):
        claims, claim = [], RunOfWorker._claim_some

        def count(self, connection, limit):
            claims.append(limit)
            return claim(self, connection, limit)

        worker = Worker(self.url_of_role({"statement_timeout": "15ms"}), self.queue)
        worker.handler()(lambda task: None)
        with unittest.mock.patch.object(RunOfWorker, "_claim_some", count), self.running(worker):
            self.assertTrue(worker.ready.wait(30))
            time.sleep(2)
            self.assertLess(len(claims), 50)
            self.await_state(push(self.db, self.queue), "completed")

    def test_workers_have_names_of_their_own(self):
        names = {self.worker()._settings_of_run().name for _ in range(3)}
        self.assertEqual(len(names), 3)
        self.assertTrue(all(f":{os.getpid()}" in name for name in names))

    def test_a_connection_that_refuses_autocommit_is_closed(self):
        opened = []

        def connect():
            connection = psycopg.connect(URL)
            connection.execute("SELECT 1")  # begins a transaction
            opened.append(connection)
            return connection

        worker = Worker(connect, self.queue)
        with self.running(worker):
            await_condition(lambda: opened and opened[0].closed)

    def test_handlers_are_registered_once(self):
        worker = self.worker()
        worker.handler("a")(print)
        with self.assertRaisesRegex(ValueError, "already"):
            worker.handler("a")(print)
        self.assertTrue(issubclass(Stopped, BaseException) and not issubclass(Stopped, Exception))


if __name__ == "__main__":
    unittest.main()
