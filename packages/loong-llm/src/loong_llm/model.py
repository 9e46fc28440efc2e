"""From what a user calls a model (a named size, or a Hugging Face folder) to modules with weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from loong_core.checkpoint.hf_load import load_weights
from loong_core.checkpoint.hf_reader import HFFolder
from loong_core.checkpoint.weight_map import WeightMap
from loong_core.errors import UserError
from loong_core.nn.decoder import Decoder
from loong_core.nn.decoder_config import DecoderConfig
from loong_core.nn.initialize import initialize
from loong_core.parallel.context import ParallelContext
from loong_llm.families.family import Family
from loong_llm.model_config import read_model_config

Initialise = Literal["auto", "random", "weights"]

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "*.tiktoken")


@dataclass(frozen=True)
class ModelSource:
    """A model before it is built.

    Attributes:
        name: what the user called it.
        hf_config: its `config.json`, overrides applied.
        family: whose it is.
        config: the decoder it describes, or that is a part of it.
        weights: the folder with its weights, None if it has none.
        tokenizer_dir: the folder with its tokenizer, None if it has none.
    """

    name: str
    hf_config: dict[str, Any]
    family: Family
    config: DecoderConfig
    weights: HFFolder | None = None
    tokenizer_dir: Path | None = None
    weight_map: WeightMap = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight_map", self.make_weight_map())

    def make_weight_map(self) -> WeightMap:
        """The model's parameters in terms of its Hugging Face tensors."""
        return self.family.weight_map(self.config)

    def make_stage(
        self, context: ParallelContext, *, layers: range, embedding: bool, head: bool, dtype: torch.dtype
    ) -> nn.Module:
        """The module of a pipeline stage, without weights; arguments are `Decoder`'s."""
        return Decoder(self.config, context, layers=layers, embedding=embedding, head=head, dtype=dtype)

    @property
    def has_weights(self) -> bool:
        """Whether there are weights to load."""
        return self.weights is not None

    def load(self, stages: Sequence[nn.Module], context: ParallelContext, seed: int) -> None:
        """Fill stages built with `context`; `seed` is for what has no weights, where that may be drawn."""
        fill(stages, self, context)

    def duplicates(self) -> Mapping[str, str]:
        """Second copies of a tied table that its checkpoints may hold: name to the first's name."""
        return self.family.tied_tensors if self.config.tie_embeddings else {}

    def parameter_count(self) -> int:
        """How many parameters the whole model has."""
        return self.config.parameter_count()

    def described(self, precision: str, *, overridden: bool = False) -> str:
        """A line of news at the start of a run."""
        changed = " with overrides" if overridden else ""
        return f"model: {self.name}{changed}, {self.parameter_count():,} parameters, {precision}"


def open_model(source: str | Path, overrides: Mapping[str, Any] | None = None) -> ModelSource:
    """Find a model and read its config; no weight is read.

    Args:
        source: name of a shipped size (these come first), or path of a folder with a `config.json`.
        overrides: keys of `config.json` to replace, nested ones in nested mappings.

    Raises:
        UserError: if there is no such name or folder, no family serves it, or the config has faults (all told at once).
    """
    model = read_model_config(source, overrides)
    folder = None if model.folder is None else HFFolder(model.folder)
    weights = folder if folder is not None and folder.has_weights else None
    return ModelSource(model.name, model.hf_config, model.family, model.config, weights, tokenizer_of(model.folder))


def tokenizer_of(folder: Path | None) -> Path | None:
    """The folder, if there is a tokenizer in it."""
    found = folder is not None and any(file for kind in _TOKENIZER_FILES for file in folder.glob(kind))
    return folder if found else None


def build_stages(
    model: ModelSource,
    context: ParallelContext,
    *,
    dtype: torch.dtype = torch.float32,
    initialise: Initialise = "auto",
    seed: int = 0,
) -> list[Any]:
    """This rank's modules, one a virtual pipeline stage, with weights.

    Args:
        model: what to build.
        context: the layout; each rank builds and fills its own part.
        dtype: of the parameters.
        initialise: `weights` loads them, `random` draws them, `auto` loads them if the model has any.
        seed: of the draw, which is the same for every layout.

    Raises:
        UserError: if weights are wanted and there are none, or they are faulty.
    """
    config = model.config
    stages_of_rank = context.layout.stage_layers(config.num_layers, config.layer_costs())[context.pipeline.rank]
    stages = [
        model.make_stage(
            context,
            layers=layers,
            embedding=context.is_first_stage and number == 0,
            head=context.is_last_stage and number == len(stages_of_rank) - 1,
            dtype=dtype,
        )
        for number, layers in enumerate(stages_of_rank)
    ]
    if initialise == "random" or (initialise == "auto" and not model.has_weights):
        for stage in stages:
            initialize(stage, model.weight_map, context, seed, config.initializer_range)
    else:
        model.load(stages, context, seed)
    return stages


def fill(stages: Sequence[nn.Module], model: ModelSource, context: ParallelContext) -> None:
    """Load the model's weights into stages built with `context`.

    Raises:
        UserError: if the model has none, or they are faulty.
    """
    if model.weights is None:
        raise UserError(f"model {model.name} has a config but no weights to load: model.initialise=random draws them")
    load_weights(
        stages,
        model.weight_map,
        model.config.num_layers,
        context,
        model.weights,
        harmless=model.family.harmless_tensors,
        duplicates=model.duplicates(),
    )
