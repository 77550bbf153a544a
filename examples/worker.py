"""A worker: claims tasks, does them, completes each in the same transaction as its own writes.

    python worker.py "host=localhost dbname=shop"

It sleeps in queue.wait while there is nothing to do, and stops cleanly on SIGTERM.
"""

import os
import signal
import sys

import psycopg

stopping = False


def stop(*_):
    global stopping
    stopping = True


def work(connection, task):
    """What this worker is for. Its writes commit together with the task, or not at all."""
    connection.execute("INSERT INTO letters_sent (address) VALUES (%s)", [task["payload"]["to"]])


def handle(connection, task):
    try:
        with connection.transaction():
            work(connection, task)
            connection.execute("SELECT queue.complete(%s, %s)", [task["id"], task["token"]])
    except psycopg.Error as error:
        if error.sqlstate == "QX001":  # the lease is lost: somebody else has the task now
            return
        connection.execute("SELECT queue.fail(%s, %s, %s)", [task["id"], task["token"], repr(error)])
    except Exception as error:
        connection.execute("SELECT queue.fail(%s, %s, %s)", [task["id"], task["token"], repr(error)])


def main(conninfo):
    signal.signal(signal.SIGTERM, stop)
    name = f"worker.py {os.getpid()}"
    rows = psycopg.rows.dict_row
    with psycopg.connect(conninfo, autocommit=True, row_factory=rows) as connection:
        while not stopping:
            claim = "SELECT * FROM queue.claim('30 seconds', worker => %s)"
            task = connection.execute(claim, [name]).fetchone()
            if task:
                handle(connection, task)
            else:
                # Until there is something to claim; in between, see whether to stop.
                connection.execute("CALL queue.wait(timeout => '1 second')")


if __name__ == "__main__":
    main(sys.argv[1])
