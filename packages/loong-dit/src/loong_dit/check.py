"""Everything that can be known to be wrong with a run before it starts, without touching an accelerator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from loong_core.config import RunFolder
from loong_core.config.checks import batch_faults, run_faults
from loong_core.config.loading import Loaded
from loong_core.device import discover
from loong_core.engine.choice import engine_faults
from loong_core.errors import ConfigError, Fault, UserError
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_core.wording import counted
from loong_dit.codecs.codec import Pixels
from loong_dit.codecs.facts import vae_facts
from loong_dit.data.cache import LatentCache
from loong_dit.data.manifest import Manifest
from loong_dit.data.sample_source import SampleSource
from loong_dit.data.stream import LatentStream
from loong_dit.model_source import ModelSource
from loong_dit.recipes.noise_of_run import held_out_of, model_of, noise_of
from loong_dit.recipes.online_samples import OnlineSamples, plan_online
from loong_dit.recipes.run_samples import sample_numbers
from loong_dit.recipes.training_config import DiffusionTrainingConfig
from loong_kernels import registry


@dataclass
class Findings:
    """What a check found: `faults` that forbid the run, and `facts` about it for people."""

    faults: list[Fault] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


def checked(loaded: Loaded[DiffusionTrainingConfig], world_size: int) -> DiffusionTrainingConfig:
    """The configuration, if nothing is wrong with it.

    Raises:
        ConfigError: with every fault found.
    """
    if faults := check_run(loaded, world_size).faults:
        raise ConfigError(faults)
    return loaded.config


def check_run(loaded: Loaded[DiffusionTrainingConfig], world_size: int) -> Findings:
    """Check a run file for `world_size` ranks; nothing is written. What a fault hides is not guessed at."""
    config = loaded.config
    found = Findings(list(loaded.faults))
    found.faults += run_faults(config, loaded.given)
    found.faults += _choice_faults(config, loaded.given)
    layout = Layout(**config.layout.model_dump())
    whole = source = None
    cache: SampleSource | None = None
    if config.model.source:
        whole = _unless_faulty(found, "model", lambda: model_of(config))
    if whole is not None:
        source = _unless_faulty(found, "model.expert", lambda: whole.of_expert(config.model.expert))
    where = "data.cache" if config.data.online is None else "data.online"
    folder, online = config.data.cache, config.data.online
    if folder and online is None:
        cache = _unless_faulty(found, where, lambda: LatentCache(Path(folder).expanduser()))
    if whole is not None and online is not None and online.media:
        cache = _unless_faulty(found, where, lambda: OnlineSamples(plan_online(online, whole), whole))
    heads = whole.config.num_attention_heads if whole is not None else None
    found.faults += layout.faults(world_size, heads=heads, kv_heads=heads)
    found.faults += engine_faults("fsdp", layout)
    if world_size % layout.model == 0:
        found.faults += batch_faults(config, layout, world_size)
    if whole is not None and cache is not None:
        if config.data.online is None:  # what is encoded online has been held to the model already
            found.faults += model_data_faults(whole, cache.manifest, where)
        found.faults += _size_faults(whole, cache, layout, where)
        found.faults += _condition_faults(config, whole)
    if whole is not None and source is not None and cache is not None and not found.faults:
        found.faults += _sample_faults(config, source, cache)
        found.faults += _trained_part_faults(config, source)
        _unless_faulty(found, "data", lambda: _try_stream(config, whole, cache))
    if config.output and not found.faults:
        found.faults += RunFolder(Path(config.output).expanduser()).faults(config)
    if source is not None and cache is not None and not found.faults:
        found.facts = _facts(config, source, cache, layout, world_size)
    return found


def model_data_faults(source: ModelSource, manifest: Manifest, where: str) -> list[Fault]:
    """What a cache holds that the model does not take, and what it lacks."""
    config = source.config
    beside = manifest.condition_channels
    wanted = config.in_channels - config.out_channels
    faults = []
    if manifest.channels != config.out_channels:
        what = f"has latents of {manifest.channels} channels (made by {manifest.vae['name']}), and {source.name} takes "
        faults.append(Fault(where, f"{what}{config.out_channels}", "cache with the model's own VAE"))
    if manifest.text_dim != config.text_dim:
        what = f"has captions' embeddings of width {manifest.text_dim} (by {manifest.text_encoder['name']}), and "
        what += f"{source.name} takes {config.text_dim}"
        faults.append(Fault(where, what, "cache with the model's own text encoder"))
    if source.pipeline is not None and (source.pipeline / "vae" / "config.json").is_file():
        own, made_by = vae_facts(source.pipeline).name, manifest.vae["name"]
        if own != made_by:
            what = f"has latents by {made_by}, and {source.name} has another VAE, {own}"
            faults.append(Fault(where, what, "cache with the model's own VAE"))
    if beside != wanted:
        what = f"has {beside} channels of conditions beside the latents, and {source.name} takes {wanted}"
        faults.append(Fault(where, what, "cache for this model: loong-dit cache --model NAME"))
    if manifest.image_dim != config.image_dim:
        what = f"has condition images of width {manifest.image_dim}, and {source.name} takes {config.image_dim}"
        faults.append(Fault(where, what, "cache for this model: loong-dit cache --model NAME"))
    return faults


def _size_faults(source: ModelSource, cache: SampleSource, layout: Layout, where: str) -> list[Fault]:
    """Sizes that the model's patches do not divide, and samples of fewer tokens than there are ranks to share them."""
    patch, form = source.config.patch_size, source.family.patch_form(source.config)
    sizes = sorted({each.size for each in cache.samples})
    uneven = [size for size in sizes if any(extent % step for extent, step in zip(size, patch))]
    if uneven:
        what = (
            f"has latents of {uneven[0]} frames, rows and columns, which the model's patches of {patch} do not divide"
        )
        return [Fault(where, what, "take other sizes")]
    least = min(form.tokens(size) for size in sizes)
    if least < layout.context:
        what = f"is {layout.context}, more ranks than the {least} tokens of the smallest sample that they share"
        return [Fault("layout.context", what, "lower it")]
    return []


