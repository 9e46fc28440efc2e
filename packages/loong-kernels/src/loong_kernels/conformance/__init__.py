"""The one suite that every implementation of every op must pass; for this package and for authors of plug-ins.

In a plug-in's tests:

    from loong_kernels import conformance

    @conformance.parametrize("cpu", implementation="mine")
    def test_mine_conforms(check):
        check()

or, without pytest, `print(conformance.run("cpu", op="rms_norm"))`. A check calls the public function with the
implementation chosen by name, and compares values and gradients with the reference's in float64. It also holds: memory
that was not written is never returned (new tensors are filled with NaN first), inputs are left as they were, only the
gradients asked for need to be computed, and the same inputs give the same bits again unless the implementation says
otherwise.
"""

from __future__ import annotations

import importlib
import unittest
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

import loong_kernels.ops  # noqa: F401  the ops define themselves
from loong_kernels import registry
from loong_kernels.conformance.check import Check
from loong_kernels.conformance.sample import Sample

__all__ = ["Check", "Report", "Sample", "checks", "parametrize", "run", "samples_of"]


def samples_of(op: str) -> list[Sample]:
    """Every sample of an op.

    Raises:
        ValueError: there is no such op, or it names no samples.
    """
    module, _, function = registry.REGISTRY.op(op).samples.partition(":")
    if not module:
        raise ValueError(f"op {op} names no samples for the conformance suite; give `define` its `samples`")
    return list(getattr(importlib.import_module(module), function)())


def checks(device: str | torch.device, op: str | None = None, implementation: str | None = None) -> list[Check]:
    """Every check of the implementations that this machine can run on `device`.

    Args:
        device: a torch device, `"cpu"` or `"cuda:1"`.
        op: only this op.
        implementation: only those of this name.
    """
    device = torch.device(device)
    names = [each.name for each in registry.ops()] if op is None else [op]
    return [
        Check(device, standing.implementation, sample)
        for name in names
        for standing in registry.standing(name, device.type)
        if standing.reason is None and implementation in (None, standing.implementation.name)
        for sample in samples_of(name)
    ]


@dataclass
class Report:
    """What became of a run of the suite: names of checks that passed, and the others with their reasons."""

    passed: list[str] = field(default_factory=list)
    declined: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{len(self.passed)} passed, {len(self.declined)} declined, {len(self.failed)} failed"]
        lines += [f"failed: {name}: {reason}" for name, reason in self.failed.items()]
        return "\n".join(lines)


def run(device: str | torch.device, op: str | None = None, implementation: str | None = None) -> Report:
    """Run the suite; arguments as in `checks`. An implementation that declines every check has failed."""
    report = Report()
    serving: set[str] = set()
    chosen = checks(device, op, implementation)
    for check in chosen:
        try:
            check()
        except unittest.SkipTest as reason:
            report.declined[str(check)] = str(reason)
        except Exception as error:
            report.failed[str(check)] = f"{type(error).__name__}: {error}"
        else:
            report.passed.append(str(check))
            serving.add(check.subject)
    tried = {check.subject for check in chosen} - {name.partition(":")[0] for name in report.failed}
    report.failed.update(dict.fromkeys(sorted(tried - serving), "declines every sample of its op"))
    return report


def parametrize(
    devices: str | torch.device | Iterable[str | torch.device],
    op: str | None = None,
    implementation: str | None = None,
) -> Callable[[Any], Any]:
    """A pytest decorator that gives a test its argument `check`, one for each check on each device."""
    import pytest

    several = [devices] if isinstance(devices, str | torch.device) else list(devices)
    chosen = [check for device in several for check in checks(device, op, implementation)]
    return pytest.mark.parametrize("check", chosen, ids=str)
