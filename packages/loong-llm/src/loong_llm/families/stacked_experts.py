"""Mixtures whose checkpoints hold all experts of a layer in one tensor, gate and up joined."""

from __future__ import annotations

from loong_core.checkpoint.weight_map import Cut, Form, Rule, Span, WeightMap
from loong_core.nn.decoder_config import DecoderConfig


def with_stacked_experts(weight_map: WeightMap, config: DecoderConfig, *, transposed: bool) -> WeightMap:
    """The map of a decoder whose experts are `mlp.experts.gate_up_proj` and `mlp.experts.down_proj`.

    Args:
        weight_map: of the same decoder with a tensor for each expert.
        config: the decoder.
        transposed: whether a stored expert has inputs before outputs: `[experts, hidden, 2 * size]` and
            `[experts, size, hidden]`; else `[experts, 2 * size, hidden]` and `[experts, hidden, size]`.
    """
    hidden, form = config.hidden_size, Form(stacked=True, transposed=transposed)
    theirs = "model.layers.{layer}.mlp.experts."
    rules = []
    for rule in weight_map.rules:
        if not rule.experts:
            rules.append(rule)
            continue
        size = config.mixtures[0].expert_size
        if rule.ours.endswith("gate_up"):
            spans = [
                Span(f"{theirs}gate_up_proj", (2 * size, hidden), Cut(0, size, start=start), form)
                for start in (0, size)
            ]
        else:
            spans = [Span(f"{theirs}down_proj", (hidden, size), Cut(1, size), form)]
        rules.append(Rule(rule.ours, *spans, layers=rule.layers, experts=rule.experts, whole=rule.whole))
    return WeightMap(rules)
