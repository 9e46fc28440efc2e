"""Pi0 and Pi0.5 as a family of policies."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from loong_core.checkpoint.pieces import Piece
from loong_core.errors import Fault
from loong_vla.data.prompts import vocabulary_faults
from loong_vla.families.family import PolicyFamily, StoredNames
from loong_vla.families.pi.batch import PiBatch, PiCollator
from loong_vla.families.pi.config import PiConfig, overridden, read_pi_config
from loong_vla.families.pi.loss import pi_loss, prepared
from loong_vla.families.pi.model import PiPolicy
from loong_vla.families.pi.weights import HEAD, PREFIX, TABLE, KeyLayout, idle_tensors, initialise_pi, pi_weight_map
from loong_vla.lerobot_folder.processors import read_statistics_of, write_processors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def _stored(config: PiConfig, names: Collection[str]) -> StoredNames:
    """Lerobot's names or openpi's; the text embedding may be called by either of two."""
    lerobot = any(name.startswith(PREFIX["lerobot"]) for name in names)
    keys: KeyLayout = "lerobot" if lerobot else "openpi"
    prefix = PREFIX[keys]
    table = TABLE if prefix + TABLE in names else HEAD
    harmless = (*idle_tensors(config, keys), prefix + HEAD)
    own = PREFIX["lerobot"]
    return StoredNames(
        pi_weight_map(config, keys, table), harmless, lambda name: name if lerobot else name.removeprefix(own)
    )


def _handed_on(config: PiConfig) -> list[Piece]:
    return [Piece.whole(name, shape) for name, shape in idle_tensors(config).items()]


def _prepared(batch: PiBatch, config: PiConfig) -> PiBatch:
    return prepared(batch, config.image_size)


def _written_config(config: PiConfig, dtype: str) -> dict[str, Any]:
    return config.to_json() | {"dtype": dtype}


def _tokenizer_faults(tokenizer: PreTrainedTokenizerBase, config: PiConfig) -> list[Fault]:
    return vocabulary_faults(tokenizer, config.vocab_size)


PI = PolicyFamily(
    name="pi",
    kinds=("pi0", "pi05"),
    read_config=read_pi_config,
    overridden=overridden,
    config_faults=lambda config, where: [],
    build=PiPolicy,
    initialise=initialise_pi,
    weight_map=pi_weight_map,
    stored=_stored,
    handed_on=_handed_on,
    collator=PiCollator,
    tokenizer_faults=_tokenizer_faults,
    loss=pi_loss,
    prepared=_prepared,
    written_config=_written_config,
    write_processors=write_processors,
    read_statistics=read_statistics_of,
    flops=lambda policy, cameras, prompt: policy.config.flops_per_sample(cameras, prompt),
)
