"""The policy of a run: found by its folder, fitted to the data, built with weights, and written at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from loong_core.checkpoint.weight_map import WeightMap
from loong_core.engine.base import Engine
from loong_core.engine.choice import build_engine, weights_dtype
from loong_core.errors import ConfigError
from loong_core.nn.freezing import freeze
from loong_core.nn.recompute import keep_less
from loong_core.parallel.context import ParallelContext
from loong_core.train.run import Run
from loong_llm.tokenizer import load_tokenizer
from loong_vla.families.family import PolicyConfig, PolicyFamily
from loong_vla.lerobot_folder.policy_folder import PolicyFolder, open_policy
from loong_vla.recipes.adapters import put_adapters
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
    def family(self) -> PolicyFamily:
        """Whose it is."""
        return self.folder.family

    @property
    def config(self) -> PolicyConfig:
        """What it is."""
        return self.folder.config

    @property
    def weight_map(self) -> WeightMap:
        """Its parameters by the names that are written."""
        return self.family.weight_map(self.config)

    def for_embodiments(self, names: Sequence[str]) -> PolicySource:
        """The same, holding what these embodiments need."""
        return replace(self, folder=replace(self.folder, config=self.config.for_embodiments(names)))


def open_policy_source(config: PolicyTrainingConfig) -> PolicySource:
    """Find the run's policy and tokenizer.

    Raises:
        UserError: the folder is none, describes what is not served, or its tokenizer does not fit.
    """
    folder = open_policy(config.model.source)
    if config.model.overrides:
        changed = folder.family.overridden(folder.config, folder.path, config.model.overrides)
        folder = replace(folder, config=changed)
    return policy_source(folder, config.tokenizer)


def policy_source(folder: PolicyFolder, tokenizer: str | None = None) -> PolicySource:
    """A folder's policy with its tokenizer, or another.

    Raises:
        UserError: they do not belong together, or the policy lacks what it needs to be used.
    """
    faults = folder.family.config_faults(folder.config, str(folder.path / "config.json"))
    if faults:
        raise ConfigError(faults)
    source = PolicySource(folder, load_tokenizer(tokenizer, folder.tokenizer))
    if faults := folder.family.tokenizer_faults(source.tokenizer, folder.config):
        raise ConfigError(faults)
    return source


def bare_policy(source: PolicySource) -> nn.Module:
    """The policy without memory."""
    with torch.device("meta"):
        return source.family.build(source.config)


def build_policy(
    source: PolicySource, context: ParallelContext, *, initialise: str = "auto", seed: int = 0, dtype: torch.dtype
) -> nn.Module:
    """The policy with weights, on the context's device.

    Raises:
        UserError: weights are wanted and there are none, or they are faulty.
    """
    policy = bare_policy(source).to(dtype).to_empty(device=context.device)
    if initialise == "random" or (initialise == "auto" and source.folder.folder is None):
        source.family.initialise(policy, source.config, context, seed)
    else:
        source.folder.load(policy, context)
    return policy


def choose_trained(
    config: PolicyTrainingConfig, source: PolicySource, policy: nn.Module, context: ParallelContext
) -> tuple[WeightMap, str]:
    """Leave in training what the run file says.

    Returns:
        the weight map that the engine needs, and a line for people, empty for everything.

    Raises:
        UserError: a pattern matches nothing, or what cannot be chosen.
    """
    weight_map, layers, train = source.weight_map, source.config.num_layers, config.train
    if config.lora is not None:
        weight_map, told = put_adapters(policy, weight_map, layers, context, config.lora, config.seed)
        return weight_map, str(told)
    if not train.freeze and not train.train_only:
        return weight_map, ""
    told = freeze([policy], weight_map, layers, context, frozen=train.freeze, trained=train.train_only)
    return weight_map, str(told)


def trained_policy(run: Run, config: PolicyTrainingConfig, source: PolicySource) -> Engine:
    """The policy under the run's engine. Collective."""
    dtype = weights_dtype(config.engine, run.engine_settings)
    policy = build_policy(source, run.context, initialise=config.model.initialise, seed=config.seed, dtype=dtype)
    weight_map, told = choose_trained(config, source, policy, run.context)
    source.family.finished(policy)
    kept = keep_less([policy], run.context, run.device, recompute=config.recompute.parts, offload=config.offload.parts)
    for line in filter(None, (told, kept)):
        run.say(line)
    return build_engine(config.engine, [policy], weight_map, run.context, run.device, run.engine_settings)
