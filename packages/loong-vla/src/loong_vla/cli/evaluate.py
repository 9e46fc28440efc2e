"""`loong-vla eval POLICY --environment NAME`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    policy: Annotated[
        Path, typer.Argument(help="A pretrained_model folder, or the run folder it is in.", show_default=False)
    ],
    environment: Annotated[str, typer.Option(help="The world to try it in.")] = "touch",
    episodes: Annotated[int, typer.Option(min=1, help="How many episodes.")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="The first episode's; the others' follow.")] = 10_000,
    action_steps: Annotated[
        int | None, typer.Option(min=1, help="Actions before it looks again; the policy's own by default.")
    ] = None,
    blank_pictures: Annotated[bool, typer.Option(help="Show it black pictures.")] = False,
    video: Annotated[Path | None, typer.Option(help="An .mp4 file that shows the first episodes.")] = None,
    device: Annotated[str, typer.Option(help="auto, or a device that `loong devices` lists.")] = "auto",
    embodiment: Annotated[str | None, typer.Option(help="Of those the policy knows; the first by default.")] = None,
) -> None:
    """Try a policy in a simulator and tell its success rate."""
    from loong_vla.policy_runner import PolicyRunner
    from loong_vla.simulator.environment import make_environment
    from loong_vla.simulator.trial import try_policy

    make_environment(environment)
    runner = PolicyRunner(policy, device=device, embodiment=embodiment)
    trial = try_policy(
        runner,
        lambda: make_environment(environment),
        range(seed, seed + episodes),
        n_action_steps=action_steps,
        blank_pictures=blank_pictures,
        video=video,
    )
    typer.echo(
        f"{environment}: {sum(trial.succeeded)} of {episodes} episodes succeeded ({trial.success_rate:.0%}), "
        f"{sum(trial.steps) / episodes:.1f} actions each"
    )
    if video is not None:
        typer.echo(f"video: {video}")
