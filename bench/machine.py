"""Describes what was measured on: the machine, the versions, the settings. No names of hosts or folders."""

import json
import platform
import re
import subprocess
from datetime import date
from pathlib import Path

from . import systems


def first_match(path, pattern):
    """The first match in a file of the system, or nothing."""
    try:
        found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    except OSError:
        return None
    return found[1].strip() if found else None


def machine():
    """Processor, memory, kernel."""
    memory = int(first_match("/proc/meminfo", r"^MemTotal:\s*(\d+)") or 0)
    return {
        "processor": first_match("/proc/cpuinfo", r"^model name\s*:\s*(.*)$") or platform.machine(),
        "cores": len(re.findall(r"^processor\s*:", Path("/proc/cpuinfo").read_text(), re.MULTILINE)),
        "memory_gb": round(memory / 1024**2),
        "kernel": platform.release().split("-")[0],
        "system": platform.system(),
    }


def versions(cluster):
    """The versions of the server, of queue_ext, and of every pinned peer."""
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", (systems.PEERS / "requirements.txt").read_text(), re.MULTILINE))
    packages = json.loads((systems.PEERS / "package.json").read_text())["dependencies"]
    found = {
        "PostgreSQL": cluster.query("postgres", "SHOW server_version").split()[0],
        "queue_ext": extension(cluster, "queue_ext"),
        "pg-boss": packages["pg-boss"],
        "graphile-worker": packages["graphile-worker"],
        "River": first_match(systems.PEERS / "river" / "Cargo.toml", r'^riverqueue = "=(.*)"$'),
        "Procrastinate": pinned["procrastinate"],
        "PgQueuer": pinned["pgqueuer"],
        "awa": pinned["awa-pg"],
        "PgQ": extension(cluster, "pgq"),
        "Python": platform.python_version(),
    }
    try:
        found["node"] = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.strip().lstrip("v")
    except OSError:
        pass
    return {name: version for name, version in found.items() if version}


def extension(cluster, name):
    """The version of an extension that the server could install."""
    row = cluster.query("postgres", "SELECT default_version FROM pg_available_extensions WHERE name = %s", name)
    return row


def about(cluster, scale):
    """Everything that readers of the results need to know."""
    return {"date": date.today().isoformat(), "scale": scale.name, "machine": machine(), "versions": versions(cluster),
            "settings": cluster.settings(), "sizes": vars(scale)}
