"""Models with adapters at random, and the adapters' gradients by name."""

import torch
import torch.distributed as dist
from toy_models import batch_of, named_gradients

from loong_core.device.cpu import CpuDevice
from loong_core.engine.megatron.engine import MegatronEngine
from loong_core.engine.settings import EngineSettings
from loong_core.nn.four_bit_base import round_base
from loong_core.nn.lora import ADAPTER_PREFIX, LoraSettings, apply_lora
from loong_core.parallel.context import ParallelContext
from loong_llm.adapter import save_adapter
from loong_llm.model import build_stages, open_model
from loong_llm.recipes.next_token import next_token_loss

CONTEXT = ParallelContext.single()
SETTINGS = {
    "every linear": LoraSettings(rank=3, alpha=5),
    "queries and values": LoraSettings(rank=2, targets=("q_proj", "v_proj")),
    "up of the second layer": LoraSettings(rank=2, targets=("layers.1.mlp.up_proj",)),
    "rslora": LoraSettings(rank=4, alpha=8, rslora=True),
    "dora": LoraSettings(rank=3, alpha=4, dora=True),
}


def ours(folder):
    source = open_model(folder)
    return source, build_stages(source, CONTEXT, dtype=torch.float64)


def adapted(folder, settings, seed=3):
    """Our model with adapters drawn at random (a fresh one does nothing), and the extended weight map."""
    source, stages = ours(folder)
    weight_map = apply_lora(stages, source.weight_map, source.config.num_layers, CONTEXT, settings)
    for number, (name, parameter) in enumerate(stages[0].named_parameters()):
        if ".lora." in name:
            generator = torch.Generator().manual_seed(seed + number)
            with torch.no_grad():
                drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(1 + 0.1 * drawn if parameter.ndim == 1 else 0.3 * drawn)
    return source, stages, weight_map


def adapter_gradients(stage, weight_map):
    known = {id(parameter) for parameter in stage.parameters() if parameter.requires_grad}
    for parameter in stage.parameters():
        if id(parameter) not in known:
            assert parameter.grad is None
            parameter.grad = torch.zeros_like(parameter)
    found = named_gradients(stage, weight_map, CONTEXT)
    return {name: gradient for name, gradient in found.items() if name.startswith(ADAPTER_PREFIX)}


def train(base, layout, settings, adapter=None, four_bit=False, engine=MegatronEngine):
    """Losses and gradient norms of three steps, the weights after them by name; saves the adapter."""
    context = ParallelContext.build(layout, "cpu")
    source = open_model(base)
    stages = build_stages(source, context)
    if four_bit:
        round_base(stages, context.device)
    weight_map = apply_lora(stages, source.weight_map, 2, context, settings)
    engine = engine(stages, weight_map, context, CpuDevice(), EngineSettings(precision="fp32"))
    curve = []
    for step in range(3):
        batches = [batch_of([7, 5, 4], seed=10 * step + number) for number in range(4)]
        own = batches[context.data.rank :: context.data.size]
        loss = engine.accumulate(own, next_token_loss)
        curve.append((loss.loss, engine.grad_norm()))
        engine.apply(0.05)
    if adapter is not None:
        held = engine.weight_pieces()
        save_adapter(adapter, held, settings, context, weight_map=source.weight_map, num_layers=2)
    mine = [(state.piece, state.tensor.clone()) for state in engine.weight_pieces()]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    whole = {}
    for piece, values in (each for rank in everyone for each in rank):
        whole.setdefault(piece.name, torch.full(piece.global_shape, torch.nan))[piece.slices] = values
    return curve, whole
