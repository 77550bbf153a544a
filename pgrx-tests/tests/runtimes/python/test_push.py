"""Pushes belong to the transaction of the caller, with every library. Libraries that are not installed are skipped."""

import asyncio
import contextlib
import importlib.util
from datetime import datetime, timedelta, timezone

import psycopg
from psycopg.rows import dict_row

from queue_ext import push, push_async, push_many, push_many_async

from case import Case, needs, URL


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

    def test_a_push_that_a_trigger_suppresses_raises(self):
        with psycopg.connect(URL) as connection:
            connection.execute("""
                CREATE FUNCTION pg_temp.suppress() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
                CREATE TRIGGER suppress BEFORE INSERT ON queue.tasks FOR EACH ROW EXECUTE FUNCTION pg_temp.suppress()""")
            with self.assertRaisesRegex(RuntimeError, "suppressed the task"):
                push(connection, self.queue)
            self.assertEqual(push_many(connection, self.queue, [1, 2]), [])
            connection.rollback()
