"""The targets of the benchmark: each with the measured value, and whether it is reached."""

from dataclasses import dataclass
from typing import Optional

from . import systems


@dataclass(frozen=True)
class Target:
    """One comparison. "at_least" is true if the bound is a minimum, and false if it is a maximum."""

    work: str
    what: str
    measured: Optional[float]
    bound: Optional[float] = None
    at_least: bool = True
    unit: str = "×"

    @property
    def verdict(self):
        if self.measured is None:
            return "not measured"
        if self.bound is None:
            return ""
        reached = self.measured >= self.bound if self.at_least else self.measured <= self.bound
        return "pass" if reached else "miss"

    @property
    def wanted(self):
        if self.bound is None:
            return "–"
        return f"{'≥' if self.at_least else '≤'} {self.bound:g} {self.unit}".strip()

    @property
    def found(self):
        return "–" if self.measured is None else f"{self.measured:.3g} {self.unit}".strip()


def rate(work, key):
    """The rate of a system in one kind of work, if it was measured."""
    return (work or {}).get(key, {}).get("rate")


def ratio(numerator, denominator):
    return numerator / denominator if numerator and denominator else None


def fastest(work, accept=lambda system: True):
    """The highest rate among the peers."""
    rates = [rate(work, system.key) for system in systems.PEER_SYSTEMS if accept(system)]
    return max(filter(None, rates), default=None)


def dig(results, *path):
    """A nested value, or nothing."""
    for name in path:
        results = results.get(name) if isinstance(results, dict) else None
    return results


def one_at_a_time(work, workers, floor, durable):
    """The targets of claim then complete, with the lowest ratios to the floor: of claims, and of those that wait for the disk."""
    title = f"claim, complete; {workers} workers"
    ours, least = rate(work, "queue_ext"), rate(work, "floor")
    return [
        # What no queue can exceed that needs one call to claim and one durable call to complete.
        Target(f"a read and an update by key; {workers} workers", "the floor", ratio(rate(work, "ceiling"), least)),
        Target(title, "the floor", ratio(ours, least), floor),
        Target(title, "the floor, with durable leases", ratio(rate(work, "queue_ext_durable"), least), durable),
        Target(title, "the fastest peer that keeps its jobs", ratio(ours, fastest(work, lambda s: s.keeps)), 2.0),
        Target(title, "the fastest of all", ratio(ours, fastest(work)), 1.6),
        Target(title, "a right on one queue against none", ratio(rate(work, "queue_ext_one_queue"), ours), 0.9),
        Target(title, "SQL-only against SKIP LOCKED that keeps its jobs",
               ratio(rate(work, "queue_ext_sql_only"), rate(work, "skip_locked")), 0.9),
        Target(title, "SQL-only against the fastest client that keeps its jobs",
               ratio(rate(work, "queue_ext_sql_only"), fastest(work, lambda s: s.keeps and s.key != "skip_locked")), 1.0),
    ]


