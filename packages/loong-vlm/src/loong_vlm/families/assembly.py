"""From parts to one model's config and weight map: what every family does alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from loong_llm.families.config_reader import ConfigReader
from loong_llm.families.family import Family
from loong_vlm.parts import LanguagePart, ModelParts

if TYPE_CHECKING:
    from loong_core.checkpoint.weight_map import Rule, WeightMap


def nested(read: ConfigReader, key: str) -> dict[str, Any]:
    """A part's section of a `config.json`; empty, with a fault, where there is none."""
    value = read.hf.get(key)
    if isinstance(value, dict):
        return value
    read.fault(key, "is missing" if value is None else f"is a {type(value).__name__}", "a section of keys is wanted")
    return {}


def language_part(family: Family, hf: dict[str, Any]) -> LanguagePart:
    """The language model that a section describes, read by a family of loong-llm."""
    return LanguagePart(family, family.decoder_config(hf), hf)


def within_language_model(name: str) -> str:
    """`model.layers...` to `model.language_model.layers...`, as newer classes of transformers call it."""
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name


def assembled(
    parts: ModelParts,
    *,
    tower: str,
    projector: str,
    language: Callable[[str], str],
    tower_rules: list[Rule] | None = None,
    projector_rules: list[Rule] | None = None,
    language_map: WeightMap | None = None,
) -> WeightMap:
    """The weight map of a whole model, of parts that every tensor rank holds whole and a language model.

    Args:
        parts: the model.
        tower: what stands before the names of the tower's tensors.
        projector: likewise.
        language: a name of the language family to the name in the whole.
        tower_rules: where the family's names are not those of the tower's kind.
        projector_rules: likewise.
        language_map: where its tensors are stored otherwise than in the language family.
    """
    from loong_core.checkpoint.weight_map import WeightMap, part_rules, whole_on_each_rank

    config = parts.language.config
    own_map = parts.language.family.weight_map(config) if language_map is None else language_map
    vision = whole_on_each_rank(parts.tower_kind.rules(parts.tower) if tower_rules is None else tower_rules)
    joint = parts.projector_kind.rules(parts.projector) if projector_rules is None else projector_rules
    return WeightMap(
        [
            *part_rules(vision, parts.tower.num_layers, "tower.", lambda name: tower + name),
            *part_rules(joint, 1, "projector.", lambda name: projector + name),
            *part_rules(own_map.rules, config.num_layers, "language.", language),
        ]
    )
