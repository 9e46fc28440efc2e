"""The work that every stack does: one Pi0.5, one batch of random samples."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from loong_vla.families.pi.config import GemmaSize, PiConfig, PiSizes, VisionSize

CAMERAS = ("observation.images.first", "observation.images.second")

TINY = PiSizes(
    language=GemmaSize(width=64, depth=2, mlp=128, heads=8, head_dim=16),
    expert=GemmaSize(width=32, depth=2, mlp=64, heads=8, head_dim=16),
    vision=VisionSize(hidden_size=32, intermediate_size=64, num_layers=2, num_heads=2, patch_size=14),
    vocab_size=512,
)


@dataclass(frozen=True)
class Work:
    """What is measured.

    Attributes:
        sizes: of the policy.
        batch: samples of a step.
        prompt: shortest and longest prompt, in tokens.
        device: `cuda` or `cpu`.
        compiled: whether layers (loong) or the whole forward (lerobot) are compiled.
        compile_mode: lerobot's.
    """

    sizes: PiSizes
    batch: int
    prompt: tuple[int, int]
    device: str
    compiled: bool
    compile_mode: str

    @property
    def config(self) -> PiConfig:
        """The policy."""
        return PiConfig(kind="pi05", cameras=CAMERAS, state_dim=8, action_dim=7, sizes=self.sizes)

    @property
    def layers(self) -> int:
        """Of both streams."""
        return self.sizes.language.depth

    @property
    def flops(self) -> float:
        """Of a step, as our form computes it; a stack that does more has no credit for it."""
        return self.batch * self.config.flops_per_sample(len(CAMERAS), sum(self.prompt) // 2)

    def prompt_lengths(self, step: int) -> np.ndarray:
        """Tokens of each sample's prompt."""
        return np.random.default_rng(step).integers(self.prompt[0], self.prompt[1] + 1, self.batch)


def shrunk(sizes: PiSizes, layers: int | None) -> PiSizes:
    """The same with fewer layers in both streams."""
    if layers is None:
        return sizes
    return replace(sizes, language=replace(sizes.language, depth=layers), expert=replace(sizes.expert, depth=layers))
