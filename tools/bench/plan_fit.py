"""Comparing plans with measured steps, and fitting the rates to some of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from loong_core.plan.devices import Cluster, find_accelerator
from loong_core.plan.rates import Rates, measured_rates
from loong_core.plan.search import Search
from loong_core.plan.workload import Workload
from tools.bench.plan_cases import CASES, Case

DEVICE = "h200"

UNCERTAINTY = {
    "product": 0.06,
    "head_product": 0.08,
    "grouped_product": 0.15,
    "grouped_weight_product": 0.25,
    "attention_forward": 0.1,
    "attention_backward": 0.1,
    "attention_forward_ramp": 0.5,
    "attention_backward_ramp": 0.5,
    "packed_attention": 0.3,
    "elementwise": 0.15,
    "accumulate": 0.4,
    "optimizer": 0.3,
    "permutation_passes": 0.7,
    "host_block": 0.7,
    "host_experts": 0.7,
    "host_microbatch": 0.7,
    "host_step": 0.7,
}
"""How far, as a logarithm, a rate may be from what single operations say of it; rates not named are not fitted."""
NOISE = 0.02
"""The same of a measured step."""


def predict(case: Case, rates: Rates) -> tuple[float, float, float]:
    """Peak bytes, seconds of a step, seconds of its update."""
    cluster = Cluster(find_accelerator(DEVICE), case.ranks, max(case.ranks, 1))
    search = Search(_workload(case), cluster, lambda layout, ranks: [], rates)
    candidate = search.evaluate(case.degrees, _workload(case))
    if candidate.time is None:
        raise ValueError(f"{case.name} does not fit: {candidate.needed / 2**30:.1f} GiB")
    parts = candidate.time.parts
    return candidate.memory.peak, candidate.seconds, parts.get("optimizer", 0.0)


_WORKLOADS: dict[str, Workload] = {}


def _workload(case: Case) -> Workload:
    if case.name not in _WORKLOADS:
        _WORKLOADS[case.name] = case.workload()
    return _WORKLOADS[case.name]


def rows(points: Sequence[dict[str, Any]], rates: Rates) -> list[dict[str, Any]]:
    """Each measured point beside its prediction; ratios are predicted over measured."""
    by_name = {case.name: case for case in CASES}
    made = []
    for point in points:
        case = by_name.get(point["case"])
        if case is None or "error" in point:
            continue
        peak, seconds, update = predict(case, rates)
        made.append(
            point
            | {
                "predicted_peak_bytes": peak,
                "predicted_step_seconds": seconds,
                "predicted_update_seconds": update,
                "memory_ratio": peak / point["peak_bytes"],
                "time_ratio": seconds / point["step_seconds"],
            }
        )
    return made


def fit(points: Sequence[dict[str, Any]], prior: Rates) -> Rates:
    """The rates most likely given the fitted points and `prior`: Gauss-Newton on logarithms."""
    by_name = {case.name: case for case in CASES}
    used = [(by_name[point["case"]], point) for point in points if point.get("fitted") and "error" not in point]
    names = list(UNCERTAINTY)
    center = np.log([getattr(prior, name) for name in names])
    deviation = np.array([UNCERTAINTY[name] for name in names])

    def residuals(offset: np.ndarray) -> np.ndarray:
        values = np.exp(center + offset * deviation)
        rates = replace(prior, **dict(zip(names, map(float, values), strict=True)))
        found = []
        for case, point in used:
            _, seconds, update = predict(case, rates)
            found.append(math.log(seconds / point["step_seconds"]) / NOISE)
            found.append(math.log((update + rates.host_step) / point["update_seconds"]) / (5 * NOISE))
        return np.concatenate([found, offset])

    offset = np.zeros(len(names))
    for _ in range(12):
        now = residuals(offset)
        slope = np.stack([(residuals(offset + 1e-4 * unit) - now) / 1e-4 for unit in np.eye(len(names))], axis=1)
        change = np.linalg.lstsq(slope, -now, rcond=None)[0]
        step = 1.0
        while step > 1e-3 and np.square(residuals(offset + step * change)).sum() > np.square(now).sum():
            step /= 2
        offset = offset + step * change
    values = np.exp(center + offset * deviation)
    return replace(prior, **dict(zip(names, map(float, values), strict=True)))


def with_workspace(points: Sequence[dict[str, Any]], rates: Rates) -> Rates:
    """`rates` with the bytes beyond the plan's that the fitted points hold, the median; never less than nothing."""
    beyond = [row["peak_bytes"] - row["predicted_peak_bytes"] for row in rows(points, rates) if row["fitted"]]
    return replace(rates, workspace=max(0.0, float(np.median(beyond)) + rates.workspace)) if beyond else rates


def table(compared: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of predicted against measured."""
    lines = [
        "| step | model | layers | microbatch | fitted | GiB measured | predicted | ms measured | predicted |",
        "|---|---|--:|---|---|--:|--:|--:|--:|",
    ]
    for row in compared:
        shape = f"{row['microbatches']} of {row['batch']} x {row['sequence']}"
        memory = f"{row['predicted_peak_bytes'] / 2**30:.1f} ({row['memory_ratio'] - 1:+.1%})"
        time = f"{row['predicted_step_seconds'] * 1e3:.0f} ({row['time_ratio'] - 1:+.1%})"
        lines.append(
            f"| {row['case']} | {row['model']} | {row['layers']} | {shape} | {'yes' if row['fitted'] else ''} "
            f"| {row['peak_bytes'] / 2**30:.1f} | {memory} | {row['step_seconds'] * 1e3:.0f} | {time} |"
        )
    return "\n".join(lines)


def verdict(compared: Sequence[dict[str, Any]]) -> str:
    """How far the judging points are off at most."""
    judged = [row for row in compared if not row["fitted"]]
    if not judged:
        return "no judging points"
    memory = max(abs(row["memory_ratio"] - 1) for row in judged)
    seconds = max(abs(row["time_ratio"] - 1) for row in judged)
    return f"{len(judged)} judging points: memory within {memory:.1%}, time within {seconds:.1%}"


def prior_rates() -> Rates:
    """What single operations on one H200 said, before any step was fitted."""
    return replace(measured_rates(), **PRIOR)


PRIOR: dict[str, float] = {
    "product": 0.76,
    "head_product": 0.7,
    "grouped_product": 0.63,
    "grouped_weight_product": 0.5,
    "attention_forward": 0.62,
    "attention_backward": 0.55,
    "attention_forward_ramp": 1200,
    "attention_backward_ramp": 2500,
    "packed_attention": 0.55,
    "elementwise": 0.75,
    "accumulate": 0.6,
    "optimizer": 0.7,
    "permutation_passes": 8,
    "host_block": 0.0012,
    "host_experts": 0.0015,
    "host_microbatch": 0.002,
    "host_step": 0.01,
}
"""Fractions of peaks from single products, attention calls and copies; host times from profiles."""
