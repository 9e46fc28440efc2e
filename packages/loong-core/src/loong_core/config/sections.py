"""The sections every run has, whatever it trains. A package adds its own (model, data) by subclassing `RunConfig`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from loong_core.config.section import MAY_CHANGE, REQUIRED, Section
from loong_core.nn.parts import ALL_BLOCKS, Parts

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


LARGEST_SEED = 2**32 - 1
"""What every random generator in use takes."""


class LayoutSection(Section):
    """Degrees of parallelism: how many ranks share what. What is left of the ranks reads different data.

    Attributes:
        tensor: ranks that share each matrix; a divisor of the attention heads and of the feed-forward width.
        pipeline: ranks that share the layers.
        virtual_pipeline: stages that a pipeline rank holds.
        context: ranks that share each sequence, each with its own tokens of it.
        ulysses: how many of the context ranks exchange tokens for attention heads, a divisor of `context`; the groups
            of so many pass keys and values round a ring. 1: a ring of all; equal to `context`: no ring.
        expert: ranks that share the experts of a layer.
        expert_tensor: ranks that share each matrix of an expert.
        shard: ranks that share the optimizer's state; 1 lets it follow from `replicate`.
        replicate: copies of the sharded state.
        pipeline_layers: layers of each pipeline stage, in the order of the model; by default divided so that the
            stages have equal work, embedding and loss counted.
    """

    tensor: Count = 1
    pipeline: Count = 1
    virtual_pipeline: Count = 1
    context: Count = 1
    ulysses: Count = 1
    expert: Count = 1
    expert_tensor: Count = 1
    shard: Count = 1
    replicate: Count = 1
    pipeline_layers: list[Whole] | None = None


class SpikeSection(Section):
    """What to do when a step's loss is far above those before it.

    Attributes:
        policy: `report` says so, `skip` drops the step's gradients, `stop` ends the run before the step is applied
            (status 3).
        factor: a spike is a loss above this many times the median of the window.
        window: how many losses before the step are looked at.
    """

    policy: Literal["report", "skip", "stop"] = "report"
    factor: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 2.0
    window: Count = 32


class ProfileSection(Section):
    """A profiler's trace of chosen steps, of each rank, in `profile/` of the run folder.

    Attributes:
        steps: `[first, last]`.
        memory: whether allocations are recorded too.
    """

    steps: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    memory: bool = False


class EmaSection(Section):
    """A moving average of the weights, which validation, samples and the written model are of (engine fsdp).

    Attributes:
        decay: share of the average that a step leaves; less in the first steps, `(1 + step) / (10 + step)`.
    """

    decay: Annotated[float, Field(gt=0, lt=1)] = 0.999


class FsdpSection(Section):
    """How engine fsdp goes about its work; the numbers are the same.

    Attributes:
        sharding: `everything` divides weights, gradients and the optimizer's state among the ranks of `layout.shard`;
            `optimizer` keeps weights and gradients whole and divides the optimizer's state only (ZeRO-1).
        compile: whether layers are compiled, each kind once (`torch.compile`).
    """

    sharding: Literal["everything", "optimizer"] = "everything"
    compile: bool = False


class MegatronSection(Section):
    """How engine megatron goes about its work; the numbers are the same but for the order of sums.

    Attributes:
        overlap: whether gradients are reduced over data ranks while backward goes on, and updated weights gathered
            while the next forward goes on. For several data ranks.
    """

    overlap: bool = False


class EarlyStopSection(Section):
    """Ending a run before its last step, once its held-out loss falls no longer.

    Attributes:
        patience: validations in a row without a new lowest held-out loss after which the run ends.
        min_delta: by how much a held-out loss has to be below the lowest to count as a new one.
    """

    patience: Count = 3
    min_delta: NonNegative = 0.0


class TrainSection(Section):
    """Length, batch, AdamW and learning-rate schedule of a run, and what is watched while it trains.

    Attributes:
        steps: optimizer steps of the whole run; either this or `epochs` is given.
        epochs: passes over the training data, in place of `steps`.
        stop_at: save a checkpoint and end (status 0) at this step; the same run file without it goes on.
        global_batch_size: sequences in one optimizer step, over all ranks.
        micro_batch_size: sequences in one forward and backward of one data rank.
        lr: learning rate at the end of the warm-up.
        min_lr: where `cosine`, `linear` and `wsd` end.
        warmup_steps: steps over which the learning rate rises from 0 to `lr`.
        schedule: how it falls afterwards; `wsd` stays at `lr` and falls at the end, `constant` never falls.
        decay_steps: length of the fall: for `cosine` and `linear` right after the warm-up (default: to the end of the
            run; after it the rate stays at `min_lr`), for `wsd` the last steps of the run (default: a tenth of it).
        weight_decay: AdamW's, on matrices only (neither norms nor biases).
        beta1: AdamW's decay rate of the mean gradient.
        beta2: AdamW's decay rate of the mean squared gradient.
        eps: AdamW's addition to the root of the mean squared gradient.
        moments: what AdamW keeps these two means in. `bf16` takes 4 bytes a parameter in place of 8; a mean then moves
            only by more than 1/256 of itself, so neither `beta1` nor `beta2` may be above 0.996.
        clip_grad: largest norm of the gradient over all parameters; 0 for no clipping.
        ema: a moving average of the weights, if the section is given; `ema: {}` takes the default.
        freeze: patterns of Hugging Face weight names (`embed_tokens`, `layers.0.*`) that are not trained.
        train_only: patterns of those that alone are trained, in place of `freeze`.
        validate_every: steps between validations, where there is validation data; also before the first step and
            after the last.
        validation_steps: global batches of one validation; all the validation data where not given.
        early_stop: when to end before the last step, if the section is given; `early_stop: {}` takes the defaults.
        spike: what to do about a sudden rise of the loss.
        hang_timeout: seconds in which no rank gets on after which the run is ended (status 4) and the rank that holds
            it up is named, with its stack; null waits for ever.
        profile: which steps to profile.
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
    moments: Literal["fp32", "bf16"] = "fp32"
    clip_grad: NonNegative = 1.0
    ema: EmaSection | None = None
    freeze: list[str] = Field(default_factory=list)
    train_only: list[str] = Field(default_factory=list)
    validate_every: Annotated[Count | None, MAY_CHANGE] = None
    validation_steps: Annotated[Count | None, MAY_CHANGE] = None
    early_stop: Annotated[EarlyStopSection | None, MAY_CHANGE] = None
    spike: Annotated[SpikeSection, MAY_CHANGE] = SpikeSection()
    hang_timeout: Annotated[Positive | None, MAY_CHANGE] = 480.0
    profile: Annotated[ProfileSection, MAY_CHANGE] = ProfileSection()


