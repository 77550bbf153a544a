"""The worker: how a worker stops, and what it leaves behind."""

import asyncio
import contextlib
import multiprocessing
import os
import pathlib
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
import unittest

import psycopg

from queue_ext import Worker
from queue_ext import push, push_many

from case import await_condition, Case, URL


async def nothing(task):
    await asyncio.sleep(0)


@contextlib.contextmanager
def proxy_that_cancels_nothing():
    """Leaves requests to cancel a statement without an answer. Yields its URL, and an event that is set by the first of them."""
    cancelled, over = threading.Event(), threading.Event()
    server = psycopg.conninfo.conninfo_to_dict(URL)

    def connect():
        if not server["host"].startswith("/"):
            return socket.create_connection((server["host"], int(server.get("port", 5432))))
        to = socket.socket(socket.AF_UNIX)
        to.connect(f"{server['host']}/.s.PGSQL.{server.get('port', 5432)}")
        return to

    def pump(source, to):
        with contextlib.suppress(OSError):
            try:
                while data := source.recv(65_536):
                    if data[4:8] == b"\x04\xd2\x16\x2e":  # the request
                        cancelled.set()
                        over.wait(120)
                        break
                    to.sendall(data)
            finally:
                to.shutdown(socket.SHUT_WR)

    class Connection(socketserver.BaseRequestHandler):
        def handle(self):
            with connect() as to:
                back = threading.Thread(target=pump, args=(to, self.request), daemon=True)
                back.start()
                pump(self.request, to)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        host, port = proxy.server_address
        try:
            yield psycopg.conninfo.make_conninfo(URL, host=host, port=port, sslmode="disable", gssencmode="disable"), cancelled
        finally:
            over.set()
            proxy.shutdown()


