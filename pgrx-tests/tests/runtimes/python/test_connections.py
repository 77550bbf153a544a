"""The worker: how a worker gets its connections, and what happens if they fail."""

import logging
import os
import threading
import time
import unittest.mock
from datetime import datetime, timezone

import psycopg
from psycopg.rows import dict_row

from queue_ext import Retry, Worker
from queue_ext import push
from queue_ext.connection import Outage
from queue_ext.run import Run as RunOfWorker

from case import await_condition, Case, URL


class Connections(Case):
    def test_nothing_is_claimed_before_all_connections_are_open(self):
        worker = Worker(self.url_of_role({"connection limit": 1}), self.queue)
        worker.handler()(lambda task: None)
        id = push(self.db, self.queue)
        with self.assertLogs("queue_ext", "WARNING") as logs, self.running(worker):
            await_condition(lambda: any("too many connections" in line for line in logs.output))
            self.assertEqual((self.get(id)["attempt"], worker.ready.is_set()), (0, False))
            self.db.execute(f"ALTER ROLE role_{os.getpid()} CONNECTION LIMIT 3")
            self.assertEqual(self.await_state(id, "completed")["attempt"], 1)

    def test_the_settings_of_the_role_do_not_matter(self):
        url = self.url_of_role({"datestyle": "German", "timezone": "Asia/Kathmandu", "extra_float_digits": "-15", "intervalstyle": "sql_standard", "array_nulls": "off"})
        worker, seen = Worker(url, self.queue, lease=97), []

        @worker.handler()
        def handle(task):
            seen.append((task.run_at, task.created_at))
            self.assertLess(task.lease_seconds, 98)
            if task.attempt == 1:
                raise Retry(0.001)

        id = push(self.db, self.queue, run_at=datetime(2024, 2, 29, 12, 30, 15, 123457, timezone.utc))
        with self.running(worker):
            self.assertEqual(self.await_state(id, "completed")["attempt"], 2)
        self.assertEqual(seen[0][0], datetime(2024, 2, 29, 12, 30, 15, 123457, timezone.utc))
        created_at = self.db.execute("SELECT created_at FROM queue.all_tasks WHERE id = %s", [id]).fetchone()["created_at"]
        self.assertEqual(seen[0][1], created_at)

    def test_an_outage_that_begins_in_another_is_logged_with_its_reason(self):
        outage, claims, reports = Outage(logging.getLogger("queue_ext")), object(), object()
        full, gone = psycopg.errors.DiskFull("disk full"), psycopg.OperationalError("No such file or directory")
        with self.assertLogs("queue_ext", "WARNING") as logs:
            outage.failed(reports, full)
            outage.failed(claims, gone)
            outage.failed(claims, gone)
            outage.worked(reports)
            outage.worked(claims)
            outage.worked(claims)
            outage.failed(claims, gone)
        begin, end = "the database is not available, trying again: ", "the database is available again"
        refused = begin + "DiskFull (SQLSTATE 53100)"
        expected = [refused, begin + str(gone), end, begin + str(gone)]
        self.assertEqual([record.getMessage() for record in logs.records], expected)

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

    def test_a_function_can_open_connections_with_another_encoding(self):
        url = self.url_of_role({"client_encoding": "LATIN1"})
        worker = Worker(lambda: psycopg.connect(url), self.queue)
        worker.handler()(lambda task: task.payload)
        id = push(self.db, self.queue, "€")
        with self.running(worker):
            self.assertEqual(self.await_state(id, "completed")["result"], "€")

    def test_a_function_can_leave_its_settings_in_an_open_transaction(self):
        def connect():
            connection = psycopg.connect(URL)
            connection.execute("SET application_name = 'set by the function'")
            return connection

        worker = Worker(connect, self.queue)
        worker.handler()(lambda task: None)
        id = push(self.db, self.queue)
        with self.running(worker):
            self.await_state(id, "completed")
            sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'set by the function'"
            self.assertEqual(self.db.execute(sessions).fetchone()["count"], 3)

    def test_an_error_of_a_logging_handler_ends_no_worker(self):
        class Broken(logging.Handler):
            def emit(self, record):
                raise ConnectionError("the log server is away")

        log, broken = logging.getLogger("queue_ext"), Broken()
        level = log.level
        log.addHandler(broken)
        log.setLevel(logging.INFO)
        try:
            worker = self.worker(heartbeat=0.1)

            @worker.handler()
            def handle(task):
                if task.payload == "lost":
                    self.db.execute("SELECT queue.end_lease(%s)", [task.id])
                    task.stopped.wait(30)
                    return
                raise ValueError

            lost, failed = push(self.db, self.queue, "lost", max_attempts=1), push(self.db, self.queue, max_attempts=2)
            with self.running(worker):
                self.assertEqual(self.await_state(failed, "failed")["attempt"], 2)
                self.await_state(lost, "failed")
        finally:
            log.removeHandler(broken)
            log.setLevel(level)

    def test_any_error_of_the_function_is_an_outage_after_the_first_claim(self):
        class SecretsUnavailable(Exception):
            pass

        errors, begun, end, name = [], threading.Event(), threading.Event(), f"secrets {os.getpid()}"

        def connect():
            if errors:
                raise errors.pop()
            return psycopg.connect(URL, application_name=name)

        worker = Worker(connect, self.queue, lease=60, heartbeat=0.1)

        @worker.handler()
        def handle(task):
            begun.set()
            end.wait(30)
            return "short"

        id = push(self.db, self.queue, max_attempts=1)
        with self.assertLogs("queue_ext", "WARNING") as logs, self.running(worker):
            self.assertTrue(begun.wait(30))
            errors += [SecretsUnavailable("S3CR3T"), psycopg.DataError(), psycopg.errors.LockNotAvailable()] * 5
            terminate = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s"
            self.db.execute(terminate, [name])
            end.set()
            self.assertEqual(self.await_state(id, "completed")["result"], "short")
            self.await_state(push(self.db, self.queue, max_attempts=1), "completed")
        self.assertNotIn("S3CR3T", str(logs.output))

    def test_an_error_of_the_function_before_the_first_claim_ends_the_worker(self):
        def connect():
            raise KeyError("no such secret")

        with self.assertRaises(KeyError):
            Worker(connect, self.queue).run(signals=False)

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

        class Refusing(psycopg.Connection):
            def refuse(self, value):
                raise psycopg.ProgrammingError("no")

            autocommit = property(lambda self: False, refuse)

        def connect():
            connection = Refusing.connect(URL)
            opened.append(connection)
            return connection

        worker = Worker(connect, self.queue)
        with self.running(worker):
            await_condition(lambda: opened and opened[0].closed)