class CheckpointSection(Section):
    """Checkpoints to resume from, in `checkpoints/` of the run folder; the last step's is always saved.

    Attributes:
        every: steps from one to the next; null saves only the last step's.
        keep: how many are kept.
        best: whether the one of the lowest held-out loss is kept too, however old it is; the model that is written at
            the end of the run is then that one's.
        asynchronous: whether training goes on while one is written.
        export_every: steps from one model in Hugging Face form, in `exports/` of the run folder, to the next; they are
            all kept. Any time: `loong-llm export RUN_FOLDER`.
    """

    every: Count | None = 500
    keep: Count = 2
    best: bool = False
    asynchronous: bool = True
    export_every: Count | None = None


class WandbSection(Section):
    """Weights & Biases, from the extra `loong-core[wandb]`.

    Attributes:
        project: where the run is filed.
        entity: whose project it is; your own by default.
        name: the run's; W&B makes one up by default.
        offline: whether to write under the run folder only.
    """

    project: Annotated[str, REQUIRED] = ""
    entity: str | None = None
    name: str | None = None
    offline: bool = False


class LoggingSection(Section):
    """What is told besides `metrics.jsonl`, which has every step.

    Attributes:
        every: steps from one line on the console to the next.
        tensorboard: whether to write event files, from the extra `loong-core[tensorboard]`.
        wandb: Weights & Biases, if its section is given.
        router_choices_every: steps from one whose choices of experts are kept, in `router_choices/` of the run folder,
            to the next; `loong compare` counts those that differ between two runs.
    """

    every: Count = 1
    tensorboard: bool = False
    wandb: WandbSection | None = None
    router_choices_every: Count | None = None


