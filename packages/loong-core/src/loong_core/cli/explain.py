"""`loong ops --explain`: for one model, what serves each op and in which precision its products are made, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loong_core.cli.families import decoder_config_of
from loong_core.cli.tables import add_row, console, table
from loong_core.errors import UserError

if TYPE_CHECKING:
    from loong_core.nn.decoder_config import DecoderConfig

ATTENTION = ("qk_norm_rotary", "attention", "packed_attention")
MIXTURE = (
    "order_by_expert",
    "permute_to_experts",
    "grouped_linear",
    "grouped_weight_gradient",
    "combine_from_experts",
)
IN_BITS = ("quantise", "quantise_swiglu", "quantise_swiglu_gradient", "scaled_product")
EVERYWHERE = ("embedding", "rms_norm", "add_rms_norm", "linear", "swiglu", "linear_cross_entropy", "adamw")


def explain(model: str, device: str | None, tokens: int) -> None:
    """Print both tables.

    Args:
        model: a named model.
        device: a device's name, or an accelerator's (`h200`) that need not be here; None for what a run gets.
        tokens: of a microbatch.
    """
    import loong_kernels
    from loong_core.device.cuda import CudaDevice
    from loong_core.plan.devices import ACCELERATORS
    from loong_core.precision.table import shipped_table, table_for

    del loong_kernels  # its import defines the ops
    config = decoder_config_of(model)
    accelerator = ACCELERATORS.get(device) if device is not None else None
    if accelerator is not None and device is not None:
        measured, where, torch_type, here = shipped_table(device), device, CudaDevice().torch_type, False
    else:
        from loong_core.device import select

        chosen = select(device).device
        hardware = chosen.hardware()
        where, torch_type, here = hardware.name if hardware is not None else chosen.name, chosen.torch_type, True
        measured = table_for(where)
    out = console()
    made = table(f"Ops of {model} on {where}", "op", "implementation", "why", "next")
    for op in _ops_of(config):
        add_row(made, op, *_served(op, torch_type, here))
    out.print(made)
    made = table(f"Products of {model}, {tokens} tokens a microbatch", "layer", "adaptive precision, and why")
    for name, line in _precisions(config, measured, tokens, where):
        add_row(made, name, line)
    out.print(made)
    out.print(
        "embedding, norms, routers, head: bf16 and float32 always. Without a section `fp8` every product is bf16."
    )


def _ops_of(config: DecoderConfig) -> list[str]:
    mixture = bool(config.mixtures)
    return [
        *EVERYWHERE,
        *ATTENTION,
        *(MIXTURE if mixture else ()),
        *IN_BITS,
        *(("grouped_scaled_product",) if mixture else ()),
    ]


def _served(op: str, torch_type: str, here: bool) -> tuple[str, str, str]:
    """What serves an op there, why, and what comes next. Elsewhere what the accelerator lacks is not known."""
    from loong_kernels import registry

    able = [one for one in registry.implementations(op, torch_type) if one.priority is not None]
    passed = []
    if here:
        obstacles = {each.implementation.name: each.reason for each in registry.standing(op, torch_type)}
        passed = [f"not {one.name}: {obstacles[one.name]}" for one in able if obstacles.get(one.name)]
        able = [one for one in able if not obstacles.get(one.name)]
    if not able:
        raise UserError(f"nothing serves {op} on {torch_type}")
    first, rest = able[0], able[1:]
    why = "; ".join([f"first choice that takes the shape; needs {first.needs}", *passed])
    return first.name, why, ", ".join(one.name for one in rest)


def _precisions(config: DecoderConfig, measured: object, tokens: int, where: str) -> list[tuple[str, str]]:
    from loong_core.precision.adaptive import explained
    from loong_core.precision.shapes import rows_of, works_of
    from loong_core.precision.table import Table

    works = works_of(config)
    if not isinstance(measured, Table):
        return [
            (name, f"{work}: bf16; nothing was measured on {where}, `loong tune` would") for name, work in works.items()
        ]
    return [(name, explained(measured, work, rows_of(config, work, tokens))) for name, work in works.items()]
