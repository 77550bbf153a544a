"""The worker: results, reports of many at once, and tasks that a handler completes itself."""

import contextlib
import json
import os
import threading
import time
import unittest.mock

import psycopg

import queue_ext.task
from queue_ext import Suspended, Worker, push, push_many
from queue_ext.acknowledge import Acknowledger
from queue_ext.heartbeat import Heartbeat

from case import await_condition, Case, URL


class Results(Case):
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

    def refuse(self, payload, sqlstate):
        """Has a trigger of the user refuse that a task with this payload completes; nothing if it is null."""
        self.addCleanup(self.db.execute, "DROP FUNCTION IF EXISTS public.refuse() CASCADE")
        self.db.execute(
            f"""CREATE OR REPLACE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF NEW.queue = '{self.queue}' AND NEW.payload = '{json.dumps(payload)}' AND NEW.payload <> 'null' THEN
                    RAISE EXCEPTION 'refused: %', NEW.payload USING ERRCODE = '{sqlstate}';
                END IF;
                RETURN NEW; END $$;
            CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON queue.history FOR EACH ROW EXECUTE FUNCTION public.refuse()"""
        )

    def test_a_report_that_a_trigger_refuses_does_not_delay_the_others(self):
        self.refuse(7, "P0001")
        worker = self.worker(concurrency=10)
        worker.handler()(lambda task: None)
        ids = push_many(self.db, self.queue, range(20), max_attempts=1)
        with self.running(worker):
            for n, id in enumerate(ids):
                self.await_state(id, "failed" if n == 7 else "completed")
            self.assertIn("the result cannot be stored: refused", self.errors(ids[7])[0])
            # An error that may end, of the server or of something that the trigger needs, is tried again; meanwhile others are
            # reported.
            for first, sqlstate in (20, "XX001"), (150, "42P01"):
                self.refuse(first + 7, sqlstate)
                ids = push_many(self.db, self.queue, range(first, first + 130), max_attempts=1)
                for n, id in enumerate(ids):
                    if n != 7:
                        self.await_state(id, "completed")
                self.assertEqual(self.get(ids[7])["state"], "running")
                self.refuse(None, sqlstate)
                self.await_state(ids[7], "completed")

    def test_the_text_of_an_error_of_a_trigger_is_stored_and_not_logged(self):
        self.refuse("S3CR3T", "XX001")
        worker = self.worker()
        worker.handler()(lambda task: None)
        id = push(self.db, self.queue, "S3CR3T", max_attempts=1)
        with self.assertLogs("queue_ext", "WARNING") as logs, self.running(worker):
            await_condition(lambda: any("not accepted yet, trying again: DataCorrupted (SQLSTATE XX001)" in line for line in logs.output))
            self.refuse("S3CR3T", "P0001")
            self.await_state(id, "failed")
        self.assertIn('the result cannot be stored: refused: "S3CR3T"', self.errors(id)[0])
        self.assertNotIn("S3CR3T", str(logs.output))

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

    def test_a_short_result_is_sent_until_the_server_takes_it(self):
        execute, worker = Acknowledger._execute, self.worker()
        busy = [psycopg.errors.QueryCanceled, psycopg.errors.OutOfMemory, psycopg.errors.ProtocolViolation] * 2

        def execute_late(self, connection, group):
            if busy:
                error = busy.pop()("busy")
                if isinstance(error, psycopg.errors.ProtocolViolation):  # as PgBouncer ends a connection
                    connection.close()
                raise error
            return execute(self, connection, group)

        worker.handler()(lambda task: "short")
        id = push(self.db, self.queue, max_attempts=1)
        with unittest.mock.patch.object(Acknowledger, "_execute", execute_late):
            with (
                unittest.mock.patch("queue_ext.acknowledge._PAUSE_IF_LOCKED", 0.05),
                self.assertLogs("queue_ext", "WARNING") as logs,
                self.running(worker),
            ):
                task = await_condition(lambda: (task := self.get(id))["state"] not in ("queued", "running") and task)
        self.assertEqual((task["state"], task["result"], busy), ("completed", "short", []))
        self.assertEqual(sum("is not accepted yet" in line for line in logs.output), 1)

    def test_a_cancelled_handler_that_locks_its_task_delays_no_reports(self):
        worker, locked = self.worker(lease=60, heartbeat=0.1, concurrency=3), threading.Event()
        connection = psycopg.connect(URL)
        self.addCleanup(connection.close)

        @worker.handler("cancelled")
        def wait(task):
            task.stopped.wait(30)
            if task.payload == "locks":
                connection.execute("SELECT queue.assert_lease(%s, %s)", [task.id, task.token])
                locked.set()
            task.check()

        worker.handler()(lambda task: None)
        ids = push_many(self.db, self.queue, ["locks", "is quick"], kind="cancelled")
        with self.assertNoLogs("queue_ext", "WARNING"), self.running(worker):
            for id in ids:
                self.await_state(id, "running")
                self.db.execute("SELECT queue.cancel(%s)", [id])
            self.assertTrue(locked.wait(30))
            self.await_state(ids[1], "cancelled")
            time.sleep(0.3)  # the report of the task that is locked is under way
            self.await_state(push(self.db, self.queue), "completed")
            connection.rollback()
            self.await_state(ids[0], "cancelled")

    def test_results_of_a_queue_without_the_right_are_counted_in_the_log(self):
        role, other = f"role_{os.getpid()}", f"other {os.getpid()}"
        self.db.execute("SELECT queue.create(%s)", [other])
        self.addCleanup(self.db.execute, "SELECT queue.drop(%s, force => true)", [other])
        url = self.url_of_role({"connection limit": 10})
        self.db.execute("SELECT queue.grant_worker(%s, %s)", [role, other])
        worker, together = Worker(url, [self.queue, other], lease=60, heartbeat=60), threading.Barrier(4, timeout=30)

        @worker.handler()
        def handle(task):
            together.wait()  # all have begun
            together.wait()  # the right is revoked

        ids = [*push_many(self.db, other, [1, 2]), push(self.db, self.queue)]
        # The next claim ends the worker.
        with self.assertLogs("queue_ext", "WARNING") as logs, contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            with self.running(worker):
                together.wait()
                self.db.execute("SELECT queue.revoke_worker(%s, %s)", [role, other])
                together.wait()
                self.await_state(ids[2], "completed")
        late = [int(line.split(": ")[1].split()[0]) for line in logs.output if f"queue {other}: " in line]
        self.assertEqual(sum(late), 2, logs.output)

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

    def test_a_heartbeat_before_the_answer_to_a_completion_stops_no_handler(self):
        worker, complete, beats, beat = self.worker(lease=60, heartbeat=0.1), queue_ext.task.execute, [], Heartbeat._extend_all

        def extend(self, *arguments, **options):
            locked = beat(self, *arguments, **options)
            beats.append(locked)
            return locked

        @worker.handler()
        def handle(task):
            def execute(*arguments):
                rows, before = complete(*arguments), len(beats)
                await_condition(lambda: len(beats) > before + 1 or task.reason)  # one of them has begun after the statement
                return rows

            with psycopg.connect(URL, autocommit=True) as connection, unittest.mock.patch("queue_ext.task.execute", execute):
                task.complete(connection)
            reasons.append(task.reason)

        reasons, id = [], push(self.db, self.queue)
        with unittest.mock.patch.object(Heartbeat, "_extend_all", extend):
            with self.assertNoLogs("queue_ext", "WARNING"), self.running(worker):
                await_condition(lambda: reasons)
        self.assertEqual((reasons, self.get(id)["state"]), ([None], "completed"))

    def test_a_completion_that_was_refused_is_none(self):
        worker = self.worker(lease=60)

        @worker.handler()
        def handle(task):
            with psycopg.connect(URL) as connection:
                with self.assertRaises(psycopg.errors.DivisionByZero), unittest.mock.patch("queue_ext.task._COMPLETE", "SELECT 1 / 0"):
                    task.complete(connection)
            return task.completed

        id = push(self.db, self.queue)
        with self.running(worker):
            self.assertEqual(self.await_state(id, "completed")["result"], False)

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

    def test_a_handler_can_suspend_its_task_until_an_event(self):
        worker, calls = self.worker(), []

        @worker.handler()
        def handle(task):
            with psycopg.connect(URL, autocommit=True) as own:
                await_event = "SELECT payload FROM queue.await_event(%s, %s, 'paid')"
                event = own.execute(await_event, [task.id, task.token]).fetchone()
            calls.append(event)
            if event is None:
                raise Suspended
            return event[0]

        id = push(self.db, self.queue)
        with self.assertNoLogs("queue_ext", "WARNING"), self.running(worker):
            self.await_state(id, "waiting")
            await_condition(lambda: calls)
            self.db.execute("SELECT queue.emit(%s, 'paid', '7')", [self.queue])
            self.assertEqual(self.await_state(id, "completed")["result"], 7)
        self.assertEqual((calls, self.get(id)["attempt"]), ([None, (7,)], 1))
