"""GR00T N1.7 and N1.6 as a family of policies."""

from __future__ import annotations

from typing import Any

from loong_vla.families.family import PolicyFamily
from loong_vla.families.groot.batch import GrootCollator
from loong_vla.families.groot.policy import GrootPolicy, groot_policy_loss, prepared, spare_frozen_blocks
from loong_vla.families.groot.policy_config import VERSIONS, GrootConfig
from loong_vla.families.groot.prompt import groot_tokenizer_faults
from loong_vla.families.groot.reading import overridden, read_groot_config
from loong_vla.families.groot.weights import groot_weight_map, handed_on, initialise_groot, stored_names
from loong_vla.lerobot_folder.groot_processors import read_groot_statistics, write_groot_processors


def _written_config(config: GrootConfig, dtype: str) -> dict[str, Any]:
    """Lerobot refuses keys that it does not know, and its own form has none for the dtype."""
    return config.to_json()


def _flops(policy: GrootPolicy, cameras: int, prompt_tokens: int) -> float:
    trained = any(each.requires_grad for each in policy.backbone.parameters())
    return policy.config.flops_per_sample(cameras, prompt_tokens, backbone_trained=trained)


GROOT = PolicyFamily(
    name="groot",
    kinds=tuple(VERSIONS),
    read_config=read_groot_config,
    overridden=overridden,
    config_faults=GrootConfig.faults,
    build=GrootPolicy,
    initialise=initialise_groot,
    weight_map=groot_weight_map,
    stored=stored_names,
    handed_on=handed_on,
    collator=GrootCollator,
    tokenizer_faults=groot_tokenizer_faults,
    loss=groot_policy_loss,
    prepared=prepared,
    written_config=_written_config,
    write_processors=write_groot_processors,
    read_statistics=read_groot_statistics,
    flops=_flops,
    takes_adapters=True,
    finished=spare_frozen_blocks,
)
