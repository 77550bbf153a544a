"""The plots of the report, as SVG: throughput by workers, latencies, batches, the pinned horizon."""

import math

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  The backend has to be chosen first.

from . import systems

OURS, FLOOR, SKIP = "#c1121f", "#6c757d", "#1d3557"
FIXED = {"queue_ext": OURS, "queue_ext_sql_only": "#f08a8f", "floor": FLOOR, "ceiling": "#adb5bd", "skip_locked": SKIP}
PEERS = ["#2a9d8f", "#e9a03b", "#8d5a97", "#7a9e3f", "#d17ba0", "#8c6d46", "#3fa7d6", "#b8b42d"]

matplotlib.rcParams.update({
    "svg.hashsalt": "queue_ext", "figure.figsize": (8, 4.5), "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.alpha": 0.3, "font.size": 10, "legend.frameon": False,
})


def colour(system):
    """The colour of a system: both editions of queue_ext stand out, and the floor is grey."""
    if system.key in FIXED:
        return FIXED[system.key]
    return PEERS[systems.ALL.index(system) % len(PEERS)]


def save(figure, path):
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path.name


def draw(results, out):
    """Draws the plots for which there are results; returns title and file name of each."""
    plots = []
    one = (results.get("throughput") or {}).get("one")
    if one:
        plots.append(("Throughput by workers", throughput(results["throughput"], out / "throughput.svg")))
        plots.append(("Latency of claiming and completing a task", latency(one, out / "latency.svg")))
    batch = (results.get("throughput") or {}).get("batch")
    if batch:
        plots.append(("Batches of 100", bars(batch, "rate", "tasks finished a second", out / "batches.svg")))
    if (results.get("horizon") or {}).get("queue_ext"):
        plots.append(("While a transaction stays open", horizon(results["horizon"], out / "horizon.svg")))
    clients = results.get("clients")
    if clients and "error" not in clients:
        plots.append(("Through the systems' own clients", own_clients(clients, out / "clients.svg")))
    return plots


def throughput(found, path):
    figure, axes = plt.subplots(figsize=(9, 4.5))
    workers = list(found["one"])
    for system in systems.ALL:
        points = [(number, found["one"][number][system.key]["rate"]) for number in workers
                  if "rate" in found["one"][number].get(system.key, {})]
        if points:
            axes.plot(*zip(*points), marker="o", color=colour(system), label=system.label, zorder=3 if system.ours else 2,
                      linewidth=2.5 if system.ours else 1.3, linestyle="--" if system.key in ("floor", "ceiling") else "-")
    both = [(number, work["queue_ext"]["rate"]) for number, work in found["next"].items()
            if "rate" in work.get("queue_ext", {})]
    if both:
        axes.plot(*zip(*both), marker="s", color=OURS, linestyle=":", linewidth=2, label="queue_ext, complete_and_claim")
    axes.set(xlabel="workers", ylabel="tasks finished a second", ylim=(0, None))
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return save(figure, path)


def latency(one, path):
    """The time from the claim to the end of the completion: median and 99th percentile."""
    workers = list(one)
    figure, axes = plt.subplots(1, len(workers), sharey=True, figsize=(4 * len(workers), 4), squeeze=False)
    for number, axis in zip(workers, axes[0]):
        known = [system for system in systems.ALL if "p99_ms" in one[number].get(system.key, {})]
        for place, system in enumerate(known):
            found = one[number][system.key]
            axis.barh(place, found["p99_ms"], color=colour(system), alpha=0.35)
            axis.barh(place, found["p50_ms"], color=colour(system))
        axis.set_yticks(range(len(known)), [system.label for system in known], fontsize=8)
        axis.set(xscale="log", xlabel="ms; dark: p50, light: p99", title=f"{number} workers", xlim=(
            10 ** math.floor(math.log10(min(one[number][system.key]["p50_ms"] for system in known))), None))
    axes[0][0].invert_yaxis()  # The axes are shared.
    return save(figure, path)


def bars(work, figure_name, label, path):
    known = sorted((system for system in systems.ALL if figure_name in work.get(system.key, {})),
                   key=lambda system: work[system.key][figure_name])
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(known) + 1))
    values = [work[system.key][figure_name] for system in known]
    axes.bar_label(axes.barh([system.label for system in known], values, color=[colour(s) for s in known]),
                   [f"{value:,.0f}" for value in values], padding=3, fontsize=8)
    axes.set(xlabel=label)
    return save(figure, path)


def horizon(found, path):
    figure, axes = plt.subplots()
    for key, result in found.items():
        system = next(system for system in systems.ALL if system.key == key)
        finished, rates = zip(*[[0, result["unpinned"]], *result["curve"]])
        axes.plot(finished, rates, marker="o", color=colour(system), label=system.label, linewidth=2)
    axes.set(xlabel="tasks finished since the transaction began", ylabel="tasks finished a second", ylim=(0, None))
    axes.legend()
    return save(figure, path)


def own_clients(clients, path):
    known = sorted((item for item in clients.items() if "rate" in item[1]), key=lambda item: item[1]["rate"])
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(known) + 1))
    colours = [colour(next(s for s in systems.ALL if s.key == result["system"])) for _, result in known]
    values = [result["rate"] for _, result in known]
    axes.bar_label(axes.barh([name for name, _ in known], values, color=colours),
                   [f"{value:,.0f}" for value in values], padding=3, fontsize=8)
    axes.set(xlabel="jobs a second")
    return save(figure, path)
