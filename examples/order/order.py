"""Orders: reserve, charge, wait for the payment, ship, and remind after a week.

    DATABASE_URL=postgresql://localhost/shop python order.py
"""

import os
import sys

import psycopg
from psycopg.types.json import Jsonb

PAYMENT_TIMEOUT = os.environ.get("PAYMENT_TIMEOUT", "3 days")
REMIND_AFTER = os.environ.get("REMIND_AFTER", "7 days")


def fulfil(flow, number, item):
    flow.step("reserve", lambda: change_stock(flow.db, item, -1))
    flow.call("charge", lambda key: request(flow.db, "charge", key, number))
    paid, _ = flow.event(f"payment:{number}", PAYMENT_TIMEOUT)
    if not paid:
        flow.step("cancel", lambda: change_stock(flow.db, item, 1))
        return "cancelled"
    flow.call("ship", lambda key: request(flow.db, "ship", key, number))
    flow.sleep("before the reminder", REMIND_AFTER)
    flow.step("remind", lambda: remind(flow.db, number))
    return "shipped"


class Suspended(Exception):
    """The task waits. It is claimed again when its wait is over."""


class Flow:
    """A task and its finished steps."""

    def __init__(self, db, id, token):
        self.db, self.lease = db, [id, token]
        self.done = dict(db.execute("SELECT name, value FROM queue.steps(%s) WHERE kind = 'step'", [id]))

    def step(self, name, work):
        """Changes this database. The changes and the step commit together, or not at all."""
        if name not in self.done:
            with self.db.transaction():
                self.db.execute("SELECT queue.assert_lease(%s, %s)", self.lease)
                self.store(name, work())
        return self.done[name]

    def call(self, name, work):
        """Calls another service. If the worker dies before the step is stored, it is called again with the same key."""
        if name not in self.done:
            self.store(name, work(f"{self.lease[0]}/{name}"))
        return self.done[name]

    def store(self, name, value):
        step = "SELECT queue.step(%s, %s, %s, %s)"
        self.done[name] = self.db.execute(step, [*self.lease, name, Jsonb(value)]).fetchone()[0]

    def event(self, name, timeout):
        """Returns whether an event was emitted in time, and its payload."""
        await_event = "SELECT arrived, payload FROM queue.await_event(%s, %s, %s, %s::interval)"
        row = self.db.execute(await_event, [*self.lease, name, timeout]).fetchone()
        if row is None:
            raise Suspended
        return row

    def sleep(self, name, duration):
        sleep = "SELECT queue.sleep(%s, %s, %s, %s::interval)"
        if not self.db.execute(sleep, [*self.lease, name, duration]).fetchone()[0]:
            raise Suspended


def change_stock(db, item, number):
    db.execute("UPDATE stock SET available = available + %s WHERE item = %s", [number, item])


def request(db, service, key, number):
    """Stands for an HTTP request with the header Idempotency-Key."""
    return db.execute("SELECT request(%s, %s, %s)", [service, key, number]).fetchone()[0]


def remind(db, number):
    mail = """SELECT queue.push('mail', jsonb_build_object('review_order', %s::bigint))
              WHERE NOT EXISTS (SELECT FROM reviews WHERE order_number = %s)"""
    return db.execute(mail, [number, number]).rowcount == 1


def work(db, id, token, payload):
    try:
        result = fulfil(Flow(db, id, token), payload["order"], payload["item"])
        db.execute("SELECT queue.complete(%s, %s, %s)", [id, token, Jsonb(result)])
    except Suspended:
        pass
    except Exception as error:
        print(f"task {id}: {error!r}", file=sys.stderr)
        try:
            db.execute("SELECT queue.fail(%s, %s, %s)", [id, token, repr(error)])
        except psycopg.Error as refused:
            if refused.sqlstate != "QX001":  # The lease is lost: another worker has the task.
                raise


if __name__ == "__main__":
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as db:
        while True:
            db.execute("CALL queue.wait('orders')")
            for task in db.execute("SELECT id, token, payload FROM queue.claim(queue => 'orders')").fetchall():
                work(db, *task)
