"""What the Python programs here have in common: reading calls, and telling what came of them.

A line is a statement and its arguments, separated by tabs; an empty line ends a batch. An argument is a letter for
its type, a colon, and its text: integer, bigint, text, or array of texts.
"""

import sys


def argument(text):
    kind, value = text[0], text[2:]
    return int(value) if kind in "ib" else value.split("\x1f") if kind == "a" else value


def batches():
    batch = []
    for line in sys.stdin:
        if line == "\n":
            yield batch
            batch = []
        else:
            statement, *arguments = line[:-1].split("\t")
            batch.append((statement, [argument(text) for text in arguments]))


def tell_rows(rows):
    cells = [f"{type(value).__name__}={str(value)}" for row in rows for value in row]
    print("\t".join(["ok", *cells]), flush=True)


def tell_error(sqlstate):
    print(f"error\t{sqlstate}", flush=True)
