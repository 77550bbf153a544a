"""Runs pgbench and parses its output."""

import re
import subprocess
import tempfile
from pathlib import Path


class Failed(RuntimeError):
    """A run that failed or had errors."""


def run(cluster, database, script, clients, seconds=None, transactions=None, variables=None, latencies=False,
        role="", every=0):
    """Runs a script in prepared mode. Returns transactions a second, seconds, and, if asked for, the
    latencies of the single transactions in milliseconds, or the rates of so many seconds each.

    "role" is a role whose rights the sessions have. Any transaction that fails, and any client that stops early, fails the run.
    """
    command = [cluster.bindir / "pgbench", "--no-vacuum", "--protocol=prepared", f"--client={clients}",
               f"--jobs={min(clients, 2)}", f"--file={script}"]
    command.append(f"--time={seconds}" if seconds else f"--transactions={transactions}")
    for name, value in (variables or {}).items():
        command.append(f"--define={name}={value}")
    environment = cluster.environment(database)
    if role:
        environment["PGOPTIONS"] = f"-c role={role}"
    if every:
        command.append(f"--progress={every}")
    with tempfile.TemporaryDirectory() as folder:
        if latencies:
            command += ["--log", f"--log-prefix={folder}/log"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        where = f"{Path(script).parent.name}/{Path(script).name}"
        if done.returncode != 0:
            raise Failed(f"{where}: {done.stderr.strip()[-600:]}")
        failed = re.search(r"number of failed transactions: (\d+)", done.stdout)
        if failed and int(failed[1]):
            raise Failed(f"{where}: {failed[1]} transactions failed")
        rate = float(re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)[1])
        count = int(re.search(r"transactions actually processed: (\d+)", done.stdout)[1])
        result = {"tps": rate, "count": count, "seconds": count / rate if rate else 0.0}
        if every:
            rates = re.findall(r"^progress: ([\d.]+) s, ([\d.]+) tps", done.stderr, re.MULTILINE)
            # What follows the last interval is too short to count.
            result["rates"] = [float(rate) for at, rate in rates if float(at) <= seconds + every / 2]
        if latencies:
            lines = (line.split() for log in Path(folder).glob("log*") for line in log.open())
            result["latencies"] = sorted(int(fields[2]) / 1000 for fields in lines)
        return result


def quantile(ordered, share):
    """A quantile of sorted values."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else None
