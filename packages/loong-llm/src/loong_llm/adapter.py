"""Adapters as folders of the PEFT library: `adapter_config.json` and `adapter_model.safetensors`.

`peft` opens what `save_adapter` writes, unchanged; `load_adapter` reads what `peft` wrote.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from loong_core.checkpoint.gathering import gathered
from loong_core.checkpoint.hf_writer import TOKENIZER_FILES
from loong_core.checkpoint.pieces import StatePiece
from loong_core.checkpoint.weight_map import WeightMap
from loong_core.data.shared_build import from_first_rank
from loong_core.data.token_store import published_folder
from loong_core.errors import UserError
from loong_core.json_text import parse_json, read_json_object
from loong_core.nn.lora import ADAPTER_PREFIX, LoraSettings, adapter_layers, apply_lora, linear_layers
from loong_core.nn.lora_experts import expert_layers
from loong_core.parallel.context import ParallelContext
from loong_llm.adapter_experts import StoredExperts, expert_parameters, joined

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"

_MUST_BE_UNSET = {
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "modules_to_save": (None, []),
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "lora_bias": (False, None),
    "use_qalora": (False, None),
    "trainable_token_indices": (None, []),
}
"""Keys of PEFT's config that change what is computed, and the values that we serve."""


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter."""
    return (folder / CONFIG_FILE).is_file()


def base_model_of(folder: Path) -> Path:
    """The model folder that an adapter says it belongs to; one that is relative may lie beside the adapter's.

    Raises:
        UserError: it names none, or there is none at that place.
    """
    path = folder / CONFIG_FILE
    try:
        named = parse_json(path.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{folder} holds no readable {CONFIG_FILE}: {error}") from error
    places = [Path(named), folder / named] if isinstance(named, str) and named else []
    for place in places:
        if place.is_dir():
            return place
    raise UserError(
        f"{path} names the base model {named!r}, and no such folder is here; name the model, and the adapter apart "
        "(--adapter)"
    )


def adapter_pieces(stages: Iterable[nn.Module], weight_map: WeightMap, context: ParallelContext) -> list[StatePiece]:
    """This rank's share of the adapters, for `save_adapter`; tensors are borrowed from the modules."""
    return [
        StatePiece("weight", piece, part)
        for stage in stages
        for parameter, placement in weight_map.placements(stage, context)
        if placement.pieces[0].name.startswith(ADAPTER_PREFIX) and placement.writes
        for piece, part in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True)
    ]


def save_adapter(
    folder: Path,
    pieces: Iterable[StatePiece],
    settings: LoraSettings,
    context: ParallelContext,
    *,
    weight_map: WeightMap,
    num_layers: int,
    base_model: str | None = None,
    companions: Path | None = None,
    replace: bool = False,
) -> None:
    """Write an adapter that `peft` opens. Collective over the context's ranks; all see the same folder.

    Args:
        folder: where it is to appear, complete.
        pieces: this rank's weights; those that are no adapter's are passed over, copies are fine.
        settings: the adapters' settings.
        context: whose ranks take part.
        weight_map: the base model's.
        num_layers: its layers.
        base_model: name or folder of the base model, for whoever opens the adapter.
        companions: a folder whose tokenizer is copied, if any.
        replace: whether a folder that is there gives way.

    Raises:
        UserError: on every rank, if the folder is taken or cannot be written.
    """
    tensors = gathered((each for each in pieces if each.piece.name.startswith(ADAPTER_PREFIX)), context)
    config = _config(settings, set(tensors), weight_map, num_layers, base_model)
    from_first_rank(lambda: _write(folder, joined(tensors), config, companions, replace))


def read_settings(folder: Path) -> LoraSettings:
    """The settings of a folder's adapter; targets are the very layers that it adapts.

    Raises:
        UserError: no adapter is there, it is of another kind, or uses what is not served; names the key.
    """
    path = folder / CONFIG_FILE
    config = read_json_object(path)
    if config.get("peft_type") != "LORA":
        raise UserError(f"{path}: peft_type is {config.get('peft_type')}, only LORA is served")
    for key, allowed in _MUST_BE_UNSET.items():
        if config.get(key, allowed[0]) not in allowed:
            raise UserError(
                f"{path}: {key} is {config[key]!r}, which is not served; merge the adapter with peft instead"
            )
    return LoraSettings(
        rank=int(config["r"]),
        alpha=float(config["lora_alpha"]),
        dropout=0.0 if config.get("use_dora") else float(config.get("lora_dropout") or 0.0),
        targets=tuple(sorted(_adapted(_stored(folder, config)[0]))),
        rslora=bool(config.get("use_rslora")),
        dora=bool(config.get("use_dora")),
    )