def _choice_faults(config: DiffusionTrainingConfig, given: frozenset[str]) -> list[Fault]:
    faults = []
    train, data, flow = config.train, config.data, config.flow
    if config.engine == "megatron":
        faults.append(Fault("engine", "is megatron; diffusion transformers run on fsdp", "set engine=fsdp"))
    if data.cache and data.online is not None:
        faults.append(Fault("data.online", "is given, and so is data.cache", "give one of them"))
    if not data.cache and data.online is None:
        faults.append(
            Fault("data.cache", "is missing", "name a folder that `loong-dit cache` made, or give data.online")
        )
    if data.validation is not None and data.validation_fraction > 0:
        faults.append(Fault("data.validation_fraction", "is set, and so is data.validation", "give one of them"))
    if data.validation is None and data.validation_fraction == 0:
        faults += [
            Fault(f"train.{key}", "would be ignored: there is no validation data", "set data.validation or remove it")
            for key, value in (("validate_every", train.validate_every), ("validation_steps", train.validation_steps))
            if value is not None
        ]
    low, high = flow.range
    if not 0 <= low < high <= 1:
        faults.append(Fault("flow.range", f"is {flow.range}, not two rising levels from 0 to 1", "write [0.0, 1.0]"))
    if flow.timesteps != "logit_normal":
        faults += [
            Fault(f"flow.{key}", f"would be ignored: flow.timesteps is {flow.timesteps}", "remove it")
            for key in ("mean", "std")
            if f"flow.{key}" in given and getattr(flow, key) != type(flow).model_fields[key].default
        ]
    if config.lora is not None and (train.freeze or train.train_only):
        faults.append(
            Fault("lora", "is given with train.freeze or train.train_only", "adapters alone are trained then")
        )
    names = [found.name for found in discover()]
    if config.device != "auto" and config.device not in names:
        what = f"no device is called {config.device!r}"
        faults.append(Fault("device", what, f"known here: auto, {', '.join(names)}"))
    try:
        with registry.using(config.kernels):
            pass
    except registry.KernelChoiceError as error:
        faults += [Fault("kernels", each) for each in error.faults]
    return faults


def _condition_faults(config: DiffusionTrainingConfig, source: ModelSource) -> list[Fault]:
    model, faults = config.model, []
    if model.condition == "first_frame" and not source.per_token_time:
        what = f"is first_frame, but {source.name} has one timestep a sample"
        faults.append(Fault("model.condition", what, "set it to none, or take a model such as wan2.2-ti2v-5b"))
    if model.initialise == "weights" and not source.has_weights:
        what = f"is weights, but {source.name} has a config and no weights"
        faults.append(Fault("model.initialise", what, "set it to random, or name a folder with weights"))
    return faults


