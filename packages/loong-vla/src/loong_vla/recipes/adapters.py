"""Low-rank adapters on a policy's vision-language model: put on before the engine, merged into what is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from loong_core.checkpoint.gathering import gathered
from loong_core.checkpoint.pieces import StatePiece
from loong_core.checkpoint.weight_map import WeightMap
from loong_core.nn.freezing import Trained
from loong_core.nn.lora import ADAPTER_PREFIX, LoraSettings, adapter_layers, apply_lora
from loong_core.nn.lora_settings import ALL_LINEAR, A, B
from loong_core.nn.name_patterns import chosen
from loong_core.parallel.context import ParallelContext
from loong_vla.recipes.training_config import AdaptersSection


def adapter_settings(section: AdaptersSection, seed: int) -> LoraSettings:
    """The `lora` section as adapters take it."""
    targets = (section.targets,) if isinstance(section.targets, str) else tuple(section.targets)
    return LoraSettings(rank=section.rank, alpha=section.alpha, dropout=section.dropout, targets=targets, seed=seed)


def put_adapters(
    policy: nn.Module,
    weight_map: WeightMap,
    num_layers: int,
    context: ParallelContext,
    section: AdaptersSection,
    seed: int,
) -> tuple[WeightMap, Trained]:
    """Freeze a policy but for adapters and what is trained beside them.

    Returns:
        the weight map that the engine needs, and how many parameters are trained.

    Raises:
        UserError: a pattern matches nothing, or what takes no adapter.
    """
    settings = adapter_settings(section, seed)
    extended = apply_lora([policy], weight_map, num_layers, context, settings)
    put = [name for name, _ in policy.named_parameters() if ".lora." in name]
    adapted = adapter_layers(piece.name for name in put for piece in extended.placement(name, context).pieces)
    chosen(adapted, [each for each in settings.targets if each != ALL_LINEAR], "lora.targets")  # the head takes none
    names = weight_map.tensors(num_layers)
    whole = chosen(names, section.beside, "lora.beside") if section.beside else set()
    trained = 0
    for name, parameter in policy.named_parameters():
        if parameter.requires_grad:  # an adapter's
            trained += parameter.numel()
        elif ".lora." not in name and {piece.name for piece in weight_map.placement(name, context).pieces} <= whole:
            parameter.requires_grad_(True)
            trained += parameter.numel()
    return extended, Trained(trained, sum(each.numel() for each in policy.parameters()))


def merged(pieces: Iterable[StatePiece], scale: float, context: ParallelContext) -> Iterator[StatePiece]:
    """This rank's weights with `scale * B A` in them, without the adapters. Collective.

    Args:
        pieces: its weights and its boxes of adapters, as an engine yields them.
        scale: what an adapter's output is multiplied by.
        context: whose ranks hold the adapters together.
    """
    own = list(pieces)
    whole = gathered((each for each in own if each.piece.name.startswith(ADAPTER_PREFIX)), context)
    for each in own:
        if each.piece.name.startswith(ADAPTER_PREFIX):
            continue
        layer = ADAPTER_PREFIX + each.piece.name.removesuffix(".weight")
        if each.tensor is None or layer + A not in whole:
            yield each
            continue
        rows, columns = each.piece.slices
        added = whole[layer + B][rows].float() @ whole[layer + A][:, columns].float()
        yield StatePiece(each.kind, each.piece, each.tensor.float() + scale * added.to(each.tensor.device))
