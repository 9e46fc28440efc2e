"""The numbers of an AdamW update, as implementations receive them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AdamWSettings:
    """See `loong_kernels.adamw` for the meaning of each."""

    step: int
    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    gradient_scale: float

    @property
    def kept(self) -> float:
        """What is left of a weight after decay."""
        return 1 - self.lr * self.weight_decay

    @property
    def step_size(self) -> float:
        """The learning rate with the first moment's bias taken out."""
        return self.lr / (1 - self.betas[0] ** self.step)

    @property
    def root_correction(self) -> float:
        """What the second moment's root is divided by for its bias."""
        return (1 - self.betas[1] ** self.step) ** 0.5
