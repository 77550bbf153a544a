"""A temporary Postgres server for all systems of the benchmark.

The server is that of the environment's PG_CONFIG, in a folder below QUEUE_EXT_HOME. Nothing about its
durability is changed. Each system gets a database of its own, so that what the server counts for a
database is what that system did.
"""

import os
import pwd
import shutil
import subprocess
import time
from pathlib import Path

import psycopg

# The same for every system. Checkpoints are requested between the runs, so that none happens during one run and not during
# another. Autovacuum runs often, so that every run has it.
SETTINGS = {
    "listen_addresses": "''",
    "max_connections": "420",
    "shared_preload_libraries": "'queue_ext'",
    "shared_buffers": "'1GB'",
    "max_wal_size": "'16GB'",
    "checkpoint_timeout": "'30min'",
    "autovacuum_naptime": "'5s'",
    "jit": "off",
    "log_min_messages": "warning",
}
# Settings that are listed in the results, to show how durable a commit was.
REPORTED = ["fsync", "synchronous_commit", "full_page_writes", "wal_level", "wal_compression", *SETTINGS]


def pg_config(option):
    """The output of PG_CONFIG."""
    return subprocess.run([os.environ["PG_CONFIG"], option], check=True, capture_output=True, text=True).stdout.strip()


def server_user():
    """The user that runs the server if this is root, because Postgres refuses root; otherwise nothing."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise SystemExit("neither postgres nor nobody is a user here, and the server does not run as root")


class Cluster:
    """The server, and how to reach it."""

    def __init__(self, name="bench"):
        self.folder = Path(os.environ["QUEUE_EXT_HOME"]) / "run" / name
        self.data = self.folder / "data"
        self.bindir = Path(pg_config("--bindir"))
        self.user = server_user()
        self.process = None

    def start(self):
        """Creates a new server and waits until it accepts connections."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if self.user:
            os.chown(self.folder, self.user["user"], self.user["group"])
        self._as_server("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
                        "--locale=C.UTF-8", "--no-sync")
        lines = [f"{name} = {value}" for name, value in SETTINGS.items()]
        lines.append(f"unix_socket_directories = '{self.folder}'")
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write("\n".join(lines) + "\n")
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self.bindir / "postgres", "-D", self.data], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd="/", start_new_session=True, **self.user)
        for _ in range(600):
            try:
                self.connect("postgres").close()
                return self
            except psycopg.OperationalError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        raise SystemExit(f"the server does not start; see {self.folder / 'log'}")

    def stop(self):
        """Stops the server and deletes its files."""
        if self.process and self.process.poll() is None:
            self._as_server("pg_ctl", "-D", self.data, "-m", "immediate", "-w", "stop")
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _as_server(self, program, *arguments):
        done = subprocess.run([self.bindir / program, *map(str, arguments)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, cwd="/", **self.user)
        if done.returncode != 0:
            raise SystemExit(f"{program} failed:\n{done.stdout}")

    def connect(self, database, autocommit=True, **options):
        """A psycopg connection."""
        return psycopg.connect(host=str(self.folder), user="postgres", dbname=database, autocommit=autocommit,
                               **options)

    def url(self, database):
        """The address of the database, in a form that all drivers accept."""
        socket = str(self.folder).replace("/", "%2F")
        return f"postgresql://postgres@{socket}/{database}"

    def environment(self, database):
        """The environment in which libpq, and the drivers that imitate it, find the database."""
        return {**os.environ, "PGHOST": str(self.folder), "PGUSER": "postgres", "PGDATABASE": database,
                "DATABASE_URL": self.url(database)}

    def create_database(self, name):
        """A new, empty database."""
        with self.connect("postgres") as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            connection.execute(f'CREATE DATABASE "{name}"')

    def drop_database(self, name):
        """Drops a database."""
        with self.connect("postgres") as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def query(self, database, sql, *arguments):
        """The first row of a query, or its value if it has only one column."""
        with self.connect(database) as connection:
            cursor = connection.execute(sql, arguments)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row and len(row) == 1 else row

    def psql(self, database, path, variables):
        """Runs a file of SQL; fails when a statement does."""
        command = [self.bindir / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-o", os.devnull]
        for name, value in variables.items():
            command += ["-v", f"{name}={value}"]
        done = subprocess.run([*command, "-f", path], env=self.environment(database), capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{Path(path).parent.name}/{Path(path).name}: {done.stderr.strip()}")

    def settle(self, database):
        """Prepares a run: vacuums and analyzes the tables, and makes a checkpoint."""
        with self.connect(database) as connection:
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")

    def processor_seconds(self):
        """The processor time of the server so far: of its processes, and of those that have ended."""
        def ticks(pid, fields):
            return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[fields]))

        postmaster = self.process.pid
        while True:
            children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
            try:
                # Its own time, its time in the kernel, and both of the children that have ended.
                total = sum(ticks(child, slice(11, 13)) for child in children) + ticks(postmaster, slice(11, 15))
            except (FileNotFoundError, ProcessLookupError):
                continue  # One has ended meanwhile.
            return total / os.sysconf("SC_CLK_TCK")

    def settings(self):
        """The settings that are listed in the results."""
        with self.connect("postgres") as connection:
            return {name: connection.execute("SELECT current_setting(%s)", [name]).fetchone()[0] for name in REPORTED}