class PartsSection(Section):
    """Parts of the model: all blocks (`full`, which is short for `{mode: full}`), so many blocks, or modules by name.

    Attributes:
        mode: `full` is every block; with `none` it is what the other two say.
        blocks: so many blocks of each pipeline rank, the first ones.
        modules: patterns of module names, such as `feed_forward`, `attention`, `layers.3.*` or `head`.
    """

    shorthand = "mode"

    mode: Literal["none", "full"] = "none"
    blocks: Whole = 0
    modules: list[str] = Field(default_factory=list)

    @property
    def parts(self) -> Parts:
        """As layers take it."""
        return ALL_BLOCKS if self.mode == "full" else Parts(self.blocks, tuple(self.modules))


PrecisionChoice = Literal["bf16", "blockwise", "rowwise", "tensorwise", "adaptive"]


class Fp8Section(Section):
    """Products in 8 bits (e4m3): the linear layers of the blocks and the experts, forward and both gradients.

    Embedding, norms, routers and head stay in bf16 and float32, and so do the weights that are trained.

    Attributes:
        recipe: what shares a scale: `blockwise` 128 elements of a row (of weights 128 by 128), `rowwise` a row,
            `tensorwise` everything. `adaptive` takes for each call whichever of blockwise and bf16 was measured to be
            faster for its number of tokens (`loong tune` measures; a table for the H200 is shipped). Experts have
            blockwise products only.
        overrides: other choices by pattern of Hugging Face weight names, such as `{layers.0.*: bf16}`; of several that
            match the last holds.
        error_bound: a layer whose input, weight or gradient rounding changes by more than this, relative to its norm,
            goes back to bf16, and the run says so.
        check_every: steps from one such measurement to the next; the first step is always measured.
        table: a file of measurements for `adaptive` in place of the device's own.
    """

    recipe: PrecisionChoice = "blockwise"
    overrides: dict[str, PrecisionChoice] = Field(default_factory=dict)
    error_bound: Annotated[Positive, MAY_CHANGE] = 0.06
    check_every: Annotated[Count, MAY_CHANGE] = 100
    table: Annotated[str | None, MAY_CHANGE] = None


class RunConfig(Section):
    """One run.

    Attributes:
        output: the run folder.
        seed: of initial weights and data order.
        device: `auto`, or a device that `loong devices` lists.
        engine: what runs the model over the ranks. `megatron` takes every layout and divides the optimizer's state
            among data ranks; `fsdp` divides weights and gradients among them too, and of the others takes context only.
        precision: `bf16` computes in bf16 with fp32 main weights and gradients, `fp32` in fp32.
        layout: how ranks share the work.
        megatron: how engine megatron works.
        fsdp: how engine fsdp works.
        recompute: parts of the model that keep their input only and repeat their forward in backward: less memory for
            more time, and the same numbers.
        offload: parts of the model that keep on the host what they need for backward, copied beside the work.
        train: length, batch, optimizer, schedule.
        checkpoint: what to resume from.
        logging: what is told.
        kernels: implementation by op name where another than the default is wanted (`loong ops` lists them).
    """

    output: Annotated[str, REQUIRED, MAY_CHANGE] = ""
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 0
    device: Annotated[str, MAY_CHANGE] = "auto"
    engine: Annotated[Literal["megatron", "fsdp"], MAY_CHANGE] = "megatron"
    precision: Annotated[Literal["fp32", "bf16"], MAY_CHANGE] = "fp32"
    layout: Annotated[LayoutSection, MAY_CHANGE] = LayoutSection()
    megatron: Annotated[MegatronSection, MAY_CHANGE] = MegatronSection()
    fsdp: Annotated[FsdpSection, MAY_CHANGE] = FsdpSection()
    recompute: Annotated[PartsSection, MAY_CHANGE] = PartsSection()
    offload: Annotated[PartsSection, MAY_CHANGE] = PartsSection()
    train: TrainSection = TrainSection()
    checkpoint: Annotated[CheckpointSection, MAY_CHANGE] = CheckpointSection()
    logging: Annotated[LoggingSection, MAY_CHANGE] = LoggingSection()
    kernels: Annotated[dict[str, str], MAY_CHANGE] = Field(default_factory=dict)
