import os

import psycopg

with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as db:
    while True:
        db.execute("CALL queue.wait()")  # Returns when there is a task, or after 30 seconds.
        for id, token, payload in db.execute("SELECT id, token, payload FROM queue.claim()").fetchall():
            try:
                with db.transaction():  # The work and its completion commit together, or not at all.
                    db.execute("INSERT INTO letters_sent (address) VALUES (%s)", [payload["to"]])
                    db.execute("SELECT queue.complete(%s, %s)", [id, token])
            except Exception as error:  # Tried again after a pause; after 20 attempts a dead letter.
                db.execute("SELECT queue.fail(%s, %s, %s)", [id, token, repr(error)])
