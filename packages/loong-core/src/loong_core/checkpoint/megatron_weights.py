"""Weights of a Megatron `torch_dist` checkpoint as the parameters of a decoder of ours.

megatron-core's GPTModel stores a layer's tensor in a stack of all layers, `decoder.layers.mlp.linear_fc2.weight` of
`[layers, ...]`, or where layers differ one by one, `decoder.layers.3.…`; norms are called as TransformerEngine's fused
layers call them, or as its own do. Rows of `linear_qkv` go by query groups: the queries of a group, its key, its value.
Vocabularies are padded. Nothing of it depends on the layout under which it was saved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from loong_core.checkpoint.dcp_folder import DcpFolder
from loong_core.checkpoint.pieces import Piece
from loong_core.checkpoint.weight_map import WeightMap
from loong_core.errors import Fault, UserError
from loong_core.nn.decoder_config import AttentionConfig, DecoderConfig
from loong_core.parallel.context import ParallelContext

_LATEST = "latest_checkpointed_iteration.txt"
_LAYERS = "decoder.layers."
_OUTSIDE = {
    "embedding.weight": ("embedding.word_embeddings.weight",),
    "norm.weight": ("decoder.final_layernorm.weight", "decoder.final_norm.weight"),
    "head.weight": ("output_layer.weight",),
}
_OF_LAYER = {
    "attention_norm.weight": ("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"),
    "attention.qkv.weight": ("self_attention.linear_qkv.weight",),
    "attention.qkv.bias": ("self_attention.linear_qkv.bias",),
    "attention.query_norm.weight": ("self_attention.q_layernorm.weight",),
    "attention.key_norm.weight": ("self_attention.k_layernorm.weight",),
    "attention.output.weight": ("self_attention.linear_proj.weight",),
    "attention.output.bias": ("self_attention.linear_proj.bias",),
    "feed_forward_norm.weight": ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"),
    "feed_forward.gate_up.weight": ("mlp.linear_fc1.weight",),
    "feed_forward.gate_up.bias": ("mlp.linear_fc1.bias",),
    "feed_forward.down.weight": ("mlp.linear_fc2.weight",),
    "feed_forward.down.bias": ("mlp.linear_fc2.bias",),
    "feed_forward.router.weight": ("mlp.router.weight",),
    "feed_forward.experts.gate_up": ("mlp.experts.experts.linear_fc1.weight",),
    "feed_forward.experts.down": ("mlp.experts.experts.linear_fc2.weight",),
}
"""What megatron calls our parameters, below the layer; the first name that is there counts."""

_PADDED = ("embedding.weight", "head.weight")
_MODEL = re.compile(r"(embedding|decoder|output_layer)\.")


@dataclass(frozen=True)
class _Stored:
    """Where one of our parameters is: a tensor, or with `layer` one index of its first dimension."""

    name: str
    layer: int | None


class MegatronWeights:
    """The weights of a decoder in a Megatron checkpoint, by their Hugging Face names.

    Args:
        path: the folder of an iteration (`iter_0001000`).
        weight_map: of the decoder's family.
        config: the decoder.

    Attributes:
        dtypes: what each Hugging Face tensor is stored in, in the order of the weight map.
        left_out: tensors of the checkpoint that are no weights: the optimizer's.

    Raises:
        UserError: the folder cannot be read, or its model is not the one of the config; every fault is told.
    """

    def __init__(self, path: Path, weight_map: WeightMap, config: DecoderConfig) -> None:
        self.folder = DcpFolder(path)
        self._map, self._config, self._alone = weight_map, config, ParallelContext.single()
        self._prefix = _prefix(self.folder)
        self._source: dict[str, str] = {}  # the parameter of ours in which a Hugging Face tensor lies
        self.dtypes: dict[str, torch.dtype] = {}
        self._kept: tuple[str, dict[str, Tensor]] = ("", {})
        faults: list[Fault] = []
        used = set()
        for ours, layer in self._parameters():
            stored = self._find(ours, layer)
            names = dict.fromkeys(piece.name for piece in self._map.placement(_named(ours, layer), self._alone).pieces)
            if stored is None:
                if not names.keys() <= self._source.keys():  # the head of a tied table is the embedding
                    faults.append(Fault(str(path), f"{_theirs(ours, layer)[0]} is missing", _OTHER_MODEL))
                continue
            used.add(stored.name)
            faults += self._shape_faults(ours, layer, stored)
            for name in names:
                self._source.setdefault(name, _named(ours, layer))
                self.dtypes.setdefault(name, self.folder.tensors[stored.name].dtype)
        rest = sorted(self.folder.tensors.keys() - used)
        theirs = [name for name in rest if _MODEL.match(name.removeprefix(self._prefix))]
        faults += [
            Fault(str(path), f"{name} {list(self.folder.tensors[name].shape)} has no place in the model", _OTHER_MODEL)
            for name in theirs
        ]
        self.left_out = tuple(name for name in rest if name not in theirs)
        if faults:
            raise UserError(f"{len(faults)} faults in {path}:\n" + "\n".join(f"  - {each}" for each in faults[:40]))

    def read(self, name: str) -> Tensor:
        """The values of a Hugging Face tensor, in its stored dtype, on the host.

        All that lies in the same parameter of ours is kept until another's is asked for.
        """
        ours = self._source[name]
        if self._kept[0] != ours:
            self._kept = (ours, self._tensors_of(ours))
        return self._kept[1][name]

    def _tensors_of(self, ours: str) -> dict[str, Tensor]:
        """The Hugging Face tensors that lie in a parameter of ours."""
        rule, layer = self._map.rule_of(ours)
        placement = self._map.placement(ours, self._alone)
        values = self._ours(rule.ours, layer)
        found: dict[str, Tensor] = {}
        for piece, part in zip(placement.pieces, placement.from_local(values), strict=True):
            whole = found.setdefault(piece.name, torch.empty(piece.global_shape, dtype=values.dtype))
            whole[piece.slices] = part
        return found

    def _ours(self, ours: str, layer: int) -> Tensor:
        """A parameter of ours, as one rank holds it."""
        stored = self._find(ours, layer)
        assert stored is not None
        shape = self.folder.tensors[stored.name].shape
        offsets, sizes = [0] * len(shape), list(shape)
        if stored.layer is not None:
            offsets[0], sizes[0] = stored.layer, 1
        dim = 0 if stored.layer is None else 1
        if ours in _PADDED:
            sizes[dim] = self._config.vocab_size
        values = self.folder.read(Piece(stored.name, shape, tuple(offsets), tuple(sizes)))
        values = values if stored.layer is None else values[0]
        if ".qkv." in ours:
            attention = self._config.blocks[layer].mixer
            assert isinstance(attention, AttentionConfig)
            values = _by_kind(values, attention)
        return values

    def _parameters(self) -> Iterator[tuple[str, int]]:
        """Name of each parameter of ours that megatron has too, with `{layer}`, and the layer's number."""
        known = {*_OUTSIDE, *(f"layers.{{layer}}.{name}" for name in _OF_LAYER)}
        for rule in self._map.rules:
            if rule.ours in known:
                layers = range(self._config.num_layers) if rule.layers is None else rule.layers
                yield from ((rule.ours, layer) for layer in (layers if "{layer}" in rule.ours else (0,)))

    def _find(self, ours: str, layer: int) -> _Stored | None:
        for name in _theirs(ours, layer):
            if self._prefix + name in self.folder.tensors:
                return _Stored(self._prefix + name, None)
        for name in _theirs(ours, None):
            if "{layer}" in ours and self._prefix + name in self.folder.tensors:
                return _Stored(self._prefix + name, layer)
        return None

    def _shape_faults(self, ours: str, layer: int, stored: _Stored) -> list[Fault]:
        wanted = self._map.placement(_named(ours, layer), self._alone).shape
        found = self.folder.tensors[stored.name].shape
        own = found if stored.layer is None else found[1:]
        layers = self._config.num_layers if stored.layer is None else found[0]
        fits = own == wanted or (ours in _PADDED and own[0] > wanted[0] and own[1:] == wanted[1:])
        if fits and layers == self._config.num_layers:
            return []
        if stored.layer is not None and layer:
            return []  # a stack is told once
        by_config = wanted if stored.layer is None else (self._config.num_layers, *wanted)
        what = f"{stored.name} is {list(found)}, by config.json it is {list(by_config)}"
        return [Fault(str(self.folder.path), what, _OTHER_MODEL)]


