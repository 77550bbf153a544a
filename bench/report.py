"""Writes the results: results.json with all figures, README.md with tables, and the plots."""

import json
import os
from pathlib import Path

from . import plots, systems, targets
from .work.horizon import GROUPS

PUBLISHED = Path("docs/benchmarks")
TARGETS_HEAD = [
    "# Targets", "", "What the last full benchmark run reached: [its page](../docs/benchmarks/README.md).", "",
    "Measured values are ratios of medians, ours to the other's, unless they have a unit.", ""]


def write(results, out):
    """Writes the report into a folder, and prints the targets."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1, default=float) + "\n")
    pictures = plots.draw(results, out)
    lines = page(results, pictures, os.path.relpath("bench/README.md", out))
    others = [f"[{path.parent.name}]({path.parent.name}/README.md)" for path in sorted(out.glob("*/README.md"))]
    lines += ["", f"The same on other servers, in part: {', '.join(others)}."] if others else []
    (out / "README.md").write_text("\n".join(lines) + "\n")
    reached = targets.table(results)
    # The targets are for maintainers: those of the published run are stored beside the benchmark.
    if PUBLISHED not in out.parents:
        kept = Path("bench") if out == PUBLISHED else out
        (kept / "targets.md").write_text("\n".join([*TARGETS_HEAD, *reached]) + "\n")
    print("\n".join(reached))


def page(results, pictures, method):
    """The lines of the page."""
    about = results["about"]
    lines = ["# Benchmarks", "", introduction(about, method)]
    for title, name in pictures:
        lines += ["", f"![{title}]({name})"]
    lines += throughput(results) + payloads(results) + push(results) + clients(results) + horizon(results)
    lines += stream(results) + depth(results) + waiting(results) + memory(results) + left_out(results) + conditions(about)
    return lines


def introduction(about, method):
    machine = about["machine"]
    scale = "" if about["scale"] == "full" else (
        " **This is the quick form, whose runs are too short for figures to be quoted.**")
    return (f"queue_ext and other queues in turn on one server: {machine['cores']} cores ({machine['processor']}), "
            f"{machine['memory_gb']} GB, {machine['system']} {machine['kernel']}, "
            f"PostgreSQL {about['versions']['PostgreSQL']} with its default durability, {about['date']}.{scale} "
            "Machines differ, and runs of the same load in different tables differ by up to a half: compare rows within one table. How everything is measured, and how to repeat it: "
            f"[bench]({method}).")


def number(value, digits=0):
    return "–" if value is None else f"{value:,.{digits}f}"


def costs(work, heading="rate"):
    """A table of one kind of work by all systems, the fastest first."""
    lines = [f"| | {heading} | p50, ms | p99, ms | a CPU second | WAL bytes a task | commits a task | dead rows a task |",
             "| --- | --: | --: | --: | --: | --: | --: | --: |"]
    known = [system for system in systems.ALL if system.key in work]
    known.sort(key=lambda system: -(work[system.key].get("rate") or 0))
    for system in known:
        found = work[system.key]
        if "error" in found:
            lines.append(f"| {system.label} | failed | | | | | | |")
            continue
        name = f"**{system.label}**" if system.ours else system.label
        lines.append(f"| {name} | {number(found['rate'])} | {number(found.get('p50_ms'), 2)} | "
                     f"{number(found.get('p99_ms'), 2)} | {number(found.get('per_cpu_second'))} | {number(found['wal_bytes'])} | "
                     f"{number(found['commits'], 2)} | {number(found['dead_rows'], 2)} |")
    return lines


def ready(results, name):
    """The results of one kind of work, unless it was not run or failed."""
    found = results.get(name)
    return found if found and "error" not in found else None


def throughput(results):
    found = ready(results, "throughput")
    if not found:
        return []
    lines = ["", "## One at a time", "",
             "Each worker claims a task, commits, completes it, and commits, with the systems' own statements in pgbench. p50 and p99 "
             "are of both together. A CPU second is one of processor time of the server, without the clients. A dead row is a row version that an update or a delete left behind. Floor: two updates of "
             "a row by its key, each with its own commit; a claim that does not wait for the disk can be faster. Ceiling: a read "
             "and such an update. Durable leases: claims wait for the disk. Right on one queue: the role of the workers has a "
             "right for that queue alone."]
    for workers, work in found["one"].items():
        lines += ["", f"### {workers} workers", "", *costs(work)]
    for workers, work in found["next"].items():
        lines += ["", f"### complete_and_claim, {workers} workers", "", *costs(work)]
    lines += ["", "## Batches of 100", "",
              "Four clients; one for PgQ, which gives every consumer all events and does not share work between "
              "several; two for awa, whose claimers take turns. p50 and p99 are of a whole batch.", "",
              *costs(found["batch"])]
    return lines


def payloads(results):
    found = ready(results, "payload")
    lines = ["", "## Larger payloads", "", "One at a time, 8 workers."] if found else []
    for size, work in (found or {}).items():
        lines += ["", f"### {int(size) / 1000:g} KB", "", *costs(work)]
    return lines


def push(results):
    found = ready(results, "push")
    return ["", "## Pushes", "", "One a transaction, 8 clients.", "", *costs(found)] if found else []


def clients(results):
    found = ready(results, "clients")
    if not found:
        return []
    lines = ["", "## Through their own clients", "",
             "One worker process handles a backlog of jobs that do nothing: from the first call of a handler until the last job "
             "is finished in the database. What limits some of them is the client and not the database.", "",
             "| | jobs a second | WAL bytes a job | commits a job | dead rows a job |", "| --- | --: | --: | --: | --: |"]
    for name, each in sorted(found.items(), key=lambda item: -(item[1].get("rate") or 0)):
        lines.append(f"| {name} | failed | | | |" if "rate" not in each else
                     f"| {name} | {number(each['rate'])} | {number(each['wal_bytes'])} | "
                     f"{number(each['commits'], 3)} | {number(each['dead_rows'], 2)} |")
    return lines + pickup(results)


def pickup(results):
    found = ready(results, "pickup")
    if not found:
        return []
    lines = ["", "### From push to handler", "",
             "200 pushes a second, one at a time, to one worker process that is idle otherwise: from the moment at which the "
             "commit of the push returned to the call of the handler. The clients have the settings of the table above.", "",
             "| | p50, ms | p99, ms | longest, ms |", "| --- | --: | --: | --: |"]
    for name, each in sorted(found.items(), key=lambda item: item[1].get("p50_ms", float("inf"))):
        lines.append(f"| {name} | failed | | |" if "p50_ms" not in each else
                     f"| {name} | {number(each['p50_ms'], 2)} | {number(each['p99_ms'], 2)} | {number(each['max_ms'], 1)} |")
    return lines


def horizon(results):
    found = ready(results, "horizon")
    if not found:
        return []
    lines = ["", "## While a transaction stays open", "",
             "8 workers, one at a time. The open transaction keeps vacuum from removing anything.", "",
             "| | before | at the end | tasks finished in between | ratio |", "| --- | --: | --: | --: | --: |"]
    labels = {system.key: system.label for system in systems.ALL}
    for key, each in found.items():
        lines.append(horizon_row(labels[key], each))
    for key, each in (ready(results, "groups") or {}).items():
        lines.append(horizon_row(f"{labels[key]}, {GROUPS:,} groups", each))
    return lines


def horizon_row(label, each):
    return (f"| {label} | {number(each['unpinned'])} | {number(each['pinned'])} | "
            f"{number(each['curve'][-1][0])} | {each['ratio']:.3f} |")


def stream(results):
    found = ready(results, "stream")
    if not found:
        return []
    lines = ["", "## A shallow queue under a constant stream", "",
             "64 clients claim, complete and push 10 tasks at a time; 4,000 tasks are queued all the time. PgQ has one consumer, which "
             "takes all events that are there, while 64 clients push.", "",
             "| | tasks/s | at first | at the end | after, s | ratio |", "| --- | --: | --: | --: | --: | --: |"]
    labels = {system.key: system.label for system in systems.ALL}
    for key, each in found.items():
        lines.append(f"| {labels[key]} | {number(each['rate'])} | {number(each['first'])} | {number(each['last'])} | "
                     f"{number(each['interval'] * len(each['rates']))} | {each['ratio']:.3f} |")
    return lines


def depth(results):
    found = ready(results, "depth")
    if not found:
        return []
    lines = ["", "## Very many tasks", "", f"{number(found['tasks'])} tasks against {number(found['against'])}: a claim, "
             "as its caller sees it, without the commit.", "", "| | p50, ms | p99, ms | ratio |", "| --- | --: | --: | --: |"]
    for name, title in (("few", "few"), ("queued", "very many queued"), ("scheduled", "very many scheduled for later")):
        each = found[name]
        lines.append(f"| {title} | {number(each['p50_ms'], 3)} | {number(each['p99_ms'], 3)} | "
                     f"{number(each.get('ratio'), 2)} |")
    if monitoring := found.get("monitoring"):
        ours, sql_only = monitoring["queue_ext"], monitoring["queue_ext_sql_only"]
        lines += ["", f"What monitoring reads, with {number(found['tasks'])} queued tasks, once they were counted; the median in milliseconds.", "",
                  "| | queue_ext | SQL-only |", "| --- | --: | --: |"]
        lines += [f"| `{name}` | {number(ours[name], 1)} | {number(sql_only[name], 1)} |" for name in ours]
    return lines


def waiting(results):
    lines = []
    if found := ready(results, "waiting"):
        lines += ["", "## An idle worker", "", f"How it waits: {found['method']}.", "",
                  "| | p50, ms | p99, ms | samples |", "| --- | --: | --: | --: |"]
        for name, title in (("push", "push committed to claim returned"), ("run_at", "run_at to claim"),
                            ("lease", "end of a lease to the next claim")):
            each = found[name]
            lines.append(f"| {title} | {number(each['p50_ms'], 2)} | {number(each['p99_ms'], 2)} | {each['samples']} |")
    idle = ready(results, "idle")
    if idle and "absent" not in idle:
        lines += ["", f"{idle['waiters']} idle workers in `queue.wait` for {idle['seconds']} seconds used "
                  f"{idle['cpu_seconds']:.2f} seconds of processor time; {idle['holding_xmin']} of them held back vacuum; "
                  f"one push woke {idle['woken']}."]
    return lines


def memory(results):
    found = ready(results, "memory")
    if not found:
        return []
    shared = sum(found["shared_bytes"].values())
    return ["", "## Memory", "", f"One backend, {number(found['calls'])} calls: {number(found['warm_kb'])} kB of its own "
            f"after the first tenth, {number(found['end_kb'])} kB at the end. Shared memory of the extension: "
            f"{number(shared)} bytes."]


def left_out(results):
    """The errors of failed runs, in full, so that a missing figure is explained."""
    lines = [f"- {systems_key}: {why}" for systems_key, why in (results.get("left_out") or {}).items()]
    lines += [f"- {name}: {found['error']}" for name, found in results.items()
              if isinstance(found, dict) and "error" in found]
    return ["", "## Not measured", "", *lines] if lines else []


def conditions(about):
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    settings = ", ".join(f"`{name} = {value}`" for name, value in about["settings"].items())
    return ["", "## Versions and settings", "", f"{versions}.", "", f"{settings}."]
