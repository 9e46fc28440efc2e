"""Everything that can be known to be wrong with a run before it starts, without touching an accelerator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from loong_core.config import RunFolder
from loong_core.config.checks import batch_faults, run_faults
from loong_core.config.files import unwritable, user_path
from loong_core.config.loading import Loaded
from loong_core.device import Device, discover, select
from loong_core.engine.choice import engine_faults
from loong_core.errors import ConfigError, Fault, UserError
from loong_core.parallel.layout import Layout
from loong_core.plan.devices import GIB
from loong_core.wording import counted
from loong_kernels import registry
from loong_llm.model import ModelSource, open_model
from loong_llm.model_config import layout_faults
from loong_llm.planning import cluster_of, memory_faults, planned_peak
from loong_llm.recipes.training_config import TrainingConfig
from loong_llm.stage_checks import (
    data_faults,
    four_bit_faults,
    kept_part_faults,
    precision_faults,
    router_record_faults,
    stage_faults,
    template_faults,
    trained_part_faults,
)
from loong_llm.tokenizer import load_tokenizer, tokenizer_faults


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


def checked(loaded: Loaded[TrainingConfig], world_size: int) -> TrainingConfig:
    """The configuration, if nothing is wrong with it.

    Raises:
        ConfigError: with every fault found.
    """
    found = check_run(loaded, world_size)
    if faults := [*found.faults, *found.here]:
        raise ConfigError(faults)
    return loaded.config


def check_run(loaded: Loaded[TrainingConfig], world_size: int) -> Findings:
    """Check a run file for `world_size` ranks; nothing is written. What a fault hides is not guessed at."""
    config = loaded.config
    found = Findings(list(loaded.faults))
    found.faults += run_faults(config, loaded.given)
    found.faults += data_faults(config)
    found.faults += stage_faults(config)
    found.faults += choice_faults(config)
    device = select_device(config, found)
    model = None
    if config.model.source:
        model = unless_faulty(found, "model", lambda: open_model(config.model.source, config.model.overrides))
    layout = Layout(**config.layout.model_dump())
    if model is not None:
        found.faults += _model_faults(config, model)
        found.faults += layout_faults(model.config, layout, world_size)
    else:
        found.faults += layout.faults(world_size)
    found.faults += engine_faults(config.engine, layout)
    found.faults += context_faults(config, layout)
    if world_size % layout.model == 0:
        found.faults += batch_faults(config, layout, world_size)
    if model is not None and not found.faults:
        found.faults += trained_part_faults(config, model) + kept_part_faults(config.recompute, config.offload, model)
        found.faults += precision_faults(config, model) + router_record_faults(config, model)
        found.faults += four_bit_faults(config, model, device)
    cluster = None
    if model is not None and device is not None and not found.faults:
        hardware = device.hardware()
        if hardware is None and device.torch_type == "cpu":
            found.here += host_memory_faults(config, model, device, world_size)
        elif hardware is not None and _trains_all(config):
            cluster = cluster_of(hardware.name, hardware.memory, world_size)
            found.faults += memory_faults(config, model.config, cluster)
    if config.data.cache and (fault := unwritable("data.cache", config.data.cache)) is not None:
        found.faults.append(fault)
    if config.output and not found.faults:
        found.faults += RunFolder(user_path(config.output)).faults(config)
    if model is not None and not found.faults:
        found.facts = run_facts(config, model, layout, world_size, cluster is not None)
    return found


def _trains_all(config: TrainingConfig) -> bool:
    """Whether every weight is trained, which is what memory is planned for."""
    return config.lora is None and not config.train.freeze and not config.train.train_only


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


def host_memory_faults(config: TrainingConfig, model: ModelSource, device: Device, world_size: int) -> list[Fault]:
    """Whether the host can hold what cannot be done without, however it is shared: a bound from below."""
    per_parameter = 16 if _trains_all(config) else 2  # float32 weight, gradient and two moments; or a bfloat16 weight
    parameters = model.parameter_count()
    least, there = parameters * per_parameter // world_size, device.memory().total
    if least <= there:
        return []
    what = (
        f"has {parameters:,} parameters, at least {least / GIB:,.1f} GiB for each of "
        f"{counted(world_size, 'rank')}, and this machine has {there / GIB:,.1f} GiB"
    )
    return [Fault("model", what, "choose a smaller model, or run it on more machines")]


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


def _model_faults(config: TrainingConfig, model: ModelSource) -> list[Fault]:
    found = Findings()
    if config.model.initialise == "weights" and model.weights is None:
        what = f"is weights, but {config.model.source} has a config and no weights"
        found.faults.append(Fault("model.initialise", what, "set it to random, or name a folder with weights"))
    longest = model.hf_config.get("max_position_embeddings")
    if isinstance(longest, int) and config.data.sequence_length > longest:
        what = f"is {config.data.sequence_length}, beyond the model's max_position_embeddings {longest}"
        fix = "lower it, or set model.overrides.max_position_embeddings"
        found.faults.append(Fault("data.sequence_length", what, fix))
    tokenizer = unless_faulty(found, "tokenizer", lambda: load_tokenizer(config.tokenizer, model.tokenizer_dir))
    if tokenizer is not None:
        found.faults += tokenizer_faults(tokenizer, model.config.vocab_size)
        found.faults += template_faults(config, tokenizer)
    return found.faults


def run_facts(
    config: TrainingConfig, model: ModelSource, layout: Layout, world_size: int, accelerated: bool
) -> dict[str, str]:
    """What the run would be, for people."""
    train, tokens = config.train, config.train.global_batch_size * config.data.sequence_length
    data_ranks = layout.data_for(world_size)
    parameters = model.parameter_count()
    microbatches = train.global_batch_size // (train.micro_batch_size * data_ranks)
    changed = " with overrides" if config.model.overrides else ""
    facts = {
        "stage": config.stage,
        "model": f"{model.name}{changed}, {model.family.name} family, {parameters:,} parameters",
        "ranks": f"{world_size}, of which {data_ranks} read different data",
        "a step": f"{train.global_batch_size} sequences x {config.data.sequence_length} = {tokens:,} tokens, in "
        f"{microbatches} microbatch{'' if microbatches == 1 else 'es'} a rank",
        "length": f"{counted(train.steps, 'step')}, {counted(train.steps * tokens, 'token')}"
        if train.steps
        else counted(train.epochs or 1, "epoch"),
    }
    if accelerated:
        peak = planned_peak(config, model.config, world_size) / GIB
        facts["memory"] = f"about {peak:.2f} GiB a rank on an accelerator"
    if config.lora is not None:
        written = "merged into the model" if config.lora.merge else "saved as adapters"
        base = " over matrices in 4 bits" if config.lora.base else ""
        facts["adapters"] = f"of rank {config.lora.rank} on {config.lora.targets}{base}, {written}"
    elif not _trains_all(config):
        facts["frozen"] = f"all but {config.train.train_only}" if config.train.train_only else f"{config.train.freeze}"
    if model.weights is not None and config.model.initialise != "random":
        facts["weights"] = f"from {config.model.source}"
    return facts
