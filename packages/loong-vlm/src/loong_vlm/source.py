"""From what a user calls a vision-language model (a name, a folder, parts of several) to modules with weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from loong_core.checkpoint.hf_load import load_weights
from loong_core.checkpoint.hf_reader import HFFolder
from loong_core.checkpoint.weight_map import Rule, WeightMap, part_rules
from loong_core.nn.initialize import initialize
from loong_core.parallel.context import ParallelContext
from loong_llm.model import ModelSource, open_model, tokenizer_of
from loong_vlm.composition import Composition, Grafts, compose
from loong_vlm.encoder import VisionEncoder
from loong_vlm.families.family import VisionFamily
from loong_vlm.model import VisionLanguageModel
from loong_vlm.model_config import read_vision_config
from loong_vlm.parts import ModelParts

_PARTS = ("tower", "projector", "language")

Component = Literal["whole", "language", "encoder"]


@dataclass(frozen=True)
class PartWeights:
    """Where the weights of one part are.

    Attributes:
        folder: of another model.
        rules: the part's parameters in terms of that folder's tensors.
    """

    folder: HFFolder
    rules: tuple[Rule, ...]

    def of_part(self, name: str) -> WeightMap:
        """The same for the part's module by itself."""
        prefix = f"{name}."
        return WeightMap(
            Rule(
                rule.ours.removeprefix(prefix),
                *rule.spans,
                layers=rule.layers,
                experts=rule.experts,
                whole=rule.whole,
            )
            for rule in self.rules
        )


@dataclass(frozen=True)
class VisionModelSource(ModelSource):
    """A vision-language model before it is built; `config` is its language model's.

    Attributes:
        family: whose it is.
        parts: what it is made of.
        folder: where it was found; of a composed model, the folder that it begins with. None for a named size.
        grafts: of a composed model the weights of its parts, those that there are.
        component: what its stages are: the whole model, or where its parts have layouts of their own the `language`
            model, fed with features, or the `encoder`, which is tower and projector.
    """

    family: VisionFamily = field(kw_only=True)  # type: ignore[assignment]
    parts: ModelParts = field(kw_only=True)
    folder: Path | None = field(kw_only=True, default=None)
    grafts: Mapping[str, PartWeights] | None = field(kw_only=True, default=None)
    component: Component = field(kw_only=True, default="whole")

    def make_weight_map(self) -> WeightMap:
        """The model's parameters in terms of its folder's tensors, or of those that the family writes."""
        whole = chosen_layout(self.family.weight_maps(self.parts), self.weights)
        return whole.divided() if self.component == "encoder" else whole

    def make_stage(
        self, context: ParallelContext, *, layers: range, embedding: bool, head: bool, dtype: torch.dtype
    ) -> nn.Module:
        """The module of a pipeline stage, without weights; an encoder has one."""
        if self.component == "encoder":
            return VisionEncoder(self.parts, context, dtype)
        encodes = self.component == "whole"
        return VisionLanguageModel(
            self.parts, context, layers=layers, embedding=embedding, head=head, encodes=encodes, dtype=dtype
        )

    def only(self, component: Component) -> VisionModelSource:
        """The same model, of which stages are one component."""
        return replace(self, component=component)

    @property
    def has_weights(self) -> bool:
        """Whether there are weights to load, of some part at least."""
        return bool(self.grafts) if self.grafts is not None else super().has_weights

    def load(self, stages: Sequence[nn.Module], context: ParallelContext, seed: int) -> None:
        """Load the weights; of a composed model those that its parts bring, the others are drawn."""
        if self.grafts is None:
            super().load(stages, context, seed)
            return
        for stage in stages:
            initialize(stage, self.weight_map, context, seed, self.config.initializer_range)
            for name in _PARTS:
                part = getattr(stage, name, None)
                if name in self.grafts and part is not None:
                    found = self.grafts[name]
                    names = found.of_part(name)
                    names = names.divided() if self.component == "encoder" else names
                    load_weights([part], names, self.config.num_layers, context, found.folder, harmless=[".*"])

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


def open_vision_model(
    source: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    tower: str | None = None,
    projector: str | None = None,
    language: str | None = None,
) -> VisionModelSource:
    """Find a model and read its config; no weight is read.

    Args:
        source: name of a shipped size (these come first), or path of a folder with a `config.json`; may be empty where
            tower and language are named.
        overrides: keys of `config.json` to replace, nested ones in nested mappings.
        tower: another model, whose tower takes the place of the source's.
        projector: likewise its projector.
        language: likewise its language model; a model of loong-llm, too.

    Raises:
        UserError: if there is no such name or folder, no family serves it, parts do not fit, or the config has faults
            (all told at once).
    """
    if grafts := Grafts(tower, projector, language):
        return _composed(compose(source, grafts, overrides), grafts)
    model = read_vision_config(source, overrides)
    weights = _weights(model.folder)
    return VisionModelSource(
        model.name,
        model.hf_config,
        config=model.parts.language.config,
        weights=weights,
        tokenizer_dir=tokenizer_of(model.folder),
        family=model.family,
        parts=model.parts,
        folder=model.folder,
    )


def _composed(made: Composition, grafts: Grafts) -> VisionModelSource:
    """A composed model, with the weights that its parts bring."""
    found: dict[str, PartWeights] = {}
    for name in ("tower", "projector"):
        part = getattr(made, name)
        weights = _weights(part.folder)
        if weights is not None and (name == "tower" or made.projector_fits):
            layout = chosen_layout(part.family.weight_maps(part.parts), weights)
            found[name] = PartWeights(weights, _rules_of(name, layout))
    if made.language is None:
        own = open_model(grafts.language or "")
        if own.weights is not None:
            rules = part_rules(own.weight_map.rules, own.config.num_layers, "language.", lambda name: name)
            found["language"] = PartWeights(own.weights, tuple(rules))
        tokenizer = own.tokenizer_dir
    else:
        tokenizer = made.language.folder
        if (weights := _weights(made.language.folder)) is not None:
            layout = chosen_layout(made.language.family.weight_maps(made.language.parts), weights)
            found["language"] = PartWeights(weights, _rules_of("language", layout))
    return VisionModelSource(
        made.model.name,
        made.model.hf_config,
        config=made.model.parts.language.config,
        tokenizer_dir=tokenizer_of(made.base.folder) or tokenizer_of(tokenizer),
        family=made.model.family,
        parts=made.model.parts,
        folder=made.tower.folder,
        grafts=found,
    )


def _weights(folder: Path | None) -> HFFolder | None:
    """A folder's weights, None where it has none."""
    opened = None if folder is None else HFFolder(folder)
    return opened if opened is not None and opened.has_weights else None


def _rules_of(part: str, layout: WeightMap) -> tuple[Rule, ...]:
    return tuple(rule for rule in layout.rules if rule.ours.startswith(f"{part}."))
