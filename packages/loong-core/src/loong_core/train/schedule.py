"""The learning rate of each step: linear warm-up, then cosine, linear, warm-up-stable-decay, or constant."""

from __future__ import annotations

import math

from loong_core.config.sections import TrainSection


def learning_rate(train: TrainSection, total_steps: int, step: int) -> float:
    """The rate of step `step`, counted from 1, of a run of `total_steps`.

    Warm-up reaches `lr` at step `warmup_steps`. A decay over D steps moves from `lr` towards `min_lr` by the fraction
    p = k / D at its k-th step: linearly, or by (1 - cos(pi p)) / 2 for `cosine`; `wsd` (arXiv:2404.06395) decays
    linearly.
    """
    if step <= train.warmup_steps:
        return train.lr * step / train.warmup_steps
    if train.schedule == "constant":
        return train.lr
    after_warmup = total_steps - train.warmup_steps
    if train.schedule == "wsd":
        decay = train.decay_steps or max(1, min(after_warmup, round(total_steps / 10)))
        begin = total_steps - decay
    else:
        decay = train.decay_steps or after_warmup
        begin = train.warmup_steps
    progress = min(1.0, max(0.0, (step - begin) / decay))
    fallen = (1 - math.cos(math.pi * progress)) / 2 if train.schedule == "cosine" else progress
    return train.lr + (train.min_lr - train.lr) * fallen