def find_iteration(path: Path, step: int | None) -> Path | None:
    """The folder of an iteration, given that or the folder in which Megatron saved several; None if it is neither.

    Raises:
        UserError: there is no such iteration.
    """
    if DcpFolder.is_one(path):
        return path
    latest = path / _LATEST
    folders = {int(each.name[5:]): each for each in path.glob("iter_*") if each.name[5:].isdecimal()}
    if not latest.is_file() and not any(DcpFolder.is_one(each) for each in folders.values()):
        return None
    text = latest.read_text(encoding="utf-8").strip() if latest.is_file() else ""
    wanted = step if step is not None else int(text) if text.isdecimal() else max(folders, default=0)
    if wanted not in folders:
        have = ", ".join(map(str, sorted(folders))) or "none"
        raise UserError(f"{path} has no iteration {wanted}; it has {have}")
    if not DcpFolder.is_one(folders[wanted]):
        raise UserError(
            f"{folders[wanted]} is no checkpoint of format torch_dist; convert it with Megatron first "
            "(--ckpt-convert-format torch_dist)"
        )
    return folders[wanted]


def _by_kind(values: Tensor, attention: AttentionConfig) -> Tensor:
    """Rows by query groups (queries, key, value of each) as all queries, all keys, all values."""
    groups, size = attention.num_kv_heads, attention.head_dim
    queries = attention.num_heads // groups
    rows = values.view(groups, queries + 2, size, *values.shape[1:])
    parts = (rows[:, :queries], rows[:, queries : queries + 1], rows[:, queries + 1 :])
    return torch.cat([part.reshape(-1, *values.shape[1:]) for part in parts])


def _theirs(ours: str, layer: int | None) -> tuple[str, ...]:
    """Megatron's names of a parameter of ours; with None for the layer those of all layers in a stack."""
    if ours in _OUTSIDE:
        return _OUTSIDE[ours]
    place = _LAYERS if layer is None else f"{_LAYERS}{layer}."
    return tuple(place + name for name in _OF_LAYER[ours.removeprefix("layers.{layer}.")])


def _prefix(folder: DcpFolder) -> str:
    """What comes before the names of the model's tensors: nothing, or what some programs put there."""
    ending = "embedding.word_embeddings.weight"
    found = [name for name in folder.tensors if name.endswith(ending) and not name.startswith("optimizer.")]
    if not found:
        raise UserError(f"{folder.path} has no {ending}: it is no checkpoint of a Megatron language model")
    return min(found, key=len).removesuffix(ending)


def _named(ours: str, layer: int) -> str:
    return ours.format(layer=layer)


_OTHER_MODEL = "is the config given of this model?"
