"""Everything that can be known to be wrong with a run before it starts, without touching an accelerator."""

from __future__ import annotations

from dataclasses import dataclass, field

from loong_core.config import RunFolder
from loong_core.config.checks import batch_faults, run_faults
from loong_core.config.files import user_path
from loong_core.config.loading import Loaded
from loong_core.device.cpu import CpuDevice
from loong_core.engine.choice import engine_faults
from loong_core.errors import ConfigError, Fault, UserError
from loong_core.nn.recompute import keep_less
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_core.train.machine_faults import machine_faults
from loong_core.wording import counted
from loong_llm.stage_checks import told_faults
from loong_vla.recipes.policy_model import PolicySource, bare_policy, choose_trained, open_policy_source
from loong_vla.recipes.training_config import PolicyTrainingConfig
from loong_vla.recipes.training_data import RobotData, data_size, open_data, section_faults


@dataclass
class Findings:
    """What a check found: `faults` that forbid the run, `facts` about it, and `warnings`."""

    faults: list[Fault] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def checked(loaded: Loaded[PolicyTrainingConfig], world_size: int) -> PolicyTrainingConfig:
    """The configuration, if nothing is wrong with it.

    Raises:
        ConfigError: with every fault found.
    """
    if faults := check_run(loaded, world_size).faults:
        raise ConfigError(faults)
    return loaded.config


def check_run(loaded: Loaded[PolicyTrainingConfig], world_size: int) -> Findings:
    """Check a run file for `world_size` ranks; nothing is written. What a fault hides is not guessed at."""
    config = loaded.config
    found = Findings(list(loaded.faults))
    found.faults += run_faults(config, loaded.given)
    found.faults += machine_faults(config)
    found.faults += _validation_faults(config)
    layout = Layout(**config.layout.model_dump())
    found.faults += layout.faults(world_size)
    found.faults += engine_faults(config.engine, layout)
    if layout.context > 1:
        what = f"is {layout.context}, but a policy's sequences are not shared"
        found.faults.append(Fault("layout.context", what, "set it to 1"))
    if world_size % layout.model == 0:
        found.faults += batch_faults(config, layout, world_size)
    source = data = None
    if config.model.source:
        source = _policy(config, found)
    if source is not None:
        found.faults += _adapter_faults(config, source) or _part_faults(config, source)
        data = _data(config, source, found)
    else:
        found.faults += section_faults(config.data)
    if config.output and not found.faults:
        found.faults += RunFolder(user_path(config.output)).faults(config)
    if source is not None and data is not None and not found.faults:
        found.facts = _facts(config, source, data, layout.data_for(world_size), world_size)
        found.warnings = data.warnings
    return found


def _policy(config: PolicyTrainingConfig, found: Findings) -> PolicySource | None:
    try:
        source = open_policy_source(config)
    except ConfigError as error:
        found.faults += error.faults
        return None
    except UserError as error:
        found.faults.append(Fault("model", str(error).removeprefix("model: ")))
        return None
    if config.model.initialise == "weights" and source.folder.folder is None:
        what = f"is weights, but {config.model.source} has a config and no weights"
        found.faults.append(Fault("model.initialise", what, "set it to random, or name a folder with weights"))
    return source


def _data(config: PolicyTrainingConfig, source: PolicySource, found: Findings) -> RobotData | None:
    try:
        data = open_data(config.data, source.config, source.folder.statistics)
    except ConfigError as error:
        found.faults += error.faults
        return None
    samples = sum(len(each) for each in data.train)
    held_out = sum(len(each) for each in data.held_out)
    batch = config.train.global_batch_size
    if samples < batch:
        what = f"is {batch}, but there are {samples} samples to train on"
        found.faults.append(Fault("train.global_batch_size", what, "lower it"))
    if config.data.validation_fraction and held_out < batch:
        what = f"holds out {counted(held_out, 'sample')}, fewer than train.global_batch_size {batch}"
        found.faults.append(Fault("data.validation_fraction", what, "raise it"))
    return data


def _adapter_faults(config: PolicyTrainingConfig, source: PolicySource) -> list[Fault]:
    if config.lora is None:
        return []
    if not source.family.takes_adapters:
        what = f"puts adapters on a policy, and {source.config.kind} takes none"
        return [Fault("lora", what, "remove it; train.freeze and train.train_only choose what is trained")]
    train = config.train
    return [
        Fault(f"train.{key}", "would be ignored: lora says what is trained", "remove it, or use lora.beside")
        for key, given in (("freeze", train.freeze), ("train_only", train.train_only))
        if given
    ]


def _part_faults(config: PolicyTrainingConfig, source: PolicySource) -> list[Fault]:
    """Patterns that choose nothing, found on a policy without memory."""
    recompute, offload, train = config.recompute.parts, config.offload.parts, config.train
    if config.lora is None and not (train.freeze or train.train_only or recompute.modules or offload.modules):
        return []
    policy, context = bare_policy(source), ParallelContext.single("meta")
    faults = told_faults(lambda: choose_trained(config, source, policy, context), "lora")
    return faults + told_faults(
        lambda: keep_less([policy], context, CpuDevice(), recompute=recompute, offload=offload), "recompute"
    )


def _validation_faults(config: PolicyTrainingConfig) -> list[Fault]:
    if config.data.validation_fraction:
        return []
    train = config.train
    return [
        Fault(f"train.{key}", "would be ignored: nothing is held out", "set data.validation_fraction or remove it")
        for key, value in (("validate_every", train.validate_every), ("validation_steps", train.validation_steps))
        if value is not None
    ]


def _facts(
    config: PolicyTrainingConfig, source: PolicySource, data: RobotData, data_ranks: int, world_size: int
) -> dict[str, str]:
    train, policy = config.train, source.config
    microbatches = train.global_batch_size // (train.micro_batch_size * data_ranks)
    weights = "random weights"
    if source.folder.folder is not None and config.model.initialise != "random":
        weights = f"weights of {source.folder.path}"
    return {
        "policy": f"{policy.kind}, {policy.chunk_size} actions of {policy.action_dim} numbers at once, {weights}",
        "cameras": ", ".join(dict.fromkeys(camera for each in data.train for camera in each.cameras)),
        "data": data_size(data),
        "normalised": ", ".join(f"{kind.lower()} by {policy.normalization_of(kind)}" for kind in ("STATE", "ACTION")),
        "ranks": f"{world_size}, of which {data_ranks} read different data",
        "a step": f"{train.global_batch_size} samples, in {counted(microbatches, 'microbatch')} a rank".replace(
            "microbatchs", "microbatches"
        ),
        "length": counted(train.steps, "step") if train.steps else counted(train.epochs or 1, "epoch"),
    }
