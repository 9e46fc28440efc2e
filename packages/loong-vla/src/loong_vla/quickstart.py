"""The quickstart: from nothing to a robot that does what it is told, in minutes on a CPU and without network.

A scripted expert shows how in a physics simulator, what it did is written as a LeRobot dataset, a small policy of
Pi0.5's shape is trained on it, and tried before, after, and with its eyes shut.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import yaml

from loong_vla.data.writer import write_dataset
from loong_vla.recipes.train_policy import POLICY_FOLDER
from loong_vla.simulator.demonstrations import demonstrate
from loong_vla.simulator.small_policy import write_small_policy
from loong_vla.simulator.touch_world import TouchWorld

DEMONSTRATIONS = 1500
EPISODES = range(1_000_000, 1_000_050)
"""Seeds of the episodes in which the policy is tried, none of which was demonstrated."""


@dataclass(frozen=True)
class QuickstartReport:
    """What came out.

    Attributes:
        expert: success rate of the expert.
        before: of the policy before training.
        after: after it.
        blanked: after it, shown black pictures.
    """

    expert: float
    before: float
    after: float
    blanked: float


def run_file(output: Path) -> dict:
    """The run file of the quickstart."""
    return {
        "output": str(output),
        "model": str(output / "policy"),
        "data": {"train": [str(output / "demonstrations")], "validation_fraction": 0.02, "picture_cache_mb": 256},
        "train": {
            "steps": 500,
            "global_batch_size": 64,
            "micro_batch_size": 32,
            "lr": 2e-3,
            "warmup_steps": 30,
            "min_lr": 5e-5,
            "weight_decay": 0.01,
            "validate_every": 250,
        },
        "checkpoint": {"every": 250},
        "logging": {"every": 50},
    }


def prepare(output: Path) -> Path:
    """Write demonstrations (unless they are there), the policy's folder and the run file, whose path is returned."""
    output.mkdir(parents=True, exist_ok=True)
    dataset, expert = output / "demonstrations", output / "expert.json"
    if not dataset.exists() or not expert.exists():
        begin = perf_counter()
        episodes, rate = demonstrate(range(DEMONSTRATIONS))
        write_dataset(dataset, episodes, TouchWorld.fps, "touch")
        expert.write_text(json.dumps({"success_rate": rate}) + "\n", encoding="utf-8")
        frames = sum(len(each.states) for each in episodes)
        print(
            f"expert: {rate:.0%} of {DEMONSTRATIONS} episodes succeeded; {frames:,} frames written to {dataset} "
            f"({perf_counter() - begin:.0f} s)",
            flush=True,
        )
    write_small_policy(output / "policy")
    file = output / "quickstart.yaml"
    file.write_text(yaml.safe_dump(run_file(output), sort_keys=False), encoding="utf-8")
    return file


def report(output: Path) -> QuickstartReport:
    """Try the policy, write `report.json` and videos, and tell."""
    from loong_vla.policy_runner import PolicyRunner
    from loong_vla.simulator.trial import try_policy

    folder = output / POLICY_FOLDER
    untrained = try_policy(PolicyRunner(folder, random=True), TouchWorld, EPISODES, video=output / "before.mp4")
    runner = PolicyRunner(folder)
    trained = try_policy(runner, TouchWorld, EPISODES, video=output / "after.mp4")
    blanked = try_policy(runner, TouchWorld, EPISODES, blank_pictures=True, video=output / "blanked.mp4")
    expert = json.loads((output / "expert.json").read_text(encoding="utf-8"))["success_rate"]
    found = QuickstartReport(expert, untrained.success_rate, trained.success_rate, blanked.success_rate)
    (output / "report.json").write_text(json.dumps(vars(found) | {"episodes": len(EPISODES)}, indent=2) + "\n")
    print(f"success in {len(EPISODES)} episodes that were not demonstrated:")
    print(f"  the expert             {found.expert:.0%} (of its demonstrations)")
    print(f"  before training        {found.before:.0%}")
    print(f"  after training         {found.after:.0%}")
    print(f"  with blanked pictures  {found.blanked:.0%}")
    print(f"videos: {output}/before.mp4, after.mp4, blanked.mp4")
    print(f"the policy, in lerobot's form: {folder}")
    return found
