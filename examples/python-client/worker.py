import os

import psycopg
from queue_ext import Worker

worker = Worker(os.environ["DATABASE_URL"], "default", concurrency=20)

@worker.handler()
def send(task):
    with psycopg.connect(os.environ["DATABASE_URL"]) as db:  # The work and its completion commit together, or not at all.
        db.execute("INSERT INTO letters_sent (address) VALUES (%s)", [task.payload["to"]])
        task.complete(db)

worker.run()
