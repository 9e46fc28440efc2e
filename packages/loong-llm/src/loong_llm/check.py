"""Everything that can be known to be wrong with a run before it starts, without touching an accelerator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from loong_core.config import RunFolder
from loong_core.config.checks import batch_faults, run_faults
from loong_core.config.loading import Loaded
from loong_core.device import discover, select
from loong_core.engine.choice import engine_faults
from loong_core.errors import ConfigError, Fault, UserError
from loong_core.parallel.layout import Layout
from loong_core.plan.devices import GIB, Cluster
from loong_core.wording import counted
from loong_kernels import registry
from loong_llm.model import ModelSource, open_model
from loong_llm.model_config import layout_faults
from loong_llm.planning import cluster_of, memory_faults, planned_peak
from loong_llm.recipes.training_config import TrainingConfig
from loong_llm.stage_checks import data_faults, stage_faults, template_faults, trained_part_faults
from loong_llm.tokenizer import load_tokenizer, tokenizer_faults


@dataclass
class Findings:
    """What a check found: `faults` that forbid the run, and `facts` about it for people."""

    faults: list[Fault] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


def checked(loaded: Loaded[TrainingConfig], world_size: int) -> TrainingConfig:
    """The configuration, if nothing is wrong with it.

    Raises:
        ConfigError: with every fault found.
    """
    if faults := check_run(loaded, world_size).faults:
        raise ConfigError(faults)
    return loaded.config


def check_run(loaded: Loaded[TrainingConfig], world_size: int) -> Findings:
    """Check a run file for `world_size` ranks; nothing is written. What a fault hides is not guessed at."""
    config = loaded.config
    found = Findings(list(loaded.faults))
    found.faults += run_faults(config, loaded.given)
    found.faults += data_faults(config)
    found.faults += stage_faults(config)
    found.faults += _choice_faults(config)
    model = None
    if config.model.source:
        model = _unless_faulty(found, "model", lambda: open_model(config.model.source, config.model.overrides))
    layout = Layout(**config.layout.model_dump())
    if model is not None:
        found.faults += _model_faults(config, model)
        found.faults += layout_faults(model.config, layout, world_size)
    else:
        found.faults += layout.faults(world_size)
    found.faults += engine_faults(config.engine, layout)
    found.faults += _context_faults(config, layout)
    if world_size % layout.model == 0:
        found.faults += batch_faults(config, layout, world_size)
    if model is not None and not found.faults:
        found.faults += trained_part_faults(config, model)
    cluster = None
    if (
        _trains_all(config)
        and model is not None
        and not found.faults
        and (cluster := _selected_cluster(config, world_size)) is not None
    ):
        found.faults += memory_faults(config, model.config, cluster)
    if config.output and not found.faults:
        found.faults += RunFolder(Path(config.output).expanduser()).faults(config)
    if model is not None and not found.faults:
        found.facts = _facts(config, model, layout, world_size, cluster is not None)
    return found


def _trains_all(config: TrainingConfig) -> bool:
    """Whether every weight is trained, which is what memory is planned for."""
    return config.lora is None and not config.train.freeze and not config.train.train_only


def _selected_cluster(config: TrainingConfig, world_size: int) -> Cluster | None:
    """The run's accelerators, as many as ranks; None where the device's memory is not known without starting it."""
    try:
        hardware = select(config.device).device.hardware()
    except UserError:
        return None  # a device that cannot be had is told when the run starts
    return None if hardware is None else cluster_of(hardware.name, hardware.memory, world_size)


def _unless_faulty[Value](found: Findings, key: str, action: Callable[[], Value]) -> Value | None:
    try:
        return action()
    except ConfigError as error:
        found.faults += error.faults
    except UserError as error:
        found.faults.append(Fault(key, str(error).removeprefix(f"{key}: ")))
    return None


def _choice_faults(config: TrainingConfig) -> list[Fault]:
    faults = []
    train, data = config.train, config.data
    if not data.validation and data.validation_fraction == 0:
        faults += [
            Fault(f"train.{key}", "would be ignored: there is no validation data", "set data.validation or remove it")
            for key, value in (("validate_every", train.validate_every), ("validation_steps", train.validation_steps))
            if value is not None
        ]
    names = [found.name for found in discover()]
    if config.device != "auto" and config.device not in names:
        faults.append(
            Fault("device", f"no device is called {config.device!r}", f"known here: auto, {', '.join(names)}")
        )
    try:
        with registry.using(config.kernels):
            pass
    except registry.KernelChoiceError as error:
        faults += [Fault("kernels", each) for each in error.faults]
    return faults


def _context_faults(config: TrainingConfig, layout: Layout) -> list[Fault]:
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
    tokenizer = _unless_faulty(found, "tokenizer", lambda: load_tokenizer(config.tokenizer, model.tokenizer_dir))
    if tokenizer is not None:
        found.faults += tokenizer_faults(tokenizer, model.config.vocab_size)
        found.faults += template_faults(config, tokenizer)
    return found.faults


def _facts(
    config: TrainingConfig, model: ModelSource, layout: Layout, world_size: int, accelerated: bool
) -> dict[str, str]:
    train, tokens = config.train, config.train.global_batch_size * config.data.sequence_length
    data_ranks = layout.data_for(world_size)
    parameters = model.config.parameter_count()
    microbatches = train.global_batch_size // (train.micro_batch_size * data_ranks)
    changed = " with overrides" if config.model.overrides else ""
    facts = {
        "stage": config.stage,
        "model": f"{config.model.source}{changed}, {model.family.name} family, {parameters:,} parameters",
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
        facts["adapters"] = f"of rank {config.lora.rank} on {config.lora.targets}, {written}"
    elif not _trains_all(config):
        facts["frozen"] = f"all but {config.train.train_only}" if config.train.train_only else f"{config.train.freeze}"
    if model.weights is not None and config.model.initialise != "random":
        facts["weights"] = f"from {config.model.source}"
    return facts
