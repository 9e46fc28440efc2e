"""Prints what autograd holds of small decoders after forward, with the kernels that serve GPUs, as JSON.

Run with TRITON_INTERPRET=1: `saved_bytes.py` prints `{name: [bytes of each further block, bytes besides blocks]}`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from plan_toys import TOKENS, TOYS, with_layers

from loong_core.data.batch import PackedBatch
from loong_core.nn.decoder import Decoder
from loong_core.nn.decoder_config import DecoderConfig
from loong_core.parallel.context import ParallelContext
from loong_kernels import registry


def saved(config: DecoderConfig) -> int:
    """Bytes of distinct memory that a forward keeps for backward, parameters apart."""
    torch.manual_seed(0)
    model = Decoder(config, ParallelContext.single(), dtype=torch.bfloat16)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
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
    del interpreted["grouped_linear"]  # it only differs in where the weight's gradient goes
    found = {}
    with registry.using(interpreted):
        for name, config in TOYS.items():
            one, two = (saved(with_layers(config, layers)) for layers in (1, 2))
            found[name] = [two - one, 2 * one - two]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
