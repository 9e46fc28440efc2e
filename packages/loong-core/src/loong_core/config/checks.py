"""Faults that the sections every run has can show by themselves: contradictions, and values the run would ignore."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec

from loong_core.config.sections import PartsSection, RunConfig, TrainSection
from loong_core.errors import Fault
from loong_core.parallel.layout import Layout

LARGEST_NARROW_BETA = 0.996
"""A bfloat16 has 8 significant bits: what is multiplied by more than 1 - 1/256 is rounded back to what it was."""


def run_faults(config: RunConfig, given: Collection[str]) -> list[Fault]:
    """What is contradictory in `config`, or given (`given`: dotted keys) without any effect."""
    return [
        *_length_faults(config),
        *_schedule_faults(config),
        *_tracker_faults(config),
        *_parts_faults(config),
        *_inert(config, given),
    ]


def batch_faults(config: RunConfig, layout: Layout, world_size: int) -> list[Fault]:
    """Whether the global batch divides into microbatches, as many as the layout needs, over its data ranks."""
    train = config.train
    data_ranks = layout.data_for(world_size)
    together = train.micro_batch_size * data_ranks
    if train.global_batch_size % together:
        nearest = max(1, round(train.global_batch_size / together)) * together
        what = (
            f"is {train.global_batch_size}, which micro_batch_size {train.micro_batch_size} x {data_ranks} data ranks "
            f"= {together} does not divide"
        )
        return [Fault("train.global_batch_size", what, f"the nearest that it divides is {nearest}")]
    microbatches = train.global_batch_size // together
    if layout.virtual_pipeline > 1 and microbatches % layout.pipeline:
        what = (
            f"is {train.global_batch_size}, {microbatches} microbatches a rank, which layout.pipeline "
            f"{layout.pipeline} does not divide as layout.virtual_pipeline {layout.virtual_pipeline} needs"
        )
        nearest = max(1, round(microbatches / layout.pipeline)) * layout.pipeline * together
        return [Fault("train.global_batch_size", what, f"the nearest that would do is {nearest}")]
    return []


def _length_faults(config: RunConfig) -> list[Fault]:
    train = config.train
    if train.steps is None and train.epochs is None:
        return [Fault("train.steps", "is missing, and so is train.epochs", "give one of them")]
    if train.steps is not None and train.epochs is not None:
        what = f"is {train.epochs} while train.steps is {train.steps}"
        return [Fault("train.epochs", what, "set one of them to null")]
    return step_faults(train, train.steps) if train.steps is not None else []


def step_faults(train: TrainSection, steps: int) -> list[Fault]:
    """What does not fit into a run of `steps`; where epochs are given they are known once the data has been read."""
    faults = []
    for key, value in (("stop_at", train.stop_at), ("warmup_steps", train.warmup_steps)):
        if value is not None and value > steps:
            faults.append(Fault(f"train.{key}", f"is {value}, beyond the run's {steps} steps", "lower it"))
    if train.profile.steps is not None and train.profile.steps[1] > steps:
        what = f"ends at {train.profile.steps[1]}, beyond the run's {steps} steps"
        faults.append(Fault("train.profile.steps", what, "choose earlier steps"))
    if train.decay_steps is not None and train.schedule != "constant" and train.warmup_steps <= steps:
        room = steps - train.warmup_steps
        if train.decay_steps > room:
            what = f"is {train.decay_steps}, but {room} of {steps} steps are left after warm-up"
            faults.append(Fault("train.decay_steps", what, "lower it"))
    return faults


def _moments_faults(train: TrainSection) -> list[Fault]:
    """Decay rates whose means would stand still where they are rounded to bfloat16 after every step."""
    return [
        Fault(
            f"train.{key}",
            f"is {value:g}, and train.moments=bf16 rounds away a fall by {1 - value:.2g}: the mean would never fall",
            f"set it to {LARGEST_NARROW_BETA} or less, or train.moments=fp32",
        )
        for key, value in (("beta1", train.beta1), ("beta2", train.beta2))
        if train.moments == "bf16" and value > LARGEST_NARROW_BETA
    ]


def _schedule_faults(config: RunConfig) -> list[Fault]:
    train = config.train
    faults = _moments_faults(train)
    if train.schedule != "constant" and train.min_lr > train.lr:
        faults.append(Fault("train.min_lr", f"is {train.min_lr:g}, above train.lr {train.lr:g}", "lower it"))
    if train.profile.steps is not None and train.profile.steps[0] > train.profile.steps[1]:
        first, last = train.profile.steps
        faults.append(Fault("train.profile.steps", f"begins at {first} and ends at {last}", "write [first, last]"))
    return faults


def parts_faults(key: str, section: PartsSection) -> list[Fault]:
    """What is said of parts of the model besides that it is all of them."""
    said = [name for name in ("blocks", "modules") if getattr(section, name)]
    if section.mode != "full" or not said:
        return []
    what = f"is full, which is every block, while {' and '.join(f'{key}.{name}' for name in said)} chooses some"
    return [Fault(f"{key}.mode", what, f"set {key}.mode=none, or remove the others")]


def _parts_faults(config: RunConfig) -> list[Fault]:
    faults = parts_faults("recompute", config.recompute) + parts_faults("offload", config.offload)
    if not config.offload.parts.nothing and config.fsdp.compile:
        what = "moves what compiled layers keep, which torch.compile does not let be moved"
        faults.append(Fault("offload", what, "set fsdp.compile=false, or recompute instead"))
    return faults


def _tracker_faults(config: RunConfig) -> list[Fault]:
    asked = {"tensorboard": config.logging.tensorboard, "wandb": config.logging.wandb is not None}
    return [
        Fault(f"logging.{name}", f"{name} is not installed", f"pip install 'loong-core[{name}]', or leave the key out")
        for name, wanted in asked.items()
        if wanted and find_spec(name) is None
    ]


def _inert(config: RunConfig, given: Collection[str]) -> list[Fault]:
    """Values that the run would ignore. A value equal to the default, as in a resolved run.yaml, asks for nothing."""
    train, layout, fsdp = config.train, config.layout, config.fsdp
    megatron = config.engine == "megatron"
    inert: list[tuple[bool, str, str]] = [
        (megatron and train.ema is not None, "train.ema", "engine megatron keeps no average of the weights"),
        (megatron and fsdp.sharding != "everything", "fsdp.sharding", "the engine is megatron"),
        (megatron and fsdp.compile, "fsdp.compile", "the engine is megatron"),
        (not megatron and config.megatron.overlap, "megatron.overlap", "engine fsdp always overlaps"),
        (train.schedule == "constant" and train.min_lr > 0, "train.min_lr", "schedule constant never falls"),
        (train.schedule == "constant" and train.decay_steps is not None, "train.decay_steps", "schedule constant"),
        (
            train.early_stop is not None and train.validate_every is None,
            "train.early_stop",
            "without train.validate_every there is one validation, at the end",
        ),
        (
            config.checkpoint.best and train.validate_every is None,
            "checkpoint.best",
            "without train.validate_every there is one validation, at the end",
        ),
        (train.profile.memory and train.profile.steps is None, "train.profile.memory", "no train.profile.steps"),
        (
            layout.virtual_pipeline > 1 and layout.pipeline == 1,
            "layout.virtual_pipeline",
            "layout.pipeline is 1, and virtual stages divide a pipeline",
        ),
    ]
    return [
        Fault(key, f"would be ignored: {why}", "remove it")
        for ignored, key, why in inert
        if ignored and any(each == key or each.startswith(f"{key}.") for each in given)
    ]
