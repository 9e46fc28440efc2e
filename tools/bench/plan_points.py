"""Plans against measured steps.

    python -m tools.bench.plan_points --record OUT.jsonl             measure on one accelerator, about 150 s
    torchrun --nproc-per-node 2 -m tools.bench.plan_points ...       the cases of two ranks
    python -m tools.bench.plan_points --compare --record OUT.jsonl   predicted against measured, again
    python -m tools.bench.plan_points --fit --record OUT.jsonl       write loong_core/plan/rates.json, then compare

Measuring prints a table and appends one record, all cases in it. Comparing and fitting need no accelerator and take the
last record of each number of ranks; with --docs the table goes into docs/planning.md. Rates are fitted to the cases
marked so in `plan_cases`; the others judge: memory within 7 %, time within 15 %.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
from typing import Any

from loong_core.plan import rates as plan_rates
from loong_core.plan.rates import dump_rates, measured_rates
from tools.bench import plan_fit, record
from tools.bench.plan_cases import CASES

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "planning.md"
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"


def measure(file: pathlib.Path, only: str, budget: float) -> int:
    """Measure, print, append."""
    from tools.bench.plan_measure import measure_all

    speaks = int(os.environ.get("RANK", "0")) == 0
    points = []
    for point in measure_all([case for case in CASES if only in case.name], budget):
        points.append(point)
        if speaks:
            _print(point)
    if not speaks:
        return 0
    record.append(file, {"ranks": int(os.environ.get("WORLD_SIZE", "1")), "points": points})
    print(plan_fit.verdict(plan_fit.rows(points, measured_rates())))
    return 0 if any("error" not in point for point in points) else 1


def _print(point: dict[str, Any]) -> None:
    if "error" in point:
        print(f"{point['case']:28} {point['error']}", flush=True)
        return
    (row,) = plan_fit.rows([point], measured_rates())
    print(
        f"{point['case']:28} {'fit' if point['fitted'] else '   '} {point['peak_bytes'] / 2**30:7.2f} GiB "
        f"{row['memory_ratio'] - 1:+6.1%}  {point['step_seconds'] * 1e3:8.1f} ms {row['time_ratio'] - 1:+6.1%}  "
        f"update {point['update_seconds'] * 1e3:6.1f} ms  loss {point['loss']:.3f}",
        flush=True,
    )


def latest(file: pathlib.Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Points of the last record of each number of ranks, and what the one-rank record says of itself."""
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    by_ranks = {each["ranks"]: each for each in records}
    points = [point for ranks in sorted(by_ranks) for point in by_ranks[ranks]["points"]]
    about = by_ranks.get(1, records[-1])
    return points, {key: about[key] for key in ("date", "device", "versions")}


def compare(file: pathlib.Path, docs: bool) -> int:
    """Print the table of the current rates, or put it into the documentation."""
    points, about = latest(file)
    compared = plan_fit.rows(points, measured_rates())
    table, verdict = plan_fit.table(compared), plan_fit.verdict(compared)
    print(table, verdict, sep="\n")
    if docs:
        head, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
        tail = rest.split(END)[1]
        packages = ", ".join(
            f"{name} {about['versions'][name]}" for name in ("torch", "triton") if name in about["versions"]
        )
        text = f"{about['device']}, {about['date']} UTC, {packages}. {verdict[0].upper()}{verdict[1:]}.\n\n{table}\n"
        DOCUMENT.write_text(f"{head}{BEGIN}\n{text}{END}{tail}", encoding="utf-8")
    return 0


def fit(file: pathlib.Path, docs: bool) -> int:
    """Write rates.json from the fitted points, and compare."""
    points, about = latest(file)
    fitted = plan_fit.fit(points, plan_fit.prior_rates())
    fitted = plan_fit.with_workspace(points, fitted)
    target = pathlib.Path(plan_rates.__file__).with_name("rates.json")
    target.write_text(dump_rates(fitted, about | {"command": "python -m tools.bench.plan_points --fit"}))
    measured_rates.cache_clear()
    print(f"written: {target}")
    return compare(file, docs)


def main() -> int:
    """Measure, compare or fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=pathlib.Path, default=record.FOLDER / "plan_points.jsonl")
    parser.add_argument("--compare", action="store_true", help="of the record, with the current rates")
    parser.add_argument("--fit", action="store_true", help="the rates to the record")
    parser.add_argument("--docs", action="store_true", help="put the table into docs/planning.md")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--budget", type=float, default=130.0, help="seconds after which no case is begun")
    chosen = parser.parse_args()
    if chosen.compare or chosen.fit:
        return (fit if chosen.fit else compare)(chosen.record, chosen.docs)
    return measure(chosen.record, chosen.only, chosen.budget)


if __name__ == "__main__":
    sys.exit(main())