def _sample_faults(config: DiffusionTrainingConfig, source: ModelSource, cache: SampleSource) -> list[Fault]:
    if config.samples is None:
        return []
    faults = []
    try:
        sample_numbers(config.samples, cache)
    except KeyError as error:
        what = f"{error.args[0]!r} is no caption of the training data"
        faults.append(Fault("samples.captions", what, f"such as {cache.samples[0].caption!r}"))
    if config.data.online is None and cache.manifest.vae["name"] != Pixels.name:
        folder = source.pipeline
        if folder is None or not (folder / "vae" / "config.json").is_file():
            what = "are wanted, but there is no VAE to decode them with"
            faults.append(Fault("samples", what, "let model.source be a pipeline's folder, which has vae/"))
    return faults


def _trained_part_faults(config: DiffusionTrainingConfig, source: ModelSource) -> list[Fault]:
    """Patterns that choose nothing, found on a model without memory."""
    from loong_core.device.cpu import CpuDevice
    from loong_core.nn.recompute import keep_less
    from loong_dit.model import build_module, transformers_of
    from loong_dit.recipes.trained_model import choose_trained

    found, context = Findings(), ParallelContext.single("meta")
    recompute, offload = config.recompute.parts, config.offload.parts
    if config.lora is not None or config.train.freeze or config.train.train_only:
        _unless_faulty(found, "lora", lambda: choose_trained(config, source, build_module(source, context), context))
    if recompute.modules or offload.modules:
        parts = transformers_of(build_module(source, context))
        _unless_faulty(
            found, "recompute", lambda: keep_less(parts, context, CpuDevice(), recompute=recompute, offload=offload)
        )
    return found.faults


def _try_stream(config: DiffusionTrainingConfig, source: ModelSource, cache: SampleSource) -> None:
    noise = noise_of(config, source, cache.manifest)
    samples, other, _ = held_out_of(config, cache)
    if other is not None and other is not cache and (faults := model_data_faults(source, other.manifest, "")):
        raise ConfigError([Fault("data.validation", each.what, each.fix) for each in faults])
    train = config.train
    LatentStream(
        cache,
        samples,
        noise.only,
        batching=config.data.batching,
        global_batch_size=train.global_batch_size,
        micro_batch_size=train.micro_batch_size,
    )


def _unless_faulty[Value](found: Findings, key: str, action: Callable[[], Value]) -> Value | None:
    try:
        return action()
    except ConfigError as error:
        found.faults += error.faults
    except UserError as error:
        text = str(error)
        where = key if not text.startswith(f"{key}") else text.partition(": ")[0]
        found.faults.append(Fault(where, text.removeprefix(f"{where}: ")))
    return None


def _extent(numbers: list[int]) -> str:
    """`24`, or `24 to 96`, of rising numbers."""
    return f"{numbers[0]}" if numbers[0] == numbers[-1] else f"{numbers[0]} to {numbers[-1]}"


def _online_facts(config: DiffusionTrainingConfig, cache: SampleSource) -> dict[str, str]:
    if config.data.online is None or not isinstance(cache, OnlineSamples):
        return {}
    out = f", {counted(len(cache.left_out), 'file')} left out" if cache.left_out else ""
    return {"encoding": f"online, in {config.data.online.precision}, every time a sample is used{out}"}


def _facts(
    config: DiffusionTrainingConfig, source: ModelSource, cache: SampleSource, layout: Layout, world_size: int
) -> dict[str, str]:
    train, manifest = config.train, cache.manifest
    data_ranks = layout.data_for(world_size)
    parameters = source.experts * source.family.parameter_count(source.config)
    form = source.family.patch_form(source.config)
    tokens = sorted(form.tokens(each.size) for each in cache.samples)
    microbatches = train.global_batch_size // (train.micro_batch_size * data_ranks)
    facts = {
        "model": f"{source.name}, {source.family.name} family, {parameters:,} parameters",
        "data": f"{counted(len(cache), 'sample')} of {_extent(tokens)} tokens, latents by "
        f"{manifest.vae['name']}, captions by {manifest.text_encoder['name']}",
        **_online_facts(config, cache),
        "ranks": f"{world_size}, of which {data_ranks} read different data",
        "a step": f"{train.global_batch_size} samples in "
        f"{microbatches} microbatch{'' if microbatches == 1 else 'es'} a rank",
        "length": counted(train.steps, "step") if train.steps else counted(train.epochs or 1, "epoch"),
    }
    if source.experts > 1:
        facts["experts"] = f"two, which meet at {source.boundary} of the timesteps; each step trains one"
    if config.lora is not None:
        written = "merged into the model" if config.lora.merge else f"saved as {config.lora.format} reads them"
        facts["adapters"] = f"of rank {config.lora.rank} on {config.lora.targets}, {written}"
    if source.has_weights and config.model.initialise != "random":
        facts["weights"] = f"from {config.model.source}"
    return facts
