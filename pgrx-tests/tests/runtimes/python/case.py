"""What the tests of the Python client share: each has a queue of its own on the server of DATABASE_URL.

    DATABASE_URL=... PYTHONPATH=clients/python python -m unittest discover -s pgrx-tests/tests/runtimes/python
"""

import contextlib
import importlib.util
import json
import logging
import os
import threading
import time
import unittest

import psycopg
from psycopg.rows import dict_row

from queue_ext import Worker

URL = os.environ["DATABASE_URL"]
logging.getLogger("queue_ext").setLevel(logging.CRITICAL)


def needs(*modules):
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return unittest.skipIf(missing, f"not installed: {', '.join(missing)}")


def await_condition(condition, seconds=120):
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
