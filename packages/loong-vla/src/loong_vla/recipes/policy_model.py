"""The policy of a run: found by its folder, fitted to the data, built with weights, and written at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from loong_core.checkpoint.weight_map import WeightMap
from loong_core.engine.base import Engine
from loong_core.engine.choice import build_engine, weights_dtype
from loong_core.nn.freezing import freeze
from loong_core.parallel.context import ParallelContext
from loong_core.train.run import Run
from loong_llm.tokenizer import load_tokenizer
from loong_vla.data.prompts import check_vocabulary
from loong_vla.families.pi.config import PiConfig, read_pi_config
from loong_vla.families.pi.model import PiPolicy
from loong_vla.families.pi.weights import initialise_pi, pi_weight_map
from loong_vla.lerobot_folder.policy_folder import PolicyFolder, open_policy
from loong_vla.recipes.training_config import PolicyTrainingConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class PolicySource:
    """A policy before it is built.

    Attributes:
        folder: where it comes from, overrides applied.
        tokenizer: its tokenizer.
    """

    folder: PolicyFolder
    tokenizer: PreTrainedTokenizerBase

    @property
    def config(self) -> PiConfig:
        """What it is."""
        return self.folder.config

    @property
    def weight_map(self) -> WeightMap:
        """Its parameters by lerobot's names."""
        return pi_weight_map(self.config)


def open_policy_source(config: PolicyTrainingConfig) -> PolicySource:
    """Find the run's policy and tokenizer.

    Raises:
        UserError: the folder is none, or its tokenizer does not fit.
    """
    folder = open_policy(config.model.source)
    if config.model.overrides:
        folder = replace(folder, config=_overridden(folder, config.model.overrides))
    tokenizer = load_tokenizer(config.tokenizer, folder.tokenizer)
    check_vocabulary(tokenizer, folder.config.sizes.vocab_size)
    return PolicySource(folder, tokenizer)


def build_policy(
    source: PolicySource, context: ParallelContext, *, initialise: str = "auto", seed: int = 0, dtype: torch.dtype
) -> PiPolicy:
    """The policy with weights, on the context's device.

    Raises:
        UserError: weights are wanted and there are none, or they are faulty.
    """
    with torch.device("meta"):
        policy = PiPolicy(source.config)
    policy = policy.to(dtype).to_empty(device=context.device)
    if initialise == "random" or (initialise == "auto" and source.folder.folder is None):
        initialise_pi(policy, source.config, context, seed)
    else:
        source.folder.load(policy, context)
    return policy


def trained_policy(run: Run, config: PolicyTrainingConfig, source: PolicySource) -> Engine:
    """The policy under the run's engine. Collective."""
    dtype = weights_dtype(config.engine, run.engine_settings)
    policy = build_policy(source, run.context, initialise=config.model.initialise, seed=config.seed, dtype=dtype)
    if config.train.freeze or config.train.train_only:
        depth = source.config.sizes.language.depth
        run.say(
            str(
                freeze(
                    [policy],
                    source.weight_map,
                    depth,
                    run.context,
                    frozen=config.train.freeze,
                    trained=config.train.train_only,
                )
            )
        )
    return build_engine(config.engine, [policy], source.weight_map, run.context, run.device, run.engine_settings)


def _overridden(folder: PolicyFolder, overrides: Mapping[str, Any]) -> PiConfig:
    described = folder.config.to_json() | dict(overrides)
    config = read_pi_config(Path(folder.path), described)
    return replace(config, sizes=folder.config.sizes)
