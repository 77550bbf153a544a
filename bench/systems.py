"""The systems that are compared, each a folder below peers/ with its statements.

    install.sql, .py, .mjs or .rs   makes its tables in an empty database
    fill.sql or .py                 empties it and loads :tasks tasks with :payload
    left.sql                        how many tasks are not finished
    one.sql                         claims a task and completes it (pgbench)
    next.sql                        completes a task and claims the next in one go (pgbench)
    batch.sql                       claims and completes :batch tasks (pgbench)
    push.sql                        pushes a task (pgbench)
    pickup.sql                      pushes a task to an idle client, if that is not what push.sql does
    stream.sql                      claims and completes :batch tasks, and pushes as many (pgbench)
    work.py, .mjs or .rs            its own client, with the settings that its documentation recommends; other clients
                                    of the same system have other names (work/clients.py)
    Cargo.toml, Cargo.lock          what its programs in Rust need

A file that is not there is work that the system cannot do.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

PEERS = Path(__file__).parent / "peers"


def fetched():
    """The folder of the peers' packages."""
    return Path(os.environ["QUEUE_EXT_HOME"]) / "peers"


@dataclass(frozen=True)
class System:
    """One of the systems. "keeps" is whether finished tasks are kept."""

    key: str
    label: str
    keeps: bool
    counts_tasks: bool = True
    peer: bool = True
    # The number of clients for batches, if it differs from the default.
    batch_clients: int = 0
    # Whether jobs end one by one, and not only whole batches.
    singly: bool = True
    # Another system, whose files it uses where its own folder has none.
    like: str = ""
    # The role whose rights its scripts have, if not those of the owner.
    role: str = ""
    # The kinds of work that are measured; empty for all that it can do.
    only: tuple = ()

    @property
    def ours(self):
        return self.key.startswith("queue_ext")

    def file(self, name):
        own = PEERS / self.key / name
        return own if own.exists() or not self.like else PEERS / self.like / name

    @property
    def database(self):
        return f"bench_{self.key}"

    def script(self, name):
        return self.file(f"{name}.sql")

    def has(self, name):
        # With larger payloads, one at a time.
        return self.script("one" if name == "payload" else name).exists() and (not self.only or name in self.only or name in ("fill", "left"))

    def install(self, cluster):
        """A new database with the system in it."""
        cluster.create_database(self.database)
        for path in sorted((PEERS / self.key).glob("install.*"), key=lambda path: path.suffix == ".sql"):
            if path.suffix == ".sql":
                cluster.psql(self.database, path, {})
            else:
                run_client(cluster, self.database, path)

    def fill(self, cluster, tasks, payload, groups=0):
        """Empties the system and loads tasks, which queue_ext can have in groups. If its own client has to load them, the
        database is created again."""
        if self.has("fill"):
            cluster.psql(self.database, self.script("fill"), {"tasks": tasks, "payload": payload, "groups": groups})
        else:
            self.install(cluster)
            run_client(cluster, self.database, self.file("fill.py"), tasks, payload)

    def left(self, cluster):
        return cluster.query(self.database, self.script("left").read_text())


def start_client(cluster, database, path, *arguments, pickup=False):
    """Starts a program that uses a system's package."""
    environment = cluster.environment(database)
    if pickup:
        environment["BENCH_PICKUP"] = "1"
    if path.suffix == ".py":
        program = [sys.executable, path]
        environment["PYTHONPATH"] = os.pathsep.join(map(str, [PEERS, fetched() / "python", "clients/python"]))
    elif path.suffix == ".rs":
        program = [fetched() / "rust" / "release" / f"{path.parent.name}-{path.stem}"]
    else:
        # Node looks for packages from where the program is.
        program = ["node", fetched() / "node" / f"{path.parent.name}-{path.name}"]
        shutil.copyfile(path, program[1])
        shutil.copyfile(PEERS / "handled.mjs", fetched() / "node" / "handled.mjs")
        own = fetched() / "node" / "node_modules" / "queue-ext"
        shutil.copytree("clients/typescript/dist", own / "dist", dirs_exist_ok=True)
        shutil.copyfile("clients/typescript/package.json", own / "package.json")
    complaints = tempfile.TemporaryFile("w+")
    process = subprocess.Popen([*map(str, program), *map(str, arguments)], env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=complaints)
    process.complaints = complaints
    return process


def await_client(process, path, timeout=300, handled=lambda: None):
    """Waits until the program ends; returns the JSON in its last line of output. Calls "handled" when all jobs have been handed to
    handlers."""
    limit = threading.Timer(timeout, process.kill)
    limit.start()
    last = ""
    try:
        for line in process.stdout:
            if line.strip() == "handled":
                handled()
            last = line.strip() or last
        process.wait()
    finally:
        limit.cancel()
        process.kill()
    process.complaints.seek(0)
    if process.returncode != 0:
        raise RuntimeError(f"{path.parent.name}/{path.name}: {process.complaints.read().strip()[-600:]}")
    return json.loads(last) if last else {}


def run_client(cluster, database, path, *arguments, handled=lambda: None):
    """Both."""
    return await_client(start_client(cluster, database, path, *arguments), path, handled=handled)


OURSELVES = System("queue_ext", "queue_ext", keeps=True, peer=False)
SQL_ONLY = System("queue_ext_sql_only", "queue_ext, SQL-only", keeps=True, peer=False, like="queue_ext")
DURABLE = System("queue_ext_durable", "queue_ext, durable leases", keeps=True, peer=False, like="queue_ext", only=("one", "payload"))
LEAN = System("queue_ext_lean", "queue_ext, payloads not kept", keeps=True, peer=False, like="queue_ext",
              only=("payload",))
ONE_QUEUE = System("queue_ext_one_queue", "queue_ext, right on one queue", keeps=True, peer=False, like="queue_ext",
                   role="bench_worker", only=("one", "payload"))
FLOOR = System("floor", "floor: two updates by key", keeps=False, counts_tasks=False, peer=False)
CEILING = System("ceiling", "ceiling: a read and an update by key", keeps=False, counts_tasks=False, peer=False,
                 like="floor", only=("one",))
BARE_INSERT = System("bare_insert", "INSERT into a bare table", keeps=False, counts_tasks=False, peer=False)
SKIP_LOCKED = System("skip_locked", "SKIP LOCKED, kept", keeps=True)
PEER_SYSTEMS = [
    SKIP_LOCKED,
    System("skip_locked_delete", "SKIP LOCKED, deleted", keeps=False),
    System("pg_boss", "pg-boss", keeps=True),
    System("graphile_worker", "graphile-worker", keeps=False),
    System("river", "River", keeps=True),
    System("procrastinate", "Procrastinate", keeps=True),
    System("pgqueuer", "PgQueuer", keeps=False),
    # A lane of awa has one cursor, so more than two claiming clients only wait for each other.
    System("awa", "awa", keeps=True, batch_clients=2),
    # PgQ gives every event to every consumer; several do not share the work.
    System("pgq", "PgQ", keeps=False, batch_clients=1, singly=False),
]
ALL = [OURSELVES, DURABLE, LEAN, ONE_QUEUE, SQL_ONLY, FLOOR, CEILING, BARE_INSERT, *PEER_SYSTEMS]
