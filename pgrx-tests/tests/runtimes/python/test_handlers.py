"""The worker: what may be a handler, and what one may raise."""

import asyncio
import ctypes
import threading
import unittest.mock

import psycopg

from queue_ext import Stopped, Worker
from queue_ext import push
from queue_ext.handlers import Threads

from case import Case, URL


async def nothing(task):
    await asyncio.sleep(0)


def raise_in_thread(thread_id, error):
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(error))


class Handlers(Case):
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

    def test_arguments_are_checked(self):
        for options in (
            {"heartbeat": 0}, {"heartbeat": -1}, {"heartbeat": float("nan")}, {"lease": 0}, {"lease": -1}, {"lease": float("inf")},
            {"shutdown_timeout": -1}, {"shutdown_timeout": float("nan")}, {"concurrency": 0}, {"queues": []},
        ):  # fmt: skip
            with self.subTest(options), self.assertRaises(ValueError):
                Worker(URL, **options)

    def test_handlers_are_registered_once(self):
        worker = self.worker()
        worker.handler("a")(print)
        with self.assertRaisesRegex(ValueError, "already"):
            worker.handler("a")(print)
        self.assertTrue(issubclass(Stopped, BaseException) and not issubclass(Stopped, Exception))
