"""From what a user calls a vision-language model (a named size, or a folder) to modules with weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from loong_core.checkpoint.hf_reader import HFFolder
from loong_core.checkpoint.weight_map import WeightMap
from loong_core.parallel.context import ParallelContext
from loong_llm.model import ModelSource, tokenizer_of
from loong_vlm.families.family import VisionFamily
from loong_vlm.model import VisionLanguageModel
from loong_vlm.model_config import read_vision_config
from loong_vlm.parts import ModelParts


@dataclass(frozen=True)
class VisionModelSource(ModelSource):
    """A vision-language model before it is built; `config` is its language model's.

    Attributes:
        family: whose it is.
        parts: what it is made of.
    """

    family: VisionFamily = field(kw_only=True)  # type: ignore[assignment]
    parts: ModelParts = field(kw_only=True)

    def make_weight_map(self) -> WeightMap:
        """The model's parameters in terms of its folder's tensors, or of those that the family writes."""
        return chosen_layout(self.family.weight_maps(self.parts), self.weights)

    def make_stage(
        self, context: ParallelContext, *, layers: range, embedding: bool, head: bool, dtype: torch.dtype
    ) -> nn.Module:
        """The module of a pipeline stage, without weights."""
        return VisionLanguageModel(self.parts, context, layers=layers, embedding=embedding, head=head, dtype=dtype)

    def duplicates(self) -> Mapping[str, str]:
        """Second copies of a tied table that its checkpoints may hold: name to the first's name."""
        if not self.config.tie_embeddings:
            return {}
        table = next(rule for rule in self.weight_map.rules if rule.ours == "language.embedding.weight")
        return dict.fromkeys(self.family.tied_heads, table.spans[0].name)

    def parameter_count(self) -> int:
        """How many parameters all parts have together."""
        return self.parts.parameter_count()


def chosen_layout(layouts: tuple[WeightMap, ...], folder: HFFolder | None) -> WeightMap:
    """Of the layouts that a family's checkpoints come in the one that a folder has, or is nearest to; else the first.

    Layouts differ in names, or in shapes of what has the same name.
    """
    if folder is None or len(layouts) == 1:
        return layouts[0]
    stored = {name: tensor.shape for name, tensor in folder.tensors.items()}

    def matching(layout: WeightMap) -> int:
        return sum(stored.get(name) == shape for name, shape in layout.tensors(0).items())

    return max(layouts, key=matching)


def open_vision_model(source: str | Path, overrides: Mapping[str, Any] | None = None) -> VisionModelSource:
    """Find a model and read its config; no weight is read.

    Args:
        source: name of a shipped size (these come first), or path of a folder with a `config.json`.
        overrides: keys of `config.json` to replace, nested ones in nested mappings.

    Raises:
        UserError: if there is no such name or folder, no family serves it, or the config has faults (all told at once).
    """
    model = read_vision_config(source, overrides)
    folder = None if model.folder is None else HFFolder(model.folder)
    weights = folder if folder is not None and folder.has_weights else None
    return VisionModelSource(
        model.name,
        model.hf_config,
        config=model.parts.language.config,
        weights=weights,
        tokenizer_dir=tokenizer_of(model.folder),
        family=model.family,
        parts=model.parts,
    )
