"""Low-rank adapters on the experts of a mixture, as PEFT puts them on the parameters that hold all experts of a layer.

Each expert has an `A` and a `B` of its own for the product that makes gate and up together, and for the one that goes
down: `y_e = W_e x + scale B_e A_e x`. They are stacked as the experts' weights are, and computed by the same grouped
products. Expert ranks hold the adapters of their experts.

PEFT calls the two parameters `...mlp.experts.gate_up_proj` and `...mlp.experts.down_proj` in every family. Outside the
model an expert has tensors of its own, `...mlp.experts.{expert}.down_proj.lora_A.weight`; a folder for PEFT has
them joined (`loong_llm.adapter_experts`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn

from loong_core.checkpoint.weight_map import Cut, Rule, Span, WeightMap
from loong_core.errors import UserError
from loong_core.nn.lora_settings import ADAPTER_PREFIX, A, B, LoraSettings, drawn
from loong_core.nn.main_gradient import main_gradient
from loong_core.nn.moe.experts import Experts
from loong_core.parallel.context import ParallelContext
from loong_kernels import grouped_linear

_PRODUCTS = {"gate_up": "gate_up_proj", "down": "down_proj"}
"""Our parameters by what PEFT calls them."""


class ExpertAdapter(nn.Module):
    """The adapters of one product of this rank's experts.

    Attributes:
        a: `[local_experts, rank, in]`.
        b: `[local_experts, out, rank]`.
        scale: what their output is multiplied by.
    """

    def __init__(self, a: nn.Parameter, b: nn.Parameter, scale: float) -> None:
        super().__init__()
        self.a, self.b, self.scale = a, b, scale

    def forward(self, rows: Tensor, offsets: Tensor, output: Tensor) -> Tensor:
        """The product's output with the adapters'.

        Args:
            rows: `[rows, in]`, sorted by expert.
            offsets: `[local_experts]` int32, where each expert's rows end.
            output: `[rows, out]`, the product's own.
        """
        inner = grouped_linear(rows, self.a, offsets, weight_grad_into=main_gradient(self.a))
        return output + self.scale * grouped_linear(inner, self.b, offsets, weight_grad_into=main_gradient(self.b))

    def delta(self) -> Tensor:
        """`scale B A` of every expert, `[local_experts, out, in]`, in float32 at least."""
        wide = torch.promote_types(self.a.dtype, torch.float32)
        return self.scale * self.b.to(wide) @ self.a.to(wide)


def expert_layers(weight_map: WeightMap, num_layers: int) -> set[str]:
    """What PEFT calls the parameters that hold experts, of every layer that has some."""
    return {
        _theirs(rule).format(layer=layer)
        for rule in _expert_rules(weight_map)
        for layer in (range(num_layers) if rule.layers is None else rule.layers)
    }


def expert_rules(weight_map: WeightMap, settings: LoraSettings) -> Iterator[Rule]:
    """Rules for the adapters of every expert."""
    for rule in _expert_rules(weight_map):
        module, _, product = _theirs(rule).rpartition(".")
        theirs = f"{ADAPTER_PREFIX}{module}.{{expert}}.{product}"
        inputs = rule.spans[0].shape[1]
        outputs = sum(span.shape[0] for span in rule.spans)
        where = {"layers": rule.layers, "experts": rule.experts}
        yield Rule(f"{_ours(rule)}.a", Span(theirs + A, (settings.rank, inputs)), **where)
        spans, start = [], 0
        for span in rule.spans:
            own = Cut(0, span.shape[0], start=start)
            spans.append(Span(theirs + B, (outputs, settings.rank), own))
            start += span.shape[0]
        yield Rule(f"{_ours(rule)}.b", *spans, **where)


def adapt_experts(
    stage: nn.Module,
    wanted: Collection[str],
    extended: WeightMap,
    context: ParallelContext,
    settings: LoraSettings,
) -> None:
    """Put adapters on those experts of a stage whose parameters are wanted.

    Raises:
        UserError: the layout cuts the experts' matrices, or the settings ask for what adapters of experts have not.
    """
    for name, experts in stage.named_modules():
        if not isinstance(experts, Experts):
            continue
        adapters = nn.ModuleDict()
        for ours, theirs in _PRODUCTS.items():
            own = f"{name}.lora.{ours}"
            placed = extended.placement(f"{own}.a", context)
            if _layer_of(placed.pieces[0].name, theirs) not in wanted:
                continue
            _check(settings, context)
            weight = getattr(experts, ours)
            a = placed.to_local([drawn(piece, settings.seed) for piece in placed.pieces])
            b = torch.zeros(extended.placement(f"{own}.b", context).shape)
            adapters[ours] = ExpertAdapter(_like(weight, a), _like(weight, b), settings.scale)
        if adapters:
            experts.lora = adapters


@torch.no_grad()
def merge_experts(stage: nn.Module) -> None:
    """Write the adapters of a stage's experts into their weights and take them off."""
    for experts in stage.modules():
        if isinstance(experts, Experts) and experts.lora is not None:
            for ours, adapter in experts.lora.items():
                weight = getattr(experts, ours)
                assert isinstance(adapter, ExpertAdapter)
                for expert, change in enumerate(adapter.delta()):
                    weight[expert].copy_(weight[expert].to(change.dtype) + change)
            experts.lora = None


def _check(settings: LoraSettings, context: ParallelContext) -> None:
    if context.expert_tensor.size > 1:
        raise UserError(
            f"lora.targets name experts, whose matrices layout.expert_tensor {context.expert_tensor.size} cuts; set it "
            "to 1 (layout.expert divides the experts), or leave them out of the targets"
        )
    for key, value in (("dora", settings.dora), ("dropout", settings.dropout)):
        if value:
            raise UserError(
                f"lora.{key} is {value}, and lora.targets name experts, for which PEFT has none; remove one"
            )


def _expert_rules(weight_map: WeightMap) -> Iterator[Rule]:
    """The rules of the parameters in which experts are stacked."""
    return (rule for rule in weight_map.rules if rule.experts and rule.ours.rsplit(".", 1)[-1] in _PRODUCTS)


def _ours(rule: Rule) -> str:
    module, _, product = rule.ours.rpartition(".")
    return f"{module}.lora.{product}"


def _theirs(rule: Rule) -> str:
    """What transformers, and hence PEFT, calls a parameter of experts: the same in every family."""
    block = rule.spans[0].name.partition("{layer}.")[0]
    return f"{block}{{layer}}.mlp.experts.{_PRODUCTS[rule.ours.rpartition('.')[2]]}"


def _layer_of(tensor: str, product: str) -> str:
    """The parameter that an expert's adapter, named as outside, belongs to."""
    module = tensor.removeprefix(ADAPTER_PREFIX).partition(".experts.")[0]
    return f"{module}.experts.{product}"


def _like(weight: nn.Parameter, values: Tensor) -> nn.Parameter:
    """A parameter that engines treat as the experts' own."""
    parameter = nn.Parameter(values.to(weight.device, weight.dtype))
    for name in ("allreduce", "tensor_model_parallel", "partition_dim", "partition_stride", "shared"):
        setattr(parameter, name, getattr(weight, name))
    return parameter
