"""Prints what autograd holds of small decoders after forward, with the kernels that serve GPUs, as JSON.

Run with TRITON_INTERPRET=1: `saved_bytes.py` prints `{name: [bytes of each further block, bytes besides blocks]}`, and
under `name.part` bytes of each further block where that part of it (all of it: `name.`) is recomputed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from plan_toys import TOKENS, TOYS, with_layers, work

from loong_core.data.batch import PackedBatch
from loong_core.device.cpu import CpuDevice
from loong_core.nn.decoder import Decoder
from loong_core.nn.decoder_config import DecoderConfig
from loong_core.nn.parts import ALL_BLOCKS, NOTHING, Parts
from loong_core.nn.recompute import keep_less
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_core.plan.activations import block_held
from loong_core.plan.workload import Share
from loong_kernels import registry


def saved(config: DecoderConfig, recompute: Parts = NOTHING) -> int:
    """Bytes of distinct memory that a forward keeps for backward, parameters apart."""
    torch.manual_seed(0)
    model = Decoder(config, ParallelContext.single(), dtype=torch.bfloat16)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    keep_less([model], model.parallel, CpuDevice(), recompute=recompute)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)  # or its memory is used again
        return tensor

    ids = torch.randint(0, config.vocab_size, (TOKENS + 1,))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(PackedBatch.from_lengths(ids[:-1], ids[1:], [TOKENS]))
    return sum(held.values())


def main() -> None:
    """Measure each toy with one and with two layers."""
    every = [each for op in registry.ops() for each in registry.implementations(op.name)]
    interpreted = {each.op: each.name for each in every if each.name.endswith("_interpreted")}
    interpreted["linear_cross_entropy"] = "kept_interpreted"
    found = {}
    with registry.using(interpreted):
        for name, config in TOYS.items():
            one, two = (saved(with_layers(config, layers)) for layers in (1, 2))
            found[name] = [two - one, 2 * one - two]
            for part in block_held(config.blocks[0], 64, Share.of(work(config), Layout()), 1.0).parts:
                parts = Parts(modules=(part.removeprefix("."),)) if part else ALL_BLOCKS
                two, three = (saved(with_layers(config, layers), parts) for layers in (2, 3))
                found[name + part if part else f"{name}."] = three - two
    print(json.dumps(found))


if __name__ == "__main__":
    main()