def all_targets(results):
    """Every target, in the order of the report."""
    one = dig(results, "throughput", "one") or {}
    both = dig(results, "throughput", "next", "8")
    batch = dig(results, "throughput", "batch")
    targets = []
    for workers, floor, durable in (("8", 1.4, 0.95), ("64", 1.3, 0.9), ("200", 1.2, 0.85)):
        targets += one_at_a_time(one.get(workers), workers, floor, durable)
    targets += [
        Target("claim, complete; 8 workers", "dead rows", dig(one, "8", "queue_ext", "dead_rows"), 2, False, ""),
        Target("complete_and_claim; 8 workers", "the floor",
               ratio(rate(both, "queue_ext"), rate(both, "floor")), 1.8),
        Target("batches of 100", "the fastest that finishes each job by itself",
               ratio(rate(batch, "queue_ext"), fastest(batch, lambda s: s.singly)), 2.0),
        Target("batches of 100", "SQL-only against SKIP LOCKED that keeps its jobs",
               ratio(rate(batch, "queue_ext_sql_only"), rate(batch, "skip_locked")), 1.0),
        Target("horizon pinned", "our own rate before", dig(results, "horizon", "queue_ext", "ratio"), 0.9),
        Target("horizon pinned", "SQL-only against its own rate before", dig(results, "horizon", "queue_ext_sql_only", "ratio"), 0.5),
        Target("horizon pinned", "SKIP LOCKED's own rate before", dig(results, "horizon", "skip_locked", "ratio"), 0.1,
               at_least=False),
        Target("groups, horizon pinned", "our own rate before", dig(results, "groups", "queue_ext", "ratio"), 0.9),
        Target("groups, horizon pinned", "SQL-only against its own rate before", dig(results, "groups", "queue_ext_sql_only", "ratio"), 0.5),
        Target("shallow queue, constant stream", "its own rate at first", dig(results, "stream", "queue_ext", "ratio"), 0.95),
        Target("shallow queue, constant stream", "PgQ", ratio(rate(results.get("stream"), "queue_ext"), rate(results.get("stream"), "pgq")), 1.1),
        Target("claim p50 with very many queued", "with few", dig(results, "depth", "queued", "ratio"), 1.2,
               at_least=False),
        Target("claim p50 with very many scheduled", "with few", dig(results, "depth", "scheduled", "ratio"), 1.2,
               at_least=False),
        *(Target(f"{name} with very many queued", label, dig(results, "depth", "monitoring", key, name), 50, False, "ms")
          for key, label in (("queue_ext", "median"), ("queue_ext_sql_only", "median, SQL-only"))
          for name in ("queue.stats", "queue.workers", "queue.health()", "CALL queue.maintain()")),
    ]
    for size, bound in (("1000", 1.5), ("10000", 1.2)):
        work = dig(results, "payload", size)
        targets.append(Target(f"payload of {int(size) // 1000} KB; 8 workers", "the fastest of all",
                              ratio(rate(work, "queue_ext"), fastest(work)), bound))
        targets.append(Target(f"payload of {int(size) // 1000} KB, not kept; 8 workers", "the fastest of all",
                              ratio(rate(work, "queue_ext_lean"), fastest(work)), bound))
    push = results.get("push")
    targets += [
        Target("push", "an INSERT into a bare table", ratio(rate(push, "queue_ext"), rate(push, "bare_insert")), 0.9),
        Target("push", "SQL-only against an INSERT into a bare table",
               ratio(rate(push, "queue_ext_sql_only"), rate(push, "bare_insert")), 0.7),
    ]
    return targets + pickup(results) + waiting(results) + memory(results)


def pickup(results):
    """How long a task waits for its handler in each of our clients."""
    targets = []
    for name, found in (results.get("pickup") or {}).items():
        if isinstance(found, dict) and found.get("system") == "queue_ext":
            work = f"push committed to handler called, 200 a second; {name.partition(': ')[2]}"
            targets.append(Target(work, "p50", found["p50_ms"], 3, False, "ms"))
            targets.append(Target(work, "p99", found["p99_ms"], 10, False, "ms"))
    return targets


def waiting(results):
    """The targets for latencies and idle workers. Systems that poll are left out."""
    found = results.get("waiting") or {}
    waits = found.get("method") == "CALL queue.wait"

    def value(*path):
        return dig(found, *path) if waits else None

    idle = results.get("idle") or {}
    return [
        Target("push committed to claim returned", "p50", value("push", "p50_ms"), 1, False, "ms"),
        Target("push committed to claim returned", "p99", value("push", "p99_ms"), 5, False, "ms"),
        # A tick of the processor's clock in ten seconds is a thousandth.
        Target("idle waiters", "share of one core", idle.get("cpu_share"), 0.005, False, ""),
        Target("idle waiters", "that hold back vacuum", idle.get("holding_xmin"), 0, False, ""),
        Target("idle waiters", "woken beside the one by one push",
               None if idle.get("woken") is None else abs(idle["woken"] - 1) + idle["woken_early"], 0, False, ""),
        Target("run_at to claimable", "p99", value("run_at", "p99_ms"), 10, False, "ms"),
        Target("lease expiry to claimable", "p99", value("lease", "p99_ms"), 10, False, "ms"),
    ]


def memory(results):
    """A backend's memory after all calls against that after the first tenth."""
    found = results.get("memory") or {}
    return [Target("memory of a backend", "after a tenth of the calls",
                   ratio(found.get("end_kb"), found.get("warm_kb")), 1.05, at_least=False)]


def table(results):
    """The targets as lines of a Markdown table."""
    lines = ["| work | against | measured | target | |", "| --- | --- | --: | --: | --- |"]
    for target in all_targets(results):
        lines.append(f"| {target.work} | {target.what} | {target.found} | {target.wanted} | {target.verdict} |")
    return lines
