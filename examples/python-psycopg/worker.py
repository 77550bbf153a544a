"""A worker: claims letters, prints them page by page, and sends each exactly once.

    DATABASE_URL=postgresql://localhost/shop python worker.py mailer-1
"""

import os
import signal
import sys
import time

import psycopg

LOST = ("QX001", "QX003")  # Another worker has the task, or has finished it.
stopping = False


def stop(*_):
    global stopping
    stopping = True


def handle(db, task):
    lease = [task["id"], task["token"]]
    for page in range(1, task["payload"].get("pages", 1) + 1):
        time.sleep(0.02)  # The work, a piece at a time.
        extend = "SELECT * FROM queue.extend(%s, %s, progress => jsonb_build_object('page', %s::int))"
        if db.execute(extend, [*lease, page]).fetchone()["cancel_requested"]:
            db.execute("SELECT queue.confirm_cancel(%s, %s)", lease)
            return
        if stopping:
            db.execute("SELECT queue.release(%s, %s)", lease)
            return
    # What the work writes commits together with the task, or not at all.
    with db.transaction():
        db.execute("INSERT INTO letters_sent (address) VALUES (%s)", [task["payload"]["to"]])
        db.execute("SELECT queue.complete(%s, %s)", lease)


def report(db, task, error):
    try:
        db.execute("SELECT queue.fail(%s, %s, %s)", [task["id"], task["token"], repr(error)])
    except psycopg.Error as refused:
        if refused.sqlstate not in LOST:
            raise
        print(f"task {task['id']}: {refused.diag.message_primary}", file=sys.stderr)


def main(url, name):
    signal.signal(signal.SIGTERM, stop)
    with psycopg.connect(url, autocommit=True, row_factory=psycopg.rows.dict_row) as db:
        while not stopping:
            task = db.execute("SELECT * FROM queue.claim(worker => %s)", [name]).fetchone()
            if task is None:
                db.execute("CALL queue.wait(timeout => '1 second')")
                continue
            try:
                handle(db, task)
            except Exception as error:
                report(db, task, error)


if __name__ == "__main__":
    main(os.environ["DATABASE_URL"], sys.argv[1])
