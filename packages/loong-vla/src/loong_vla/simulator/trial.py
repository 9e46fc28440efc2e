"""A policy tried in a world: many episodes side by side, how many succeed, and a video of some."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loong_vla.data.video_writer import write_video
from loong_vla.policy_runner import PolicyRunner
from loong_vla.simulator.environment import Environment

_SHOWN = 8
"""Episodes in a video."""


@dataclass(frozen=True)
class Trial:
    """How it went.

    Attributes:
        seeds: of the episodes.
        succeeded: which of them ended well.
        steps: actions taken in each.
    """

    seeds: list[int]
    succeeded: list[bool]
    steps: list[int]

    @property
    def success_rate(self) -> float:
        """Share of episodes that ended well."""
        return sum(self.succeeded) / len(self.succeeded)


def try_policy(
    runner: PolicyRunner,
    make: Callable[[], Environment],
    seeds: Sequence[int],
    *,
    n_action_steps: int | None = None,
    blank_pictures: bool = False,
    video: Path | None = None,
) -> Trial:
    """Run a policy for one episode a seed; all look at the same time, so that the policy is asked once for all.

    Args:
        runner: the policy.
        make: a world.
        seeds: of the episodes.
        n_action_steps: actions carried out before it looks again; the policy's own number by default.
        blank_pictures: whether it is shown black pictures, to find out whether it looks at all.
        video: where to show the first episodes, if anywhere.
    """
    worlds = [make() for _ in seeds]
    seen = [world.reset(seed) for world, seed in zip(worlds, seeds, strict=True)]
    ended, succeeded, steps = [False] * len(seeds), [False] * len(seeds), [0] * len(seeds)
    planned: list[deque[NDArray[np.float32]]] = [deque() for _ in seeds]
    film = [_side_by_side(worlds, ended, succeeded)] if video is not None else []
    while not all(ended):
        asking = [n for n, queue in enumerate(planned) if not queue and not ended[n]]
        if asking:
            pictures = [_shown(dict(seen[n].pictures), blank_pictures) for n in asking]
            chunks = runner.act(pictures, [seen[n].state for n in asking], [seen[n].task for n in asking])
            for n, chunk in zip(asking, chunks, strict=True):
                planned[n].extend(chunk[: n_action_steps or runner.config.n_action_steps])
        for n, world in enumerate(worlds):
            if not ended[n]:
                seen[n], ended[n], succeeded[n] = world.step(planned[n].popleft())
                steps[n] += 1
        if video is not None:
            film.append(_side_by_side(worlds, ended, succeeded))
    if video is not None:
        write_video(video, [*film, *[film[-1]] * worlds[0].fps], worlds[0].fps)
    return Trial(list(seeds), succeeded, steps)


def _shown(pictures: dict[str, NDArray[np.uint8]], blank: bool) -> dict[str, NDArray[np.uint8]]:
    return {camera: np.zeros_like(each) for camera, each in pictures.items()} if blank else pictures


def _side_by_side(worlds: Sequence[Environment], ended: Sequence[bool], succeeded: Sequence[bool]) -> NDArray[np.uint8]:
    """The first worlds in rows of four; a frame tells how each ended: green for well, red for not."""
    tiles = []
    for world, over, well in list(zip(worlds, ended, succeeded, strict=True))[:_SHOWN]:
        tile = np.pad(world.draw(), ((4, 4), (4, 4), (0, 0)), constant_values=255)
        if over:
            edge = np.ones(tile.shape[:2], bool)
            edge[4:-4, 4:-4] = False
            tile[edge] = (40, 180, 60) if well else (220, 40, 40)
        tiles.append(tile)
    tiles += [np.full_like(tiles[0], 255)] * (-len(tiles) % 4)
    rows = [np.concatenate(tiles[first : first + 4], axis=1) for first in range(0, len(tiles), 4)]
    return np.concatenate(rows)
