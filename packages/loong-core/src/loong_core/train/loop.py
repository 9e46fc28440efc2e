"""The training loop: one global batch after another, whatever is trained and whatever it runs on.

Data -> loss and gradient (engine) -> may the step be applied? -> step -> metrics -> validation and checkpoint when due
-> do all ranks go on? Everything that differs between tasks is in `Work`, between machines in the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from loong_core.checkpoint.resume import Checkpointer
from loong_core.engine.base import Engine, ForwardStep, StepLoss
from loong_core.errors import Interrupted, NumericalError, UserError
from loong_core.parallel.crew import Crew
from loong_core.train.exports import Exports
from loong_core.train.guards import FiniteGuard, SpikeGuard
from loong_core.train.hang_watch import HangWatch
from loong_core.train.profile import StepProfiler
from loong_core.train.router_record import RouterRecord
from loong_core.train.run import Run
from loong_core.train.schedule import learning_rate
from loong_core.train.signals import SignalWatch
from loong_core.train.step_clock import StepClock, Unit


class DataStream(Protocol):
    """Training data of one rank. The position is that of the whole run: it does not depend on the number of ranks."""

    def next_step(self) -> Sequence[Any]:
        """This data rank's microbatches of the next global batch."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position, as JSON has it."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a position."""
        ...


@dataclass(frozen=True)
class Work:
    """What a recipe gives to the loop.

    Attributes:
        engine: the model, ready to train.
        stream: training data.
        forward_step: the task's loss.
        total_steps: length of the whole run.
        units_per_step: tokens, or samples, of one global batch.
        flops_per_unit: of forward and backward, for MFU.
        validation: makes the microbatches of one pass over the held-out data, a list a global batch, equally many on
            every rank; None for no validation.
        between: called before the first step, with 0, and after each, with its number: to look at the model.
        unit: what is counted, and what a mean loss is over: `tokens`, or `samples`.
        export: writes the model as it is to a folder, while the run goes on; collective. None where it cannot.
        figures: more figures of a step, made of those so far; the same on every rank, and asked for on all of them.
    """

    engine: Engine
    stream: DataStream
    forward_step: ForwardStep
    total_steps: int
    units_per_step: int
    flops_per_unit: float
    validation: Callable[[], Iterable[Sequence[Any]]] | None = None
    between: Callable[[int], None] | None = None
    unit: Unit = "tokens"
    figures: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    export: Callable[[Path], None] | None = None


@dataclass
class Progress:
    """How far a run is; what a checkpoint keeps of the loop.

    Attributes:
        step: the last step that was taken.
        losses: the spike guard's window.
        first_val_loss: held-out loss before the first step.
        last_val_loss: the latest held-out loss.
        best_step: the step with the lowest held-out loss, which is `best_val_loss`.
        stale: validations since then.
        stopped_early: whether `train.early_stop` has ended the run.
    """

    step: int = 0
    losses: list[float] = field(default_factory=list)
    first_val_loss: float | None = None
    last_val_loss: float | None = None
    best_step: int | None = None
    best_val_loss: float | None = None
    stale: int = 0
    stopped_early: bool = False

    def finished(self, total_steps: int) -> bool:
        """Whether the run is over: at its last step, or stopped early."""
        return self.step == total_steps or self.stopped_early

    def note_validation(self, val_loss: float, min_delta: float) -> bool:
        """Keep account of a held-out loss; whether it is the lowest so far."""
        self.last_val_loss = val_loss
        lowest = self.best_val_loss is None or val_loss < self.best_val_loss - min_delta
        if lowest:
            self.best_step, self.best_val_loss, self.stale = self.step, val_loss, 0
        else:
            self.stale += 1
        return lowest


