"""The worker: leases that are extended, and progress that goes with them."""

import logging
import threading
import time
import unittest.mock

import psycopg

from queue_ext import Task, Worker
from queue_ext import push, push_many
from queue_ext import heartbeat
from queue_ext.connection import limited

from case import await_condition, Case, URL


class Heartbeats(Case):
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

    def test_more_leases_than_one_statement_takes_are_extended_in_several(self):
        row = [1, self.queue, None, "{}", None, 1, 1, 0, None, None, None, "0", "0", 3600]
        tasks = [Task([2**50 + n, *row]) for n in range(100_001)]  # which nobody has pushed
        with psycopg.connect(URL, autocommit=True) as connection:
            self.assertEqual(heartbeat.extend(connection, tasks, None, logging.getLogger()), [])
        self.assertEqual({task.reason for task in tasks}, {"lost"})

    def test_a_lease_that_has_become_shorter_is_lost_in_time(self):
        worker, begun, over, told = self.worker(heartbeat=0.1, concurrency=1), threading.Event(), threading.Event(), []
        extend = heartbeat._extend

        def extend_once_more(connection, tasks, *others):
            if tasks[0].lease_seconds < 60:  # and no answer of the server arrives any more
                over.wait(120)
            return extend(connection, tasks, *others)

        @worker.handler()
        def handle(task):
            if task.attempt == 1:
                begun.set()
                told.append(task.stopped.wait(20))

        self.db.execute("SELECT queue.configure(%s, %s)", [self.queue, '{"lease": "1 hour"}'])
        push(self.db, self.queue)
        with unittest.mock.patch.object(heartbeat, "_extend", extend_once_more), self.running(worker):
            self.assertTrue(begun.wait(30))
            self.db.execute("SELECT queue.configure(%s, %s)", [self.queue, '{"lease": "1 second"}'])
            await_condition(lambda: told)
            over.set()
        self.assertEqual(told, [True])

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

        def record(connection, tasks, lease, progress):
            sizes.append(sum(len(text or "") for text in progress))
            return extend(connection, tasks, lease, progress)

        @worker.handler()
        def handle(task):
            together.wait()
            task.set_progress("x" * 5_000_000)
            end.wait(120)

        ids = push_many(self.db, self.queue, range(3))
        with unittest.mock.patch.object(heartbeat, "_extend", record), self.running(worker):
            query = "SELECT count(*) AS n FROM queue.all_tasks WHERE queue = %s AND pg_column_size(progress) > 10000"
            await_condition(lambda: self.db.execute(query, [self.queue]).fetchone()["n"] == 3, seconds=60)
            end.set()
            for id in ids:
                self.assertEqual(self.await_state(id, "completed")["attempt"], 1)
        self.assertEqual(max(sizes), 5_000_002)

    def slow_progress(self):
        """Has a trigger of the user take a minute for long progress."""
        self.addCleanup(self.db.execute, "DROP FUNCTION public.slow() CASCADE")
        self.db.execute(
            f"""CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF NEW.queue = '{self.queue}' AND length(NEW.progress::text) > 100000 AND OLD.progress IS NULL THEN
                    PERFORM pg_sleep(60);
                END IF;
                RETURN NEW; END $$;
            CREATE TRIGGER slow BEFORE UPDATE ON queue.tasks FOR EACH ROW EXECUTE FUNCTION public.slow()"""
        )

    def test_long_progress_that_takes_the_server_long_costs_no_lease(self):
        self.slow_progress()
        worker = self.worker(lease=2)

        @worker.handler()
        def handle(task):
            task.set_progress("x" * task.payload)
            return task.stopped.wait(6)

        ids = push_many(self.db, self.queue, [200_000, 1])
        with self.assertLogs("queue_ext", "WARNING") as logs, self.running(worker):
            tasks = [self.await_state(id, "completed") for id in ids]
        self.assertEqual([(task["attempt"], task["result"]) for task in tasks], [(1, False)] * 2)
        self.assertIn(f"task {ids[0]}: its progress is not stored yet, trying again", logs.output[0])
        self.assertEqual(len(logs.output), 1, logs.output)

    def test_a_statement_that_a_cancellation_does_not_end_is_cut(self):
        with psycopg.connect(URL, autocommit=True) as connection:
            began = time.monotonic()
            with unittest.mock.patch.object(psycopg.Connection, "cancel_safe"), self.assertRaises(psycopg.OperationalError):
                with limited(connection, 0.2):
                    connection.execute("SELECT pg_sleep(60)")
            self.assertLess(time.monotonic() - began, 30)
            self.assertTrue(connection.closed)
        with psycopg.connect(URL, autocommit=True) as connection:
            with limited(connection, 0.2):
                connection.execute("SELECT 1")
            time.sleep(0.5)
            connection.execute("SELECT 1")

    def test_long_progress_that_loses_the_connection_costs_no_lease(self):
        worker, groups, extend = self.worker(lease=2), [], heartbeat._extend

        def extend_or_lose(connection, tasks, lease, progress):
            if any(len(text or "") > 100_000 for text in progress):
                groups.append(len(tasks))
                connection.close()
                raise psycopg.OperationalError("lost")
            return extend(connection, tasks, lease, progress)

        @worker.handler()
        def handle(task):
            task.set_progress("x" * task.payload)
            return task.stopped.wait(5)

        ids = push_many(self.db, self.queue, [200_000, 80_000, 1])
        with unittest.mock.patch.object(heartbeat, "_extend", extend_or_lose):
            with self.assertLogs("queue_ext", "WARNING") as logs, self.running(worker):
                tasks = [self.await_state(id, "completed") for id in ids]
        self.assertEqual([(task["attempt"], task["result"]) for task in tasks], [(1, False)] * 3)
        self.assertEqual([len(task["progress"] or "") for task in tasks], [0, 80_000, 1])
        self.assertEqual(set(groups), {1})
        self.assertEqual(logs.output, [f"WARNING:queue_ext:task {ids[0]}: its progress is not stored yet, trying again: lost"])

    def test_progress_that_cannot_be_stored_costs_no_lease(self):
        worker, together = self.worker(lease=1, concurrency=2), threading.Barrier(2, timeout=30)

        @worker.handler()
        def handle(task):
            together.wait()
            task.unsent_progress = task.payload
            return task.stopped.wait(3)

        ids = push_many(self.db, self.queue, ['"\\u0000"', "1"])
        with self.assertLogs("queue_ext", "WARNING") as logs, self.running(worker):
            tasks = [self.await_state(id, "completed") for id in ids]
        self.assertEqual([(task["attempt"], task["result"], task["progress"]) for task in tasks], [(1, False, None), (1, False, 1)])
        self.assertEqual(logs.output, [f"WARNING:queue_ext:task {ids[0]}: its progress cannot be stored"])

    def test_progress_is_kept_while_the_server_is_busy(self):
        worker, end, extend = self.worker(lease=1), threading.Event(), heartbeat._extend
        busy = [psycopg.errors.QueryCanceled, psycopg.errors.OutOfMemory, psycopg.errors.ProtocolViolation]

        def extend_late(connection, tasks, *others):
            if busy and tasks[0].unsent_progress:
                raise busy.pop()("busy")
            return extend(connection, tasks, *others)

        @worker.handler()
        def handle(task):
            task.set_progress("half")
            end.wait(30)

        id = push(self.db, self.queue)
        with unittest.mock.patch.object(heartbeat, "_extend", extend_late), self.running(worker):
            await_condition(lambda: not busy)
            await_condition(lambda: self.get(id)["progress"] == "half", seconds=5)
            end.set()

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
