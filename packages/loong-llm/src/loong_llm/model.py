"""From what a user calls a model (a named size, or a Hugging Face folder) to modules with weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import torch

from loong_core.checkpoint.hf_load import load_weights
from loong_core.checkpoint.hf_reader import HFFolder
from loong_core.checkpoint.weight_map import WeightMap
from loong_core.errors import ConfigError, Fault, UserError
from loong_core.nn.decoder import Decoder
from loong_core.nn.decoder_config import DecoderConfig, FeedForwardConfig
from loong_core.nn.initialize import initialize
from loong_core.nn.moe.config import MoEConfig
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_llm.families.family import Family
from loong_llm.families.registry import find_family, named_config, named_configs

Initialise = Literal["auto", "random", "weights"]

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "*.tiktoken")
_OPTIONAL_KEYS = frozenset(
    {
        *("attention_bias", "mlp_bias", "tie_word_embeddings", "head_dim", "num_key_value_heads", "rms_norm_eps"),
        *("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "initializer_range"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype"),
    }
)
"""Keys that a `config.json` may leave out, and that overrides may therefore add."""


@dataclass(frozen=True)
class ModelSource:
    """A model before it is built.

    Attributes:
        name: what the user called it.
        hf_config: its `config.json`, overrides applied.
        family: whose it is.
        config: the decoder it describes.
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
        object.__setattr__(self, "weight_map", self.family.weight_map(self.config))


def open_model(source: str | Path, overrides: Mapping[str, Any] | None = None) -> ModelSource:
    """Find a model and read its config; no weight is read.

    Args:
        source: name of a shipped size (these come first), or path of a folder with a `config.json`.
        overrides: keys of `config.json` to replace, nested ones in nested mappings.

    Raises:
        UserError: if there is no such name or folder, no family serves it, or the config has faults (all told at once).
    """
    name = str(source)
    path = Path(source)
    if name.lower() in named_configs():
        folder, hf = None, named_config(name)
    elif path.is_dir():
        folder = HFFolder(path)
        hf = folder.config
    elif len(path.parts) > 1 or name.startswith((".", "~")):
        raise UserError(f"model {name}: there is no such folder")
    else:
        folder, hf = None, named_config(name)
    family = find_family(hf)
    hf = _overridden(hf, overrides or {}, family)
    weights = folder if folder is not None and folder.has_weights else None
    has_tokenizer = any(file for pattern in _TOKENIZER_FILES for file in path.glob(pattern)) if folder else False
    return ModelSource(name, hf, family, family.decoder_config(hf), weights, path if has_tokenizer else None)


def layout_faults(config: DecoderConfig, layout: Layout, world_size: int) -> list[Fault]:
    """Everything that keeps a layout from serving this model on `world_size` ranks."""
    faults = layout.faults(
        world_size,
        heads=config.attention.num_heads,
        kv_heads=config.attention.num_kv_heads,
        layers=config.num_layers,
        experts=config.mixtures[0].router.num_experts if config.mixtures else 0,
    )
    widths: dict[str, set[int]] = {"tensor": set(), "expert_tensor": set()}
    for block in config.blocks:
        match block.feed_forward:
            case FeedForwardConfig(width):
                widths["tensor"].add(width)
            case MoEConfig():
                widths["tensor"].add(block.feed_forward.shared_size)
                widths["expert_tensor"].add(block.feed_forward.expert_size)
    for degree, kinds in widths.items():
        size = getattr(layout, degree)
        faults += [
            Fault(f"layout.{degree}", f"{size} does not divide the model's feed-forward width of {width}")
            for width in sorted(kinds)
            if width % size
        ]
    if layout.pipeline > 1 and any(
        each.router.aux_coefficient and each.router.aux_scope == "model" for each in config.mixtures
    ):
        what = f"is {layout.pipeline}, and the model's auxiliary loss is over all layers together, which no stage sees"
        faults.append(Fault("layout.pipeline", what, "set model.overrides.router_aux_loss_scope=layer"))
    return faults


def build_stages(
    model: ModelSource,
    context: ParallelContext,
    *,
    dtype: torch.dtype = torch.float32,
    initialise: Initialise = "auto",
    seed: int = 0,
) -> list[Decoder]:
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
        Decoder(
            config,
            context,
            layers=layers,
            embedding=context.is_first_stage and number == 0,
            head=context.is_last_stage and number == len(stages_of_rank) - 1,
            dtype=dtype,
        )
        for number, layers in enumerate(stages_of_rank)
    ]
    if initialise == "random" or (initialise == "auto" and model.weights is None):
        for stage in stages:
            initialize(stage, model.weight_map, context, seed, config.initializer_range)
    else:
        fill(stages, model, context)
    return stages


def fill(stages: list[Decoder], model: ModelSource, context: ParallelContext) -> None:
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
        duplicates=model.family.tied_tensors if model.config.tie_embeddings else None,
    )


def _overridden(hf: dict[str, Any], overrides: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """`hf` with the overrides; keys that would have no effect are faults."""
    known = hf.keys() | _OPTIONAL_KEYS | set(family.optional_keys)
    faults = []
    for key in overrides:
        where = f"model.overrides.{key}"
        if key in ("rope_theta", "rope_scaling") and hf.get("rope_parameters"):
            faults.append(Fault(where, "this config.json has rope_parameters in its place", "override a key of those"))
        elif key not in known:
            near = get_close_matches(key, sorted(known), n=1)
            fix = f"the nearest key is {near[0]}" if near else f"keys of this config: {', '.join(sorted(hf))}"
            faults.append(Fault(where, "is not a key of the model's config.json", fix))
    if faults:
        raise ConfigError(faults)
    merged = {**hf, **overrides}
    for key, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(hf.get(key), Mapping):
            merged[key] = {**hf[key], **value}
    if "num_hidden_layers" in overrides and len(set(hf.get("layer_types") or [])) == 1:
        merged["layer_types"] = hf["layer_types"][:1] * int(overrides["num_hidden_layers"])
    return merged