def train(run: Run, work: Work) -> Progress:
    """Train from the run's last checkpoint, or the start, to its end or `train.stop_at`; the last step is saved.

    Raises:
        NumericalError: a guard stopped the run; the last checkpoint is unharmed.
        Interrupted: a signal ended it; its state is saved.
    """
    settings = run.config.train
    engine, total = work.engine, work.total_steps
    last = min(total, settings.stop_at or total)
    watch = HangWatch(run.folder.logs, settings.hang_timeout)
    finite = FiniteGuard(watch.forward_step(work.forward_step))
    clock = StepClock(
        run.device, run.place.world_size, work.units_per_step, work.flops_per_unit, run.peak_flops, work.unit
    )
    profiler = StepProfiler(settings.profile, run.folder.profile, run.place.rank, run.context.device)
    checkpoints = Checkpointer(
        run.folder.checkpoints,
        run.config.checkpoint.keep,
        run.config.checkpoint.asynchronous,
        run.context,
        say=run.say,
        at_stage=lambda stage, folder: watch.mark(None, f"saving ({stage})"),
    )
    progress = _resume(run, work, checkpoints)
    patience = settings.early_stop.patience if settings.early_stop else None
    min_delta = settings.early_stop.min_delta if settings.early_stop else 0.0
    progress.stopped_early = progress.stopped_early and patience is not None
    if progress.stopped_early:
        last = progress.step
    spikes = SpikeGuard(settings.spike, progress.losses)
    first = progress.step + 1
    exports = Exports(run.folder, run.config.checkpoint.export_every, total, work.export, run.say)
    record = RouterRecord(
        run.folder.router_choices, run.config.logging.router_choices_every, engine, run.context, after=progress.step
    )
    run.reporter.begin(progress.step, last, total)
    if progress.step >= last:
        run.say(f"nothing to train: the run is at step {progress.step} of {total}")

    def save() -> None:
        progress.losses = spikes.losses
        extra = {"progress": vars(progress), "data": work.stream.state_dict()}
        checkpoints.save(
            progress.step, engine, extra, protected=progress.best_step if run.config.checkpoint.best else None
        )

    try:
        with SignalWatch() as signals, watch:
            if progress.step == 0 and work.validation is not None:
                progress.first_val_loss = progress.last_val_loss = validate(work, watch).loss
            if progress.step == 0 and work.between is not None:
                work.between(0)
            for step in range(first, last + 1):
                profiler.begin(step)
                clock.start()
                watch.mark(step, "reading data")
                try:
                    microbatches = work.stream.next_step()
                except StopIteration:
                    raise UserError(
                        f"the training data of rank {run.place.rank} has run out at step {step} of {total}; every rank "
                        "needs data for all steps: lower train.steps, or mend the stream"
                    ) from None
                clock.data_ready()
                watch.mark(step, "computing")
                with record.of(step, microbatches):
                    loss = engine.accumulate(microbatches, finite.forward_step)
                grad_norm = engine.grad_norm()
                finite.check(step, loss, grad_norm)
                spike = spikes.judge(step, loss.loss)
                skipped = spike is not None and settings.spike.policy == "skip"
                rate = learning_rate(settings, total, step)
                watch.mark(step, "updating weights")
                engine.discard() if skipped else engine.apply(rate)
                figures, agreed = clock.finish(step, exports.noted(signals.noted))
                signal_number = exports.take(agreed)
                profiler.end(step)
                progress.step = step

                row = {"step": step, "loss": loss.loss, "grad_norm": grad_norm, "lr": rate} | figures | loss.metrics
                if work.figures is not None:
                    row |= work.figures(row)
                if spike is not None:
                    run.say(spike)
                    row["skipped"] = skipped
                if step == 1 and progress.first_val_loss is not None:
                    row["val_loss_before"] = progress.first_val_loss
                if work.validation is not None and _due(step, settings.validate_every, total):
                    held_out = validate(work, watch)
                    lowest = progress.note_validation(held_out.loss, min_delta)
                    row |= {"val_loss": held_out.loss, f"val_{work.unit}": held_out.tokens, "val_lowest": lowest}
                    progress.stopped_early = patience is not None and progress.stale >= patience and step < total
                watch.mark(step, "reporting")
                run.reporter.write(row)
                if work.between is not None:
                    watch.mark(step, "looking at the model")
                    work.between(step)
                if step == first:
                    run.say_kernels()

                checkpoints.poll()
                best = run.config.checkpoint.best and progress.best_step == step
                over = step == last or progress.stopped_early
                if over or best or signal_number or _due(step, run.config.checkpoint.every, total):
                    save()
                watch.mark(step, "writing the model")
                exports.at(step)
                if signal_number and not over:
                    checkpoints.finish()
                    raise Interrupted(signal_number)
                if progress.stopped_early:
                    break
            checkpoints.finish()
            if progress.stopped_early and first <= progress.step:
                run.say(
                    f"stopped early after step {progress.step} of {total}: {progress.stale} validations without a "
                    f"held-out loss below the {progress.best_val_loss:.4f} of step {progress.best_step}"
                )
            elif first <= last < total:
                run.say(
                    f"stopped after step {last} of {total} as train.stop_at says; saved; "
                    "the same command without it goes on"
                )
    except NumericalError as error:
        checkpoints.finish()
        last_good = checkpoints.latest()
        error.add_note(f"The last checkpoint is {last_good}." if last_good else "There is no checkpoint yet.")
        raise
    finally:
        profiler.close()
    if run.config.checkpoint.best and progress.finished(total):
        _take_best(run, engine, checkpoints, progress)
    return progress


def validate(work: Work, watch: HangWatch) -> StepLoss:
    """Mean loss over the held-out data. Collective."""
    assert work.validation is not None
    forward_step = watch.forward_step(work.forward_step)
    total, tokens = 0.0, 0
    for microbatches in work.validation():
        loss = work.engine.evaluate(microbatches, forward_step)
        total += loss.loss * loss.tokens
        tokens += loss.tokens
    return StepLoss(total / tokens if tokens else float("nan"), tokens)


def _take_best(run: Run, engine: Engine, checkpoints: Checkpointer, progress: Progress) -> None:
    """Give the engine the weights of the step with the lowest held-out loss, for the export that follows."""
    step = progress.best_step
    if step is None or step == progress.step:
        return
    path = checkpoints.of_step(step)
    if not Crew().on_first(path.is_dir):
        run.say(
            f"the checkpoint of step {step}, whose held-out loss was lowest, is gone: the last step's model is kept"
        )
        return
    checkpoints.load(engine, path, optimizer=False)
    run.say(f"the model is that of step {step}, whose held-out loss was lowest: {progress.best_val_loss:.4f}")


def _resume(run: Run, work: Work, checkpoints: Checkpointer) -> Progress:
    path = checkpoints.latest()
    loaded = None if path is None else checkpoints.load(work.engine, path)
    if loaded is None:
        return Progress()
    run.say(f"resuming after step {loaded['progress']['step']}, from {path}")
    work.stream.load_state_dict(loaded["data"])
    return Progress(**loaded["progress"])


def _due(step: int, every: int | None, total: int) -> bool:
    return step == total or (every is not None and step % every == 0)
