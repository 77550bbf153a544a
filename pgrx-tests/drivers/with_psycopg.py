"""Makes the calls that it reads with psycopg 3, in the mode that its argument names."""

import os
import re
import sys

import psycopg
from calls import batches, tell_error, tell_rows

mode = sys.argv[1]
connection = psycopg.connect(
    os.environ["DATABASE_URL"],
    autocommit=True,
    cursor_factory=psycopg.ClientCursor if mode == "simple" else psycopg.Cursor,
    # Through PgBouncer, whose server connections do not know each other's statements.
    prepare_threshold=None if mode == "pooled" else 5,
)


def send(statement, arguments):
    prepare = True if mode == "prepared" else None
    return connection.execute(re.sub(r"\$\d", "%s", statement), arguments, prepare=prepare)


for batch in batches():
    if mode == "pipelined":
        try:
            with connection.pipeline():
                cursors = [send(*call) for call in batch]
                for cursor in cursors:
                    tell_rows(cursor.fetchall())
        except psycopg.Error as error:
            tell_error(error.sqlstate)
        continue
    for call in batch:
        try:
            tell_rows(send(*call).fetchall())
        except psycopg.Error as error:
            tell_error(error.sqlstate)
