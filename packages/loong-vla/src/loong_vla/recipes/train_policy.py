"""Training a policy on recordings: datasets to batches to the loss of flow matching, on the common training loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from loong_core.data.read_ahead import ReadAhead
from loong_core.train.loop import Progress, Work, train
from loong_core.train.run import Run, open_run
from loong_vla.data.stream import RobotStream, held_out_steps
from loong_vla.data.video import CorruptFrame
from loong_vla.lerobot_folder.policy_folder import write_policy
from loong_vla.recipes.adapters import adapter_settings, merged
from loong_vla.recipes.policy_model import open_policy_source, trained_policy
from loong_vla.recipes.training_config import PolicyTrainingConfig
from loong_vla.recipes.training_data import data_size, open_data

POLICY_FOLDER = "pretrained_model"
"""The trained policy's folder within the run folder, called as lerobot calls it."""


def train_policy(config: PolicyTrainingConfig) -> Progress:
    """Run `config` on this rank, from its last checkpoint if it has one. Collective over all ranks.

    Leaves `pretrained_model/` in the run folder when the last step has been taken.
    """
    with open_run(config) as run:
        source = open_policy_source(config)
        settings, place = config.train, run.context.data
        data = open_data(config.data, source.config, source.folder.statistics, check_videos=False)
        source = source.for_embodiments(list(data.statistics))
        policy, family = source.config, source.family
        for warning in data.warnings:
            run.say(f"warning: {warning}")
        engine = trained_policy(run, config, source)
        parameters = sum(each.numel() for each in engine.stages[0].parameters())
        run.say(f"policy: {policy.kind} of {config.model.source}, {parameters:,} parameters, {config.precision}")
        run.say(f"data: {data_size(data)}")

        batches: dict[str, Any] = {
            "global_batch_size": settings.global_batch_size,
            "micro_batch_size": settings.micro_batch_size,
            "data_rank": place.rank,
            "data_size": place.size,
        }
        stream = RobotStream(
            data.train,
            data.weights,
            family.collator(policy, source.tokenizer, config.seed, config.data.augmentation),
            seed=config.seed,
            corrupt=config.data.corrupt_frames,
            skipped=_skip_report(run),
            **batches,
        )
        plain = family.collator(policy, source.tokenizer, config.seed, None)

        def validation() -> Iterator[list[Any]]:
            return held_out_steps(data.held_out, plain, steps=settings.validation_steps, **batches)

        def export(target: Path) -> None:
            """Write the policy as it is. Collective."""
            pieces = engine.weight_pieces()
            if config.lora is not None:
                pieces = merged(pieces, adapter_settings(config.lora, config.seed).scale, run.context)
            write_policy(
                target,
                policy,
                pieces,
                run.context,
                run.dtype,
                data.statistics,
                source.tokenizer,
                source.folder,
            )

        total_steps = settings.steps or stream.steps_for(settings.epochs or 1)
        run.say(f"{total_steps} steps of {settings.global_batch_size} samples")
        cameras = max(len(each.cameras) for each in data.train)
        with closing(ReadAhead(stream)) as steps:
            progress = train(
                run,
                Work(
                    engine=engine,
                    stream=steps,
                    forward_step=family.loss,
                    total_steps=total_steps,
                    units_per_step=settings.global_batch_size,
                    flops_per_unit=family.flops(engine.stages[0], cameras, policy.prompt_length),
                    validation=validation if data.held_out else None,
                    unit="samples",
                    export=export,
                ),
            )
        if progress.step == total_steps or progress.stopped_early:
            target = run.folder.root / POLICY_FOLDER
            export(target)
            run.say(f"policy written to {target}")
    return progress


def _skip_report(run: Run) -> Any:
    """Tells of samples that are left out: the first ten, then every hundredth."""

    def tell(error: CorruptFrame, count: int) -> None:
        if count <= 10 or count % 100 == 0:
            run.say(f"warning: sample {count} left out: {error}")

    return tell
