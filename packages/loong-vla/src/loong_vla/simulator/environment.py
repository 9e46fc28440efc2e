"""What a world in which policies are tried has to offer, and which worlds there are.

Packages add worlds by the entry-point group `loong.environments`; an entry is called without arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loong_core.errors import UserError

ENTRY_POINT_GROUP = "loong.environments"


@dataclass(frozen=True, eq=False)
class Observation:
    """What a robot perceives.

    Attributes:
        pictures: by camera, `[height, width, 3]` uint8.
        state: `[width]` float32.
        task: what is asked for.
    """

    pictures: Mapping[str, NDArray[np.uint8]]
    state: NDArray[np.float32]
    task: str


class Environment(Protocol):
    """A world with one robot."""

    fps: int
    """Actions a second."""
    max_steps: int
    """Actions after which an episode is over."""

    def reset(self, seed: int) -> Observation:
        """A new episode, decided by the seed."""
        ...

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, bool, bool]:
        """Carry out an action; gives what is seen then, whether the episode is over, and whether the task is done."""
        ...

    def draw(self) -> NDArray[np.uint8]:
        """The world as people want to see it, `[height, width, 3]`."""
        ...


def make_environment(name: str) -> Environment:
    """A world by its name.

    Raises:
        UserError: there is none of that name, or it needs what is not installed.
    """
    known = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"no environment is called {name!r}{hint} Known here: {', '.join(sorted(known))}")
    try:
        return known[name].load()()
    except ImportError as error:
        raise UserError(f"environment {name} needs {error.name}: pip install 'loong-vla[simulator]'") from error
