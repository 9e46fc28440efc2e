"""From what a user calls a model to its hyperparameters, without torch: what planning and checking need of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from loong_core.errors import ConfigError, Fault, UserError
from loong_core.json_text import read_json_object
from loong_core.nn.decoder_config import DecoderConfig, FeedForwardConfig
from loong_core.nn.moe.config import MoEConfig
from loong_core.parallel.layout import Layout
from loong_llm.families.family import Family
from loong_llm.families.registry import find_family, named_config, named_configs

OPTIONAL_KEYS = frozenset(
    {
        *("attention_bias", "mlp_bias", "tie_word_embeddings", "head_dim", "num_key_value_heads", "rms_norm_eps"),
        *("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "initializer_range"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype"),
    }
)
"""Keys that a `config.json` may leave out, and that overrides may therefore add."""


@dataclass(frozen=True)
class ModelConfig:
    """What a model is.

    Attributes:
        name: what the user called it.
        hf_config: its `config.json`, overrides applied.
        family: whose it is.
        config: the decoder it describes.
        folder: where it was found, None for a named size.
    """

    name: str
    hf_config: dict[str, Any]
    family: Family
    config: DecoderConfig
    folder: Path | None = None


def read_model_config(source: str | Path, overrides: Mapping[str, Any] | None = None) -> ModelConfig:
    """Find a model and read its config.

    Args:
        source: name of a shipped size (these come first), or path of a folder with a `config.json`.
        overrides: keys of `config.json` to replace, nested ones in nested mappings.

    Raises:
        UserError: if there is no such name or folder, no family serves it, or the config has faults (all told at once).
    """
    hf, folder = find_hf_config(source, named_configs(), named_config)
    family = find_family(hf)
    hf = overridden(hf, overrides or {}, OPTIONAL_KEYS | set(family.optional_keys))
    return ModelConfig(str(source), hf, family, family.decoder_config(hf), folder)


_OF_MEGATRON = (".metadata", "latest_checkpointed_iteration.txt")


def find_hf_config(
    source: str | Path, named: Collection[str], config_of: Callable[[str], dict[str, Any]]
) -> tuple[dict[str, Any], Path | None]:
    """The `config.json` of a named size or a folder, and the folder if it is one.

    Args:
        source: what the user calls the model.
        named: the named sizes there are; they come before folders.
        config_of: gives the config of a named size, and raises for other names, naming the nearest.

    Raises:
        UserError: if there is no such name or folder.
    """
    name, path = str(source), Path(source)
    if name.lower() in named:
        return config_of(name), None
    if path.is_dir():
        if (path / "run.yaml").is_file() and not (path / "config.json").exists():
            raise UserError(_of_a_run(path))
        if any((path / name).is_file() for name in _OF_MEGATRON) and not (path / "config.json").exists():
            raise UserError(
                f"model {name} is a checkpoint of Megatron's: loong-llm convert {name} OUTPUT --model NAME makes a "
                "Hugging Face folder of it"
            )
        return read_json_object(path / "config.json"), path
    if len(path.parts) > 1 or name.startswith((".", "~")):
        raise UserError(f"model {name}: there is no such folder")
    return config_of(name), None


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
    for feed_forward in {id(block.feed_forward): block.feed_forward for block in config.blocks}.values():
        match feed_forward:
            case FeedForwardConfig(width):
                widths["tensor"].add(width)
            case MoEConfig():
                widths["tensor"].add(feed_forward.shared_size)
                widths["expert_tensor"].add(feed_forward.expert_size)
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


def _of_a_run(folder: Path) -> str:
    """What to say where a run's folder was named as the model."""
    if (folder / "hf" / "config.json").is_file():
        return f"model {folder} is a run's folder, not a model's; did you mean {folder / 'hf'}?"
    return (
        f"model {folder} is the folder of a run that has not ended, so there is no {folder / 'hf'} yet; let it end, or "
        f"make a model of its last checkpoint: loong-llm convert {folder} DIR"
    )


def overridden(
    hf: dict[str, Any], overrides: Mapping[str, Any], optional: Collection[str], within: str = "model.overrides."
) -> dict[str, Any]:
    """A `config.json` with keys replaced, nested ones in nested mappings.

    Args:
        hf: the config.
        overrides: what to replace.
        optional: keys that may be added, because they may be missing.
        within: where the overrides are, for messages.

    Raises:
        ConfigError: keys that would have no effect.
    """
    known = hf.keys() | set(optional)
    faults = []
    for key in overrides:
        where = f"{within}{key}"
        if key in ("model_type", "architectures") and overrides[key] != hf.get(key):
            faults.append(Fault(where, f"the model is of type {hf.get('model_type')}", "name another model"))
        elif key in ("rope_theta", "rope_scaling") and hf.get("rope_parameters"):
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
    layers, kinds = overrides.get("num_hidden_layers"), hf.get("layer_types")
    if isinstance(layers, int) and isinstance(kinds, list) and kinds[:1] * len(kinds) == kinds != []:
        merged["layer_types"] = kinds[:1] * layers
    return merged
