"""Runs the benchmark and writes docs/benchmarks: make bench, or

    python3 -m bench [--scale full|quick] [--only WORK ...] [--systems KEY ...] [--out DIR]
    python3 -m bench --report DIR

--only and --systems run a part of the benchmark. The results are then incomplete, and go
to target/benchmarks, as those of the quick form do. --report writes the page and the plots anew from
the results.json in a folder.
"""

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

from . import machine, measure, report, scale, systems
from .cluster import Cluster
from .work import clients, depth, horizon, idle, memory, push, stream, throughput, waiting

# In this order. Each gets the bench and returns its part of results.json. First come those that measure little things, which
# autovacuum disturbs in tables that others leave behind.
WORK = {
    "waiting": waiting.run,
    "idle": idle.run,
    "throughput": throughput.run,
    "payload": throughput.payloads,
    "push": push.run,
    "clients": clients.run,
    "pickup": clients.pickup,
    "horizon": horizon.run,
    "groups": horizon.groups,
    "stream": stream.run,
    "memory": memory.run,
    "depth": depth.run,
}


class Bench:
    """What every kind of work needs: the server, the systems, and the scale."""

    def __init__(self, cluster, chosen, size):
        self.cluster = cluster
        self.systems = chosen
        self.scale = size
        self.started = time.monotonic()

    def say(self, line):
        print(f"[{time.monotonic() - self.started:6.0f}s] {line}", flush=True)

    def having(self, script):
        """The systems that can do a kind of work."""
        return [system for system in self.systems if system.has(script)]

    def in_turn(self, chosen, rounds, *arguments, **options):
        return measure.in_turn(self.cluster, chosen, rounds, self.say, *arguments, **options)


def main():
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0])
    parser.add_argument("--scale", choices=["full", "quick"], default="full")
    parser.add_argument("--only", nargs="*", choices=list(WORK))
    parser.add_argument("--systems", nargs="*", choices=[system.key for system in systems.ALL])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--report", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    if arguments.report:
        report.write(json.loads((arguments.report / "results.json").read_text()), arguments.report)
        return 0
    whole = arguments.scale == "full" and not arguments.only and not arguments.systems
    out = arguments.out or Path("docs/benchmarks" if whole else "target/benchmarks")
    chosen = [system for system in systems.ALL if not arguments.systems or system.key in arguments.systems]

    cluster = Cluster().start()
    bench = Bench(cluster, chosen, scale.FULL if arguments.scale == "full" else scale.QUICK)
    results = {}
    try:
        results["about"] = machine.about(cluster, bench.scale)
        for system in list(bench.systems):
            bench.say(f"installing {system.label}")
            try:
                system.install(cluster)
            except RuntimeError as error:
                bench.say(f"left out: {error}")
                results.setdefault("left_out", {})[system.key] = str(error)
                bench.systems.remove(system)
        for name, work in WORK.items():
            if arguments.only and name not in arguments.only:
                continue
            bench.say(f"== {name}")
            try:
                results[name] = work(bench)
            except Exception as error:  # One kind of work that fails must not lose the others' results.
                traceback.print_exc()
                results[name] = {"error": f"{type(error).__name__}: {error}"}
        report.write(results, out)
        bench.say(f"done; the report is in {out}")
    finally:
        cluster.stop()
    return 0


sys.exit(main())
