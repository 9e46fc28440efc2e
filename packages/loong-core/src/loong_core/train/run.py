"""One run on this rank: device, ranks, folder, and who is told what, from opening to closing.

A recipe opens a run, builds its model and data with it, and hands both to `loong_core.train.loop.train`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch

from loong_core.config import RunConfig, RunFolder
from loong_core.config.files import user_path
from loong_core.device import Device, apply_environment, select
from loong_core.engine.settings import EmaSettings, EngineSettings
from loong_core.errors import ConfigError, Fault, UserError
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.crew import Crew
from loong_core.parallel.layout import Layout
from loong_core.parallel.ranks import DEFAULT_TIMEOUT, RankPlace, initialise_from_env, leave
from loong_core.train.reporter import Reporter
from loong_core.wording import counted
from loong_kernels import registry


@dataclass(frozen=True)
class Run:
    """What a recipe and the loop need of a run besides model and data.

    Attributes:
        config: the whole configuration.
        folder: where everything is written.
        device: the kind of device; `context.device` is where this rank's tensors live.
        context: this rank's process groups.
        place: this rank among all.
        reporter: where figures and news go.
    """

    config: RunConfig
    folder: RunFolder
    device: Device
    context: ParallelContext
    place: RankPlace
    reporter: Reporter

    @property
    def engine_settings(self) -> EngineSettings:
        """The `train` section and the precision, as engines take them."""
        train = self.config.train
        return EngineSettings(
            precision=self.config.precision,
            weight_decay=train.weight_decay,
            betas=(train.beta1, train.beta2),
            eps=train.eps,
            moments=train.moments,
            clip_grad=train.clip_grad,
            overlap_grad_reduce=self.config.megatron.overlap,
            overlap_param_gather=self.config.megatron.overlap,
            ema=None if train.ema is None else EmaSettings(train.ema.decay),
            sharding=self.config.fsdp.sharding,
            compile_layers=self.config.fsdp.compile,
        )

    @property
    def dtype(self) -> torch.dtype:
        """What forward and backward compute in."""
        return self.engine_settings.dtype

    @property
    def peak_flops(self) -> float | None:
        """The most FLOP/s of one rank's device in this run's precision, None if not known."""
        return self.device.peak_flops(self.dtype)

    def say(self, text: str) -> None:
        """One line of news."""
        self.reporter.say(text)

    def say_kernels(self) -> None:
        """Which implementation serves each op, once they have been called: in short, and in the log with reasons."""
        decisions = registry.decisions()
        served = dict.fromkeys(f"{each.op} {each.implementation}" for each in decisions)
        self.reporter.say(f"kernels: {', '.join(served)}")
        for each in decisions:
            self.reporter.note(str(each))


@contextmanager
def open_run(config: RunConfig) -> Iterator[Run]:
    """Join the ranks, claim the run folder and write its `run.yaml`; on leaving, close what was opened. Collective.

    Raises:
        UserError: the device cannot be had, the folder belongs to another run, or another process is training in it.
    """
    selection = select(config.device)
    apply_environment(selection.device)
    if config.precision == "bf16" and not selection.device.capabilities().bf16:
        raise UserError(f"precision: {selection.device.name} does not compute in bf16; set precision=fp32")
    try:
        registry.configure(config.kernels, device_type=selection.device.torch_type)
    except registry.KernelChoiceError as error:
        raise ConfigError([Fault("kernels", each) for each in error.faults]) from error
    with ExitStack() as stack:
        place, torch_device = initialise_from_env(selection.device, timeout=_patience(config))
        stack.callback(leave)
        context = ParallelContext.build(Layout(**config.layout.model_dump()), torch_device)
        folder = RunFolder(user_path(config.output))
        # The lock stays with rank 0: a file cannot be sent to the others.
        Crew().on_first(lambda: stack.enter_context(folder.claim(config)) and None)
        reporter = Reporter(config, folder, place.rank)
        stack.callback(reporter.close)
        selection.device.seed(config.seed)
        selection.device.reset_peak_memory()
        reporter.say(f"{selection.short}; {counted(place.world_size, 'rank')}")
        reporter.note(selection.why)
        yield Run(config, folder, selection.device, context, place, reporter)


def _patience(config: RunConfig) -> timedelta:
    """How long a collective waits: longer than the watch over hanging ranks, which can say more."""
    watched = timedelta(seconds=config.train.hang_timeout or 0)
    return max(DEFAULT_TIMEOUT, 2 * watched)
