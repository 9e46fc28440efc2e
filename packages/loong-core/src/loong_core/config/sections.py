"""The sections every run has, whatever it trains. A package adds its own (model, data) by subclassing `RunConfig`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from loong_core.config.section import MAY_CHANGE, REQUIRED, Section

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class LayoutSection(Section):
    """Degrees of parallelism. What the product leaves of the ranks is the data-parallel degree."""

    tensor: Count = 1
    pipeline: Count = 1
    virtual_pipeline: Count = 1
    context: Count = 1
    expert: Count = 1
    expert_tensor: Count = 1
    shard: Count = 1
    replicate: Count = 1


class SpikeSection(Section):
    """What to do when a step's loss exceeds `factor` times the median of the last `window` steps'.

    `report` says so, `skip` drops the step's gradients, `stop` ends the run before the step is applied (status 3).
    """

    policy: Literal["report", "skip", "stop"] = "report"
    factor: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 2.0
    window: Count = 32


class ProfileSection(Section):
    """Steps to profile, `[first, last]`: a trace of each rank, and with `memory` a snapshot of its allocations."""

    steps: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    memory: bool = False


class TrainSection(Section):
    """Length, batch, AdamW and learning-rate schedule of a run, and what is watched while it trains.

    Attributes:
        steps: optimizer steps of the whole run; or `epochs`, passes over the training data. One of the two.
        stop_at: save a checkpoint and end (status 0) at this step; the same run file without it goes on.
        global_batch_size: sequences in one optimizer step, over all ranks.
        micro_batch_size: sequences in one forward and backward of one data rank.
        lr: learning rate after `warmup_steps` steps of linear rise.
        min_lr: where `cosine`, `linear` and `wsd` end.
        decay_steps: length of the decay. `cosine` and `linear` decay right after warm-up (default: to the end of the
            run) and stay at `min_lr`; `wsd` stays at `lr` and decays over the last steps (default: a tenth of the run).
        weight_decay: AdamW's, on matrices only (neither norms nor biases).
        clip_grad: largest norm of the gradient over all parameters; 0 for no clipping.
        validate_every: steps between validations, where there is validation data; also before the first step and
            after the last.
        validation_steps: global batches of one validation; all the validation data where not given.
    """

    steps: Count | None = None
    epochs: Count | None = None
    stop_at: Annotated[Count | None, MAY_CHANGE] = None
    global_batch_size: Count = 8
    micro_batch_size: Annotated[Count, MAY_CHANGE] = 1
    lr: Positive = 3e-4
    min_lr: NonNegative = 0.0
    warmup_steps: Whole = 0
    schedule: Literal["cosine", "linear", "wsd", "constant"] = "cosine"
    decay_steps: Count | None = None
    weight_decay: NonNegative = 0.1
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    eps: Positive = 1e-8
    clip_grad: NonNegative = 1.0
    validate_every: Annotated[Count | None, MAY_CHANGE] = None
    validation_steps: Annotated[Count | None, MAY_CHANGE] = None
    spike: Annotated[SpikeSection, MAY_CHANGE] = SpikeSection()
    profile: Annotated[ProfileSection, MAY_CHANGE] = ProfileSection()


class CheckpointSection(Section):
    """Resume checkpoints: `every` so many steps (default: only at the end), and the last `keep` are kept."""

    every: Count | None = None
    keep: Count = 2
    asynchronous: bool = True


class WandbSection(Section):
    """Weights & Biases, from the extra `loong-core[wandb]`. `offline` writes under the run folder only."""

    project: Annotated[str, REQUIRED] = ""
    entity: str | None = None
    name: str | None = None
    offline: bool = False


class LoggingSection(Section):
    """Beside `metrics.jsonl`, which has every step: a console line each `every` steps, TensorBoard, W&B."""

    every: Count = 1
    tensorboard: bool = False
    wandb: WandbSection | None = None


class RunConfig(Section):
    """One run.

    Attributes:
        output: the run folder.
        seed: of initial weights and data order.
        device: `auto`, or a device that `loong devices` lists.
        engine: what runs the model over the ranks.
        precision: `bf16` computes in bf16 with fp32 main weights and gradients, `fp32` in fp32.
        kernels: implementation by op name where another than the default is wanted (`loong ops` lists them).
    """

    output: Annotated[str, REQUIRED, MAY_CHANGE] = ""
    seed: Whole = 0
    device: Annotated[str, MAY_CHANGE] = "auto"
    engine: Annotated[Literal["megatron"], MAY_CHANGE] = "megatron"
    precision: Annotated[Literal["fp32", "bf16"], MAY_CHANGE] = "fp32"
    layout: Annotated[LayoutSection, MAY_CHANGE] = LayoutSection()
    train: TrainSection = TrainSection()
    checkpoint: Annotated[CheckpointSection, MAY_CHANGE] = CheckpointSection()
    logging: Annotated[LoggingSection, MAY_CHANGE] = LoggingSection()
    kernels: Annotated[dict[str, str], MAY_CHANGE] = Field(default_factory=dict)