@torch.no_grad()
def load_adapter(
    folder: Path, stages: list[nn.Module], weight_map: WeightMap, num_layers: int, context: ParallelContext
) -> tuple[LoraSettings, WeightMap]:
    """Put a folder's adapter on a loaded model that has none.

    Returns:
        Its settings, and the weight map that knows it.

    Raises:
        UserError: `read_settings`'s and `apply_lora`'s, and tensors that are missing, too many or wrong-shaped.
    """
    settings = read_settings(folder)
    extended = apply_lora(stages, weight_map, num_layers, context, settings)
    shapes, experts = _stored(folder, json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")))
    known = {name: shape for name, shape in extended.tensors(num_layers).items() if name.startswith(ADAPTER_PREFIX)}
    for name, shape in shapes.items():
        if name not in known:
            raise UserError(f"{folder / WEIGHTS_FILE}: {name} adapts nothing that this model has")
        if shape != known[name]:
            raise UserError(
                f"{folder / WEIGHTS_FILE}: {name} is {list(shape)}, this model needs {list(known[name])}; it was made "
                "for another model"
            )
    from safetensors import safe_open

    with safe_open(folder / WEIGHTS_FILE, framework="pt") as stream:
        for stage in stages:
            for parameter, placement in extended.placements(stage, context):
                if not placement.pieces[0].name.startswith(ADAPTER_PREFIX):
                    continue
                missing = [piece.name for piece in placement.pieces if piece.name not in shapes]
                if missing:
                    raise UserError(f"{folder / WEIGHTS_FILE}: {missing[0]} is missing; copy the whole folder")
                values = [
                    experts.of_expert(piece.name, stream.get_tensor(experts.stored[piece.name][0]))[piece.slices]
                    if piece.name in experts.stored
                    else stream.get_slice(piece.name)[piece.slices]
                    for piece in placement.pieces
                ]
                parameter.copy_(placement.to_local([value.to(parameter.dtype) for value in values]))
    return settings, extended


def _stored(folder: Path, config: dict[str, Any]) -> tuple[dict[str, tuple[int, ...]], StoredExperts]:
    """Shapes of a folder's adapter under our names, and its experts."""
    shapes = _tensors(folder)
    experts = StoredExperts(shapes, int(config["r"]), config.get("target_parameters") or [])
    return {name: shape for name, shape in shapes.items() if not experts.is_one(name)} | experts.shapes, experts


def _adapted(names: Iterable[str]) -> set[str]:
    """The layers, and parameters of experts, that tensors of our names adapt."""
    names = list(names)
    experts = expert_parameters(names)
    return {layer for layer in adapter_layers(names) if ".experts." not in layer} | experts


def _tensors(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a folder's adapter."""
    from safetensors import SafetensorError, safe_open

    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise UserError(f"{path} does not exist; an adapter is a folder with {CONFIG_FILE} and {WEIGHTS_FILE}")
    try:
        with safe_open(path, framework="pt") as stream:
            return {name: tuple(stream.get_slice(name).get_shape()) for name in stream.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise UserError(f"{path} is damaged or cut short ({error}); copy it again") from error


def _config(
    settings: LoraSettings, names: set[str], weight_map: WeightMap, num_layers: int, base_model: str | None
) -> dict[str, Any]:
    """PEFT's config, only with keys that every version knows, and `target_parameters` where experts are adapted."""
    experts = expert_parameters(names)
    adapted = _adapted(names) - experts
    components = {name.rsplit(".", 1)[-1] for name in adapted}
    meant = {name for name in linear_layers(weight_map, num_layers) if name.rsplit(".", 1)[-1] in components}
    kinds = {name.partition(".mlp.")[2] for name in experts}
    every = {name for name in expert_layers(weight_map, num_layers) if name.partition(".mlp.")[2] in kinds}
    parameters = sorted(f"mlp.{kind}" for kind in kinds) if every == experts else sorted(experts)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": settings.rank,
        "lora_alpha": int(settings.alpha) if settings.alpha == int(settings.alpha) else settings.alpha,
        "lora_dropout": settings.dropout,
        "target_modules": sorted(components if meant == adapted else adapted),
        "use_rslora": settings.rslora,
        "use_dora": settings.dora,
        **({"target_parameters": parameters} if experts else {}),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }


def _write(
    folder: Path, tensors: dict[str, Tensor], config: dict[str, Any], companions: Path | None, replace: bool
) -> None:
    from safetensors.torch import save_file

    if folder.exists() and not replace:
        raise UserError(f"{folder} is there already; choose another folder or delete it")
    try:
        with published_folder(folder) as temporary:
            save_file({name: tensors[name].contiguous() for name in sorted(tensors)}, temporary / WEIGHTS_FILE)
            (temporary / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            for file in [file for kind in TOKENIZER_FILES for file in (companions.glob(kind) if companions else ())]:
                shutil.copyfile(file, temporary / file.name)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error}") from error
