"""The list of checks that every run on texts goes through, in its order; a program brings those that are its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loong_core.config import RunFolder, Section
from loong_core.config.checks import batch_faults, run_faults
from loong_core.config.files import unwritable, user_path
from loong_core.config.loading import Loaded
from loong_core.device import Device, discover, select
from loong_core.engine.choice import engine_faults
from loong_core.errors import ConfigError, Fault, UserError
from loong_core.parallel.layout import Layout
from loong_kernels import registry
from loong_llm.model import ModelSource
from loong_llm.model_config import layout_faults
from loong_llm.recipes.training_config import TrainingConfig


@dataclass
class Findings:
    """What a check found.

    Attributes:
        faults: what forbids the run.
        here: what forbids it on this machine, and may not on the one where it is to run.
        facts: about it, for people.
    """

    faults: list[Fault] = field(default_factory=list)
    here: list[Fault] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OwnChecks:
    """What a program checks beside what all do; `Any` stands for its own config and model.

    Attributes:
        sections: faults of the run file alone.
        open_model: the model of a run; None where the file names none.
        model: faults of the model and what goes with it.
        layout: faults of a layout for a number of ranks, beside those that the language model forbids; without a model
            those that can be told.
        trained: faults of what is trained and kept of the model, on a device (None: it is not here); asked where there
            were none before.
        memory: faults of memory on a device, and those that hold for this machine only; asked last.
        facts: about the run, for people.
    """

    sections: Callable[[Any], list[Fault]]
    open_model: Callable[[Any], ModelSource | None]
    model: Callable[[Any, Any], list[Fault]]
    layout: Callable[[Any, Any, Layout, int], list[Fault]]
    trained: Callable[[Any, Any, Device | None], list[Fault]]
    memory: Callable[[Any, Any, Device, int], tuple[list[Fault], list[Fault]]]
    facts: Callable[[Any, Any, Layout, int, Device | None], dict[str, str]]


def check_with(own: OwnChecks, loaded: Loaded[Any], world_size: int) -> Findings:
    """Check a run file for `world_size` ranks; nothing is written. What a fault hides is not guessed at."""
    config = loaded.config
    found = Findings(list(loaded.faults))
    found.faults += run_faults(config, loaded.given)
    found.faults += own.sections(config)
    found.faults += choice_faults(config)
    device = select_device(config, found)
    model = unless_faulty(found, "model", lambda: own.open_model(config))
    layout = Layout(**config.layout.model_dump())
    if model is not None:
        found.faults += own.model(config, model)
        found.faults += layout_faults(model.config, layout, world_size)
    else:
        found.faults += layout.faults(world_size)
    found.faults += engine_faults(config.engine, layout)
    found.faults += own.layout(config, model, layout, world_size)
    found.faults += context_faults(config, layout)
    if world_size % layout.model == 0:
        found.faults += batch_faults(config, layout, world_size)
    if model is not None and not found.faults:
        found.faults += own.trained(config, model, device)
    if model is not None and device is not None and not found.faults:
        faults, here = own.memory(config, model, device, world_size)
        found.faults += faults
        found.here += here
    if config.data.cache and (fault := unwritable("data.cache", config.data.cache)) is not None:
        found.faults.append(fault)
    if config.output and not found.faults:
        found.faults += RunFolder(user_path(config.output)).faults(config)
    if model is not None and not found.faults:
        found.facts = own.facts(config, model, layout, world_size, device)
    return found


def config_of[Config: Section](loaded: Loaded[Config], found: Findings) -> Config:
    """The configuration, if nothing was found wrong with it.

    Raises:
        ConfigError: with every fault found.
    """
    if faults := [*found.faults, *found.here]:
        raise ConfigError(faults)
    return loaded.config


def select_device(config: TrainingConfig, found: Findings) -> Device | None:
    """The run's device; where it cannot be had here, why is noted."""
    try:
        return select(config.device).device
    except UserError as error:
        if all(config.device != known.name for known in discover()):
            found.faults.append(Fault("device", str(error)))
        else:
            found.here.append(Fault("device", str(error), "run it where there is one, or set device=auto"))
    return None


def unless_faulty[Value](found: Findings, key: str, action: Callable[[], Value]) -> Value | None:
    """What an action gives; None, with its faults noted, where it raises them."""
    try:
        return action()
    except ConfigError as error:
        found.faults += error.faults
    except UserError as error:
        found.faults.append(Fault(key, str(error).removeprefix(f"{key}: ")))
    return None


def choice_faults(config: TrainingConfig) -> list[Fault]:
    """What is wrong with choices that need no model: validation, kernels."""
    faults = []
    train, data = config.train, config.data
    if not data.validation and data.validation_fraction == 0:
        faults += [
            Fault(f"train.{key}", "would be ignored: there is no validation data", "set data.validation or remove it")
            for key, value in (
                ("validate_every", train.validate_every),
                ("validation_steps", train.validation_steps),
                ("early_stop", train.early_stop),
            )
            if value is not None
        ]
        if config.checkpoint.best:
            what = "would be ignored: there is no validation data"
            faults.append(Fault("checkpoint.best", what, "set data.validation or remove it"))
    faults += _sample_faults(config)
    try:
        with registry.using(config.kernels):
            pass
    except registry.KernelChoiceError as error:
        faults += [Fault("kernels", each) for each in error.faults]
    return faults


def _sample_faults(config: TrainingConfig) -> list[Fault]:
    """Why no samples can be written while the run trains."""
    if config.samples is None:
        return []
    layout = config.layout
    divided = [key for key in ("tensor", "pipeline", "context", "expert") if getattr(layout, key) > 1]
    if not divided:
        return []
    what = f"needs the whole model on each rank, and layout.{divided[0]} is {getattr(layout, divided[0])}"
    return [Fault("samples", what, "leave the section out, and use loong-llm generate afterwards")]


def context_faults(config: TrainingConfig, layout: Layout) -> list[Fault]:
    """More context ranks than tokens."""
    tokens = config.train.micro_batch_size * config.data.sequence_length
    if tokens >= layout.context:
        return []
    what = f"is {layout.context}, more ranks than the {tokens} tokens of a microbatch that they share"
    return [Fault("layout.context", what, f"set it to {tokens} at most, or raise data.sequence_length")]
