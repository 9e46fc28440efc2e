"""Everything that can be known to be wrong with a run before it starts, without touching an accelerator."""

from __future__ import annotations

from loong_core.config.loading import Loaded
from loong_core.device import Device
from loong_core.errors import Fault
from loong_core.parallel.layout import Layout
from loong_core.plan.devices import GIB
from loong_core.wording import counted
from loong_llm.model import ModelSource, open_model
from loong_llm.planning import cluster_of, memory_faults, planned_peak
from loong_llm.recipes.training_config import TrainingConfig
from loong_llm.run_checks import Findings, OwnChecks, check_with, config_of, unless_faulty
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


def checked(loaded: Loaded[TrainingConfig], world_size: int) -> TrainingConfig:
    """The configuration, if nothing is wrong with it.

    Raises:
        ConfigError: with every fault found.
    """
    return config_of(loaded, check_run(loaded, world_size))


def check_run(loaded: Loaded[TrainingConfig], world_size: int) -> Findings:
    """Check a run file for `world_size` ranks; nothing is written."""
    return check_with(_CHECKS, loaded, world_size)


def _open_model(config: TrainingConfig) -> ModelSource | None:
    return open_model(config.model.source, config.model.overrides) if config.model.source else None


def _trained_faults(config: TrainingConfig, model: ModelSource, device: Device | None) -> list[Fault]:
    faults = trained_part_faults(config, model) + kept_part_faults(config.recompute, config.offload, model)
    faults += precision_faults(config, model) + router_record_faults(config, model)
    return faults + four_bit_faults(config, model, device)


def _memory_faults(
    config: TrainingConfig, model: ModelSource, device: Device, world_size: int
) -> tuple[list[Fault], list[Fault]]:
    hardware = device.hardware()
    if hardware is None:
        return [], host_memory_faults(config, model, device, world_size)
    if not _trains_all(config):
        return [], []
    return memory_faults(config, model.config, cluster_of(hardware.name, hardware.memory, world_size)), []


def _trains_all(config: TrainingConfig) -> bool:
    """Whether every weight is trained, which is what memory is planned for."""
    return config.lora is None and not config.train.freeze and not config.train.train_only


def host_memory_faults(config: TrainingConfig, model: ModelSource, device: Device, world_size: int) -> list[Fault]:
    """Whether a CPU's memory can hold what cannot be done without, however it is shared: a bound from below."""
    if device.torch_type != "cpu":
        return []
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


def _facts(
    config: TrainingConfig, model: ModelSource, layout: Layout, world_size: int, device: Device | None
) -> dict[str, str]:
    planned = device is not None and device.hardware() is not None and _trains_all(config)
    return run_facts(config, model, layout, world_size, planned)


_CHECKS = OwnChecks(
    sections=lambda config: data_faults(config) + stage_faults(config),
    open_model=_open_model,
    model=_model_faults,
    layout=lambda config, model, layout, world_size: [],
    trained=_trained_faults,
    memory=_memory_faults,
    facts=_facts,
)