class Stops(Case):
    def test_a_stop_does_not_wait_for_connections_that_nothing_needs(self):
        worker, opened = Worker(self.url_of_role({"connection limit": 1}), self.queue), time.monotonic()
        with self.assertLogs("queue_ext", "WARNING") as logs:
            with self.running(worker):
                await_condition(lambda: any("too many connections" in line for line in logs.output))
                opened = time.monotonic()
        self.assertLess(time.monotonic() - opened, 4)
        self.assertFalse(any("could not be reported" in line for line in logs.output), logs.output)

    def check_claim_that_waits_for_a_lock(self, stops):
        name = [f"stops {os.getpid()}"]
        worker = self.worker(name=name[0])
        ids = push_many(self.db, self.queue, range(3))
        sessions = "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = %s"
        claims = f"{sessions} AND query LIKE '%%queue.claim%%' AND wait_event_type = 'Lock'"
        with psycopg.connect(URL) as other:
            other.execute("LOCK TABLE queue.tasks IN ACCESS EXCLUSIVE MODE")
            with self.assertNoLogs("queue_ext", "WARNING"), self.running(worker):
                await_condition(lambda: self.db.execute(claims, name).fetchone()["n"])
                for _ in range(stops - 1):  # and one more at the end
                    worker.stop()
            other.rollback()
        await_condition(lambda: self.db.execute(sessions, name).fetchone()["n"] == 0)
        self.assertEqual([(self.get(id)["state"], self.get(id)["attempt"]) for id in ids], [("queued", 0)] * 3)

    def test_a_stop_cancels_a_claim_that_would_take_tasks_for_nobody_later(self):
        self.check_claim_that_waits_for_a_lock(stops=1)

    def test_a_second_stop_cancels_such_a_claim_at_once(self):
        self.check_claim_that_waits_for_a_lock(stops=2)

    @unittest.skipUnless(hasattr(psycopg.Connection, "cancel_safe"), "psycopg before 3.2 blocks all threads meanwhile")
    def test_a_request_to_cancel_that_is_not_answered_does_not_block_the_process(self):
        name, program = f"cancels {os.getpid()}", pathlib.Path(__file__).parent.with_name("python_sync.py")
        waits = "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = %s AND query LIKE 'CALL queue.wait%%'"
        with proxy_that_cancels_nothing() as (url, cancelled):
            environment = {"DATABASE_URL": url, "QUEUE": self.queue, "NAME": name, "CONCURRENCY": "1", "HEARTBEAT": "10", "SHUTDOWN": "0"}
            process = subprocess.Popen([sys.executable, program], env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                await_condition(lambda: self.db.execute(waits, [name]).fetchone()["n"])
                process.terminate()
                self.assertTrue(cancelled.wait(30))
                self.assertEqual(process.wait(30), 0)
            finally:
                process.kill()
                process.wait()

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

    def test_a_report_that_another_transaction_blocks_keeps_no_thread(self):
        before, worker, locked = threading.active_count(), self.worker(), threading.Event()
        other = psycopg.connect(URL)
        self.addCleanup(other.close)

        @worker.handler()
        def handle(task):
            other.execute("SELECT queue.assert_lease(%s, %s)", [task.id, task.token])
            locked.set()

        push(self.db, self.queue)
        with self.assertLogs("queue_ext", "ERROR") as logs, self.running(worker):
            self.assertTrue(locked.wait(30))
        self.assertIn("1 outcomes could not be reported", str(logs.output))
        await_condition(lambda: threading.active_count() == before, seconds=30)

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

    @unittest.skipIf(sys.version_info < (3, 11), "nobody can tell who has cancelled an asyncio task")
    def test_the_end_of_the_event_loop_gives_tasks_back(self):
        worker, begun = self.worker(), threading.Event()

        @worker.handler()
        async def handle(task):
            if task.payload == "own":  # awaits something that was cancelled: a failure of the handler
                future = asyncio.get_running_loop().create_future()
                future.cancel()
                await future
            begun.set()
            await asyncio.sleep(60)

        failed = push(self.db, self.queue, "own", max_attempts=1)

        async def main():
            asyncio.create_task(worker.run_async(signals=False))
            await asyncio.to_thread(self.await_state, failed, "failed")
            self.id = push(self.db, self.queue)
            await asyncio.to_thread(begun.wait, 30)

        asyncio.run(main())
        task = self.get(self.id)
        self.assertEqual((task["state"], task["attempt"], task["errors"]), ("queued", 0, None))

    def test_a_handler_that_cancels_itself_has_failed(self):
        for asynchronous in (False, True):
            with self.subTest(asynchronous=asynchronous):
                worker = self.worker()

                @worker.handler()
                async def handle(task):
                    asyncio.get_running_loop().call_later(0.01, asyncio.current_task().cancel)
                    await asyncio.sleep(60)

                id = push(self.db, self.queue, max_attempts=2)
                if asynchronous:

                    async def main():
                        run = asyncio.create_task(worker.run_async(signals=False))
                        await asyncio.to_thread(self.await_state, id, "failed")
                        worker.stop()
                        await run

                    asyncio.run(main())
                else:
                    with self.running(worker):
                        self.await_state(id, "failed")
                self.assertIn("CancelledError", self.errors(id)[1])

    def test_leases_are_given_back_if_the_event_loop_was_closed(self):
        worker, begun = self.worker(shutdown_timeout=0.1), threading.Event()

        @worker.handler()
        async def handle(task):
            begun.set()
            await asyncio.sleep(60)

        id = push(self.db, self.queue)
        loop = asyncio.new_event_loop()
        run = loop.create_task(worker.run_async(signals=False))
        loop.run_until_complete(asyncio.to_thread(begun.wait, 30))
        loop.close()
        worker.stop()
        self.assertEqual(self.await_state(id, "queued")["attempt"], 0)
        self.assertFalse(run.done())

    def test_a_process_that_a_handler_forks_is_no_worker(self):
        worker, fork = self.worker(), multiprocessing.get_context("fork")

        def run(begun):
            begun.set()
            time.sleep(60)

        def terminated():
            begun = fork.Event()
            child = fork.Process(target=run, args=[begun])
            child.start()
            begun.wait(30)
            child.terminate()
            child.join(30)
            return child.exitcode

        def exited():
            child = os.fork()
            return sys.exit(7) if child == 0 else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        def returned():
            child = os.fork()
            return None if child == 0 else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        expected = {terminated: -signal.SIGTERM, exited: 7, returned: 0}
        calls = {call.__name__: call for call in expected}

        @worker.handler("plain")
        def plain(task):
            return calls[task.payload]()

        @worker.handler("coroutine")
        async def coroutine(task):
            return calls[task.payload]()

        ids = {push(self.db, self.queue, name, kind=kind): calls[name] for kind in ("plain", "coroutine") for name in calls}

        def stop():
            try:
                for id in ids:
                    self.await_state(id, "completed")
            finally:
                worker.stop()

        threading.Thread(target=stop).start()
        worker.run()
        self.assertEqual({id: self.get(id)["result"] for id in ids}, {id: expected[call] for id, call in ids.items()})

    def test_an_error_of_a_signal_handler_ends_the_worker_gracefully(self):
        worker, begun = self.worker(), threading.Event()

        @worker.handler()
        def handle(task):
            begun.set()
            time.sleep(0.2)

        def interrupt(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        id = push(self.db, self.queue)
        threading.Thread(target=lambda: begun.wait(30) and signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)).start()
        with self.assertRaises(KeyboardInterrupt):
            worker.run()
        self.assertEqual(self.get(id)["state"], "completed")

    def test_a_signal_stops_workers_in_other_threads_too(self):
        other, worker = self.worker(), self.worker()
        thread = threading.Thread(target=other.run)
        thread.start()
        self.addCleanup(other.stop)
        self.assertTrue(other.ready.wait(30))
        threading.Thread(target=lambda: worker.ready.wait(30) and os.kill(os.getpid(), signal.SIGTERM)).start()
        worker.run()
        thread.join(30)
        self.assertFalse(thread.is_alive())

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
