"""What a device reaches of its peaks, and what the host costs: the measured constants of a plan, all in `rates.json`.

`python -m tools.bench.plan_points --fit` writes that file from steps measured on a device. Of a device that was not
measured the same fractions of its own peaks are expected.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Rates:
    """Constants of the time model, and the one of the memory model.

    Attributes:
        product: fraction of the bfloat16 peak that large matrix products reach within a step.
        float32_product: the same of float32 products and peak.
        head_product: fraction of the bfloat16 peak of the head's products, whose logits are float32.
        grouped_product: the same of the experts' grouped products, forward and towards the input.
        grouped_weight_product: the same towards the weight.
        attention_forward: fraction of the bfloat16 peak of causal attention over very long sequences.
        attention_backward: the same of its backward.
        attention_forward_ramp: sequence length, in tokens, at which half of that is reached.
        attention_backward_ramp: the same of its backward.
        packed_attention: rate of attention within documents, relative to whole sequences.
        elementwise: fraction of the memory bandwidth of norms, rotations, activations and sums.
        accumulate: the same of adding a microbatch's gradients to the float32 ones.
        optimizer: the same of the optimizer's passes.
        permutation_passes: how often, forward and backward together, the rows of the chosen experts are moved through
            memory to be laid out by expert and brought back.
        kernel: seconds that the shortest operation takes.
        host_block: seconds that the host needs to launch a block, forward and backward.
        host_experts: what a mixture of experts adds to that.
        host_microbatch: the same of a microbatch besides its blocks.
        host_step: the same of a step besides its microbatches.
        exchange_wait: seconds lost each time the host waits to learn how many rows go to which expert rank.
        network: fraction of a link's bandwidth that large collectives reach.
        workspace: bytes that libraries hold within the allocator.
    """

    product: float
    float32_product: float
    head_product: float
    grouped_product: float
    grouped_weight_product: float
    attention_forward: float
    attention_backward: float
    attention_forward_ramp: float
    attention_backward_ramp: float
    packed_attention: float
    elementwise: float
    accumulate: float
    optimizer: float
    permutation_passes: float
    kernel: float
    host_block: float
    host_experts: float
    host_microbatch: float
    host_step: float
    exchange_wait: float
    network: float
    workspace: float


@cache
def measured_rates() -> Rates:
    """The rates that are shipped."""
    return parse_rates(json.loads((files("loong_core.plan") / "rates.json").read_text(encoding="utf-8"))["rates"])


def parse_rates(values: dict[str, Any]) -> Rates:
    """Rates from a JSON object.

    Raises:
        ValueError: a name is missing or unknown.
    """
    wanted = {field.name for field in fields(Rates)}
    if wrong := wanted ^ values.keys():
        raise ValueError(f"rates.json: missing or unknown: {', '.join(sorted(wrong))}")
    return Rates(**{name: float(value) for name, value in values.items()})


def dump_rates(rates: Rates, about: dict[str, Any]) -> str:
    """The text of `rates.json`: the rates, rounded to four digits, and where they come from."""
    rounded = {name: float(f"{value:.4g}") for name, value in asdict(rates).items()}
    return json.dumps({"about": about, "rates": rounded}, indent=2) + "\n"
