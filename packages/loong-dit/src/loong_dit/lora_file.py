"""Adapters as files that other programs load: diffusers' pipelines, and DiffSynth-Studio.

Both take an adapter to be scaled by `alpha / rank = 1`, so the scale is multiplied into `B`. Diffusers' file is
`pytorch_lora_weights.safetensors` with keys `transformer.blocks.0.attn1.to_q.lora_A.weight`; DiffSynth's is
`lora.safetensors` with the names of the family's own release, `blocks.0.self_attn.q.lora_A.default.weight`. Each
of two experts has its own file, in a folder of the expert's name.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from loong_core.checkpoint.gathering import gathered
from loong_core.checkpoint.pieces import StatePiece
from loong_core.nn.lora import ADAPTER_PREFIX, LoraSettings
from loong_core.parallel.context import ParallelContext
from loong_dit.model_source import TRANSFORMERS, ModelSource

LoraFormat = Literal["diffusers", "diffsynth"]

FILES: dict[LoraFormat, str] = {
    "diffusers": "pytorch_lora_weights.safetensors",
    "diffsynth": "lora.safetensors",
}


def save_lora(
    folder: Path,
    pieces: Iterable[StatePiece],
    source: ModelSource,
    lora: LoraSettings,
    form: LoraFormat,
    context: ParallelContext,
) -> list[Path]:
    """Write the adapters of a model, one file a transformer. Collective; rank 0 writes.

    Args:
        folder: where to; made if it is not there.
        pieces: this rank's weights, the adapters among them.
        source: the model.
        lora: the adapters' settings.
        form: whose names.
        context: whose ranks take part.

    Returns:
        The files, on every rank.
    """
    adapters = (each for each in pieces if each.piece.name.startswith(ADAPTER_PREFIX))
    whole = gathered(adapters, context, first_only=True)
    written = []
    for part in source.parts:
        file = (folder if source.experts == 1 else folder / part) / FILES[form]
        written.append(file)
        if context.rank == 0:
            prefix = ADAPTER_PREFIX if source.experts == 1 else f"{ADAPTER_PREFIX}{part}."
            own = {name.removeprefix(prefix): each for name, each in whole.items() if name.startswith(prefix)}
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary = file.with_suffix(".tmp")
            save_file(named_for(form, own, source, lora.scale), temporary, {"format": "pt"})
            temporary.replace(file)
    if context.world_size > 1:
        dist.barrier(group=context.data_context.group)
    return written


def named_for(form: LoraFormat, adapters: dict[str, Tensor], source: ModelSource, scale: float) -> dict[str, Tensor]:
    """Adapters by diffusers' layer names (`LAYER.lora_A.weight`) as a file's tensors."""
    named = {}
    for name, values in adapters.items():
        layer, _, which = name.removesuffix(".weight").rpartition(".")  # which: lora_A or lora_B
        scaled = values * scale if which == "lora_B" else values
        if form == "diffusers":
            named[f"{TRANSFORMERS[0]}.{layer}.{which}.weight"] = scaled.contiguous()
        else:
            named[f"{source.family.original_name(layer)}.{which}.default.weight"] = scaled.contiguous()
    return named
