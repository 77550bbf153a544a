"""Draws the panels of grafana.json with what their queries return now: python draw.py ADDRESS SECONDS FILE.png

To see the dashboard without Grafana: queries, answers and layout are real, and matplotlib draws the panels.
"""

import json
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

ROW, WIDTH = 0.32, 16.0  # inches: a row of Grafana's grid, and the whole
UNITS = {"s": " s", "ops": " /s", "bytes": " bytes", "short": ""}


def ask(address, path, **arguments):
    url = f"{address}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)["data"]["result"]


def filled(expression):
    return expression.replace("$database", ".*").replace("$queue", ".*").replace("$__rate_interval", "15s")


def legend(form, labels):
    for name, value in labels.items():
        form = form.replace("{{" + name + "}}", value)
    return form


def stat(axes, panel, address):
    (target,) = panel["targets"]
    result = ask(address, "query", query=filled(target["expr"]))
    value = float(result[0]["value"][1])
    defaults = panel["fieldConfig"]["defaults"]
    names = defaults.get("mappings", [{"options": {}}])[0]["options"]
    shown = names.get(f"{value:g}", {}).get("text", f"{value:,.4g}{UNITS[defaults['unit']]}")
    reached = [step["color"] for step in defaults["thresholds"]["steps"] if value >= (step["value"] or 0)]
    axes.set_facecolor({"green": "#d9f2d9", "orange": "#ffe4b8", "red": "#ffc9c9", "blue": "#dbe9ff"}[reached[-1]])
    axes.text(0.5, 0.5, shown, ha="center", va="center", fontsize=20, transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])


def lines(axes, panel, address, seconds):
    end = time.time()
    for target in panel["targets"]:
        span = {"start": end - seconds, "end": end, "step": max(1, seconds // 200)}
        for series in ask(address, "query_range", query=filled(target["expr"]), **span):
            times = [(float(at) - end) / 60 for at, _ in series["values"]]
            values = [float(value) for _, value in series["values"]]
            axes.plot(times, values, linewidth=1.2, label=legend(target["legendFormat"], series["metric"]))
    axes.set_ylim(bottom=0)
    axes.set_xlim(-seconds / 60, 0)
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=7)
    axes.set_xlabel("minutes", fontsize=7)
    axes.legend(fontsize=6.5, loc="upper left", bbox_to_anchor=(1, 1.05), frameon=False)


def table(axes, panel, address):
    found = ask(address, "query", query=filled(panel["targets"][0]["expr"]))
    cells = {(one["metric"]["queue"], one["metric"]["state"]): one["value"][1] for one in found}
    queues, states = sorted({queue for queue, _ in cells}), sorted({state for _, state in cells})
    axes.axis("off")
    rows = [[queue, *(cells[queue, state] for state in states)] for queue in queues]
    axes.table(cellText=rows, colLabels=["queue", *states], loc="upper center", cellLoc="center")


def main(address, seconds, target):
    board = json.loads(Path(__file__).with_name("grafana.json").read_text())
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"]) * ROW + 0.6
    figure = plt.figure(figsize=(WIDTH, height), dpi=80)
    for panel in board["panels"]:
        place = panel["gridPos"]
        legends = 1.4 if panel["type"] == "timeseries" else 0
        left, bottom = place["x"] / 24 * WIDTH + 0.5, height - (place["y"] + place["h"]) * ROW - 0.2
        wide, high = place["w"] / 24 * WIDTH - 0.7 - legends, place["h"] * ROW - 0.7
        axes = figure.add_axes([left / WIDTH, bottom / height, wide / WIDTH, high / height])
        unit = UNITS[panel["fieldConfig"]["defaults"]["unit"]].strip()
        axes.set_title(panel["title"] + (f" ({unit})" if unit and panel["type"] == "timeseries" else ""), fontsize=9, loc="left")
        if panel["type"] == "stat":
            stat(axes, panel, address)
        elif panel["type"] == "table":
            table(axes, panel, address)
        else:
            lines(axes, panel, address, int(seconds))
    figure.text(0.01, 1 - 0.25 / height, "The queries of monitoring/grafana.json as Prometheus answers them, drawn with "
                "matplotlib. This is not Grafana.", fontsize=9, style="italic")
    figure.savefig(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
