#!/usr/bin/env python3
"""Checks the extension's SQL scripts with pgspot, for names that another role could define.

    PYTHONPATH=<where servers.py put pgspot> lint.py FILE...

No rule is ignored. WITHOUT_PATH lists the functions without a SET clause for the search_path, which a procedure that
commits cannot have, and which a function in the condition of a trigger would not see past. Their bodies are checked as well. Code that pgspot's parser cannot read is rewritten or left out:

  - RETURN and BEGIN ATOMIC bodies are left out. The server reads them when the function is created, under the
    script's own search_path, and not again.
  - "task.run_at := x" and "RETURN NEXT f(...)" become "PERFORM x" and "PERFORM f(...)": it knows no composite
    types, and checks the same expression.
"""

import re
import subprocess
import sys
import tempfile

import pglast

LEFT_OUT = re.compile(r"^CREATE FUNCTION [^$]*\bLANGUAGE sql\b[^$]*\s(RETURN|BEGIN ATOMIC)\b", re.MULTILINE)
REWORDED = re.compile(r"^(\s+)(\w+\.\w+ :=|RETURN NEXT(?= \w+\.))", re.MULTILINE)

BULK = "dry_run boolean,batch_size integer,INOUT tasks bigint"
WITHOUT_PATH = [
    "queue_internal.how_inserted()",
    "queue_internal.check_arrival(queue text,how text,allowed boolean)",
    "queue.take(queue text,lease interval,timeout interval,worker text,INOUT id bigint,INOUT token bigint,"
    "INOUT payload jsonb,INOUT headers jsonb,INOUT attempt integer,INOUT max_attempts integer,INOUT priority integer,"
    "INOUT key text,INOUT group_key text,INOUT progress jsonb,INOUT run_at timestamptz,INOUT created_at timestamptz,"
    "INOUT lease_until timestamptz,INOUT kind text)",
    "queue.maintain()",
    f"queue.cancel_where(filter jsonb,{BULK})",
    f"queue.run_now_where(filter jsonb,{BULK})",
    f"queue.redrive_where(filter jsonb,to_queue text,{BULK})",
    f"queue.reprioritise_where(filter jsonb,priority integer,{BULK})",
    f"queue.move_where(filter jsonb,to_queue text,{BULK})",
    f"queue.purge_where(filter jsonb,{BULK})",
    "queue_internal.in_batches(verbs text[],filter jsonb,dry_run boolean,batch_size integer,"
    "to_queue text,priority integer,INOUT tasks bigint)",
    # In the SQL-only edition.
    "queue_internal.try_commit(INOUT committed boolean)",
    "queue.wait(queue text,timeout interval,INOUT ready boolean,worker text)",
    "queue.wait(queues text[],timeout interval,INOUT ready boolean,worker text)",
    "queue.wait_result(id bigint,timeout interval,INOUT state text,INOUT result jsonb)",
]

clean = True
for name in sys.argv[1:]:
    with open(name, encoding="utf8") as file:
        statements = [REWORDED.sub(r"\1PERFORM", one) for one in pglast.split(file.read())]
    kept = [one for one in statements if not LEFT_OUT.search(one)]
    with tempfile.NamedTemporaryFile("w", suffix=".sql", encoding="utf8") as reworded:
        reworded.write(";\n".join(kept) + ";\n")
        reworded.flush()
        allowed = [f"--proc-without-search-path={one}" for one in WITHOUT_PATH]
        command = [sys.executable, "-m", "pgspot", *allowed, reworded.name]
        done = subprocess.run(command, capture_output=True, text=True)
    # It also ends with 0 warnings where it gave up.
    clean &= done.returncode == 0
    print(f"{name}: {len(kept)} of {len(statements)} statements\n{done.stdout.strip()}\n{done.stderr.strip()}")
sys.exit(0 if clean else 1)
