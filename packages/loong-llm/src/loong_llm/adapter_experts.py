"""Adapters of experts as PEFT stores them: those of all experts of a layer in one tensor.

In memory and in checkpoints each expert's adapter is a tensor by itself, `X.experts.{expert}.down_proj.lora_A.weight`
`[rank, in]` and `lora_B` `[out, rank]`. PEFT adapts the parameter `X.experts.down_proj`: its `lora_A` is
`[experts * rank, in]`, expert after expert, its `lora_B` `[out, rank * experts]`, with the experts side by side within
each rank. Where both parameters of a module are adapted, it wraps them one in the other: the inner, `gate_up_proj`, is
stored under `X.experts.base_layer`, the outer, `down_proj`, under `X.experts`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from loong_core.errors import UserError
from loong_core.nn.lora_settings import ADAPTER_PREFIX

INNER, OUTER = "gate_up_proj", "down_proj"
_OURS = re.compile(r"(?P<module>.+\.experts)\.(?P<expert>\d+)\.(?P<product>\w+)\.lora_(?P<letter>[AB])\.weight")
_THEIRS = re.compile(r"(?P<module>.+\.experts)(?P<inner>\.base_layer)?\.lora_(?P<letter>[AB])\.weight")


def expert_parameters(names: Iterable[str]) -> set[str]:
    """The parameters that tensors of our names adapt, as PEFT calls them, without its prefix."""
    found = (_OURS.fullmatch(name) for name in names)
    return {f"{each['module'].removeprefix(ADAPTER_PREFIX)}.{each['product']}" for each in found if each}


def joined(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under our names as PEFT stores them; those that are no expert's stay as they are."""
    adapted = expert_parameters(tensors)
    result: dict[str, Tensor] = {}
    experts: dict[tuple[str, str, str], dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        if (found := _OURS.fullmatch(name)) is None:
            result[name] = tensor
        else:
            key = (found["module"], found["product"], found["letter"])
            experts.setdefault(key, {})[int(found["expert"])] = tensor
    for (module, product, letter), held in experts.items():
        both = {f"{module.removeprefix(ADAPTER_PREFIX)}.{each}" for each in (INNER, OUTER)} <= adapted
        place = f"{module}.base_layer" if both and product == INNER else module
        stacked = torch.stack([held[expert] for expert in range(len(held))])
        whole = stacked.flatten(0, 1) if letter == "A" else stacked.permute(1, 2, 0).flatten(1)
        result[f"{place}.lora_{letter}.weight"] = whole
    return result


class StoredExperts:
    """The experts' tensors of a folder that PEFT can read, seen under our names.

    Args:
        shapes: the folder's tensors.
        rank: the adapters'.
        targets: PEFT's `target_parameters`.

    Raises:
        UserError: adapters of experts whose parameter the targets do not tell.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], rank: int, targets: Sequence[str]) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Ours, one for each expert."""
        self.stored: dict[str, tuple[str, int, int]] = {}
        """By our name: the stored tensor, the expert, and how many experts it holds."""
        self.rank = rank
        nested = {found["module"] for name in shapes if (found := _THEIRS.fullmatch(name)) and found["inner"]}
        for name, shape in shapes.items():
            if (found := _THEIRS.fullmatch(name)) is None:
                continue
            module = found["module"]
            product = (INNER if found["inner"] else OUTER) if module in nested else _named(module, targets)
            count = shape[0 if found["letter"] == "A" else 1] // rank
            own = (rank, shape[1]) if found["letter"] == "A" else (shape[0], rank)
            for expert in range(count):
                ours = f"{module}.{expert}.{product}.lora_{found['letter']}.weight"
                self.shapes[ours], self.stored[ours] = own, (name, expert, count)

    def is_one(self, name: str) -> bool:
        """Whether a stored tensor holds experts' adapters."""
        return _THEIRS.fullmatch(name) is not None

    def of_expert(self, name: str, whole: Tensor) -> Tensor:
        """What one of our names stands for in its stored tensor."""
        stored, expert, count = self.stored[name]
        if stored.endswith("A.weight"):
            return whole.unflatten(0, (count, self.rank))[expert]
        return whole.unflatten(1, (self.rank, count))[:, :, expert]


def _named(module: str, targets: Sequence[str]) -> str:
    """Which parameter of a module is adapted, if it is one alone."""
    own = module.removeprefix(ADAPTER_PREFIX)
    found = [each for each in (INNER, OUTER) if any(f".{own}.{each}".endswith(f".{target}") for target in targets)]
    if len(found) != 1:
        raise UserError(
            f"the adapter of {own} is not told by target_parameters {list(targets)}; save it with peft anew"
        )
    return found[0]
