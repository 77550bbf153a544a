"""Worker.drain() runs due tasks within the transaction of a test."""

import asyncio
from datetime import datetime, timedelta

import psycopg

from queue_ext import Discard, Retry, Snooze, Suspended, Task, Worker
from queue_ext import push, push_async

from case import Case, needs, URL


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

    def test_a_task_that_its_handler_suspends_stays_suspended(self):
        @self.work.handler()
        def sleep(task):
            slept = "SELECT queue.sleep(%s, %s, 'a while', '1 hour')"
            if not self.connection.execute(slept, [task.id, task.token]).fetchone()[0]:
                raise Suspended

        id = self.push()
        self.assertEqual(self.work.drain(self.connection, raise_errors=True), 1)
        task = self.get_here(id)
        self.assertEqual((task["state"], task["attempt"], task["errors"]), ("queued", 0, None))
        self.assertEqual(len(self.connection.execute("SELECT * FROM queue.steps(%s)", [id]).fetchall()), 1)

    def test_a_task_that_its_handler_completes_is_not_reported_again(self):
        self.work.handler()(lambda task: task.complete(self.connection, {"ok": True}))
        id = self.push()
        self.assertEqual(self.work.drain(self.connection), 1)
        self.assertEqual((self.get_here(id)["state"], self.get_here(id)["result"]), ("completed", {"ok": True}))

    def test_a_completion_that_the_handler_rolls_back_is_a_failed_attempt(self):
        @self.work.handler()
        def roll_back(task):
            self.connection.execute("SAVEPOINT own")
            task.complete(self.connection)
            self.connection.execute("ROLLBACK TO own")

        id = self.push(max_attempts=1)
        self.assertEqual(self.work.drain(self.connection), 1)
        task = self.get_here(id)
        self.assertEqual(task["state"], "failed")
        self.assertIn("was not committed", task["errors"][0]["error"])

    def test_a_handler_can_catch_the_error_of_a_statement(self):
        @self.work.handler()
        def catch(task):
            with self.assertRaises(psycopg.errors.DivisionByZero):
                self.connection.execute("SELECT 1 / 0")

        id = self.push()
        self.assertEqual(self.work.drain(self.connection), 1)
        self.assertEqual(self.get_here(id)["state"], "completed")

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

    def test_of_a_long_error_the_end_is_stored_too(self):
        @self.work.handler()
        def fail(task):
            raise ValueError("x" * 100_000 + " the reason")

        id = self.push(max_attempts=1)
        self.work.drain(self.connection)
        error = self.get_here(id)["errors"][0]["error"]
        self.assertTrue(error.startswith("Traceback"))
        self.assertTrue(error.endswith(" the reason\n"), error[-100:])

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
