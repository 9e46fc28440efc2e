"""`touch`: a gripper among balls, seen from above, is to touch the coloured one and none of the grey ones.

Bodies move, collide and slow down by pymunk's rigid-body physics. Where the balls are is to be seen in the picture
only; the state is the gripper's own place. Touching a grey ball first is a failure.
"""

from __future__ import annotations

import math

import numpy as np
import pymunk
from numpy.typing import NDArray

from loong_vla.simulator.environment import Observation

CAMERA = "observation.images.top"
COLOURS: dict[str, tuple[int, int, int]] = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 80, 230)}
SIZE = 48
"""Height and width of the robot's picture, in pixels."""

_GRIPPER, _BALL, _CONTACT = 0.045, 0.085, 0.004
_FORCE, _SPEED = 12.0, 0.4
_SUBSTEPS = 5
_BALLS = 3
_BACKGROUND, _GRIPPER_COLOUR, _GREY = (235, 232, 225), (30, 30, 30), (150, 150, 150)


class TouchWorld:
    """A square of side 1 with walls, a gripper near its middle, and balls around it, the first of them coloured.

    An action is the velocity wanted, `[2]` in [-1, 1] of the highest speed; a motor of limited force brings it about.
    """

    fps = 10
    max_steps = 16

    def __init__(self) -> None:
        self._new_space()

    def reset(self, seed: int) -> Observation:
        """A new episode, decided by the seed."""
        random = np.random.default_rng(seed)
        self._new_space()
        self._colour = str(random.choice(list(COLOURS)))
        x, y = 0.5 + random.uniform(-0.12, 0.12, 2)
        self._gripper.position = float(x), float(y)
        turn = random.uniform(0, 2 * math.pi)
        for place, body in enumerate(self._balls):
            angle = turn + 2 * math.pi * place / _BALLS + random.uniform(-0.35, 0.35)
            distance = random.uniform(0.3, 0.38)
            body.position = 0.5 + distance * math.cos(angle), 0.5 + distance * math.sin(angle)
        self._steps, self.touched = 0, None
        return self._observe()

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, bool, bool]:
        """Carry out an action; gives what is seen then, whether the episode is over, and whether the task is done."""
        wanted = pymunk.Vec2d(*(float(each) for each in np.clip(action, -1, 1))) * _SPEED
        for _ in range(_SUBSTEPS):
            push = (wanted - self._gripper.velocity) * _FORCE * self._gripper.mass
            self._gripper.force = push.x, push.y
            self._space.step(1 / (self.fps * _SUBSTEPS))
            self._notice_touch()
        self._steps += 1
        over = self.touched is not None or self._steps >= self.max_steps
        return self._observe(), over, self.touched == 0

    @property
    def task(self) -> str:
        """What is asked for."""
        return f"touch the {self._colour} ball"

    def draw(self) -> NDArray[np.uint8]:
        """The world as people want to see it, `[192, 192, 3]`."""
        return self._draw(192)

    def expert_action(self) -> NDArray[np.float32]:
        """What somebody who knows where the balls are would do: head for the ball, and brake for nothing."""
        way = self._balls[0].position - self._gripper.position
        return np.array(way / max(way.length, 1e-6), np.float32)

    def _new_space(self) -> None:
        self._space = pymunk.Space()
        self._space.damping = 0.6
        corners = [(0, 0), (1, 0), (1, 1), (0, 1)]
        for start, end in zip(corners, corners[1:] + corners[:1], strict=True):
            wall = pymunk.Segment(self._space.static_body, start, end, 0.01)
            wall.elasticity = 0.4
            self._space.add(wall)
        self._gripper = self._disc(_GRIPPER, 1.0)
        self._balls = [self._disc(_BALL, 0.5) for _ in range(_BALLS)]
        self._colour, self._steps = "red", 0
        self.touched: int | None = None
        """Which ball was touched first."""

    def _disc(self, radius: float, mass: float) -> pymunk.Body:
        body = pymunk.Body(mass, pymunk.moment_for_circle(mass, 0, radius))
        shape = pymunk.Circle(body, radius)
        shape.friction, shape.elasticity = 0.5, 0.4
        self._space.add(body, shape)
        return body

    def _notice_touch(self) -> None:
        for number, body in enumerate(self._balls):
            gap = (body.position - self._gripper.position).length - _GRIPPER - _BALL
            if self.touched is None and gap <= _CONTACT:
                self.touched = number

    def _observe(self) -> Observation:
        place = np.array(self._gripper.position, np.float32)
        return Observation({CAMERA: self._draw(SIZE)}, place, self.task)

    def _draw(self, size: int) -> NDArray[np.uint8]:
        """Discs with soft edges on a plain ground."""
        centres = (np.arange(size) + 0.5) / size
        picture = np.empty((size, size, 3))
        picture[:] = _BACKGROUND
        colours = [COLOURS[self._colour], *[_GREY] * (_BALLS - 1)]
        discs = [(body.position, _BALL, colour) for body, colour in zip(self._balls, colours, strict=True)]
        for (x, y), radius, colour in [*discs, (self._gripper.position, _GRIPPER, _GRIPPER_COLOUR)]:
            distance = np.hypot(centres[None, :] - x, centres[:, None] - y)
            cover = np.clip((radius - distance) * size + 0.5, 0, 1)[..., None]
            picture += cover * (np.array(colour) - picture)
        return picture.round().astype(np.uint8)
