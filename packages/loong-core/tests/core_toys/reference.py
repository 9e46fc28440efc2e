"""Training in plain PyTorch, the whole batch in one piece: what every engine and layout must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from core_toys.model import LAYERS, ToyStage, forward_step, microbatch
from loong_core.engine.base import LossTerms
from loong_core.engine.settings import EngineSettings


class PlainTraining:
    """`torch.optim.AdamW` over the toy model, with `clip_grad_norm_`."""

    def __init__(self, settings: EngineSettings, *, tied: bool = False, dtype: torch.dtype = torch.float32) -> None:
        self.model = ToyStage(range(LAYERS), dtype, tied=tied)
        self.settings = settings
        named = list(self.model.named_parameters())
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for n, p in named if settings.decays(n, p)], "weight_decay": settings.weight_decay},
                {"params": [p for n, p in named if not settings.decays(n, p)], "weight_decay": 0.0},
            ],
            betas=settings.betas,
            eps=settings.eps,
        )

    def step(self, step: int, global_batch: int, lr: float | None, length: int = 10) -> tuple[float, float]:
        """One step over a global batch; returns its loss and gradient norm. Without `lr` nothing is updated."""
        self.optimizer.zero_grad()
        terms = [
            forward_step(self.model, microbatch(number, length), None)
            for number in range(step * global_batch, (step + 1) * global_batch)
        ]
        terms = [term for term in terms if isinstance(term, LossTerms)]
        loss = torch.stack([term.loss_sum for term in terms]).sum() / sum(int(term.tokens) for term in terms)
        loss.backward()
        limit = self.settings.clip_grad if self.settings.clip_grad and lr is not None else float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        if lr is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
            for state in self.optimizer.state.values():
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name] = state[name].to(self.settings.moments_dtype).float()
        return loss.item(), norm.item()

    def weights(self) -> dict[str, Tensor]:
        """Values by the names of the outside world."""
        return by_canonical_name({name: parameter.detach() for name, parameter in self.model.named_parameters()})

    def gradients(self) -> dict[str, Tensor]:
        """Gradients by the names of the outside world."""
        return by_canonical_name({name: p.grad for name, p in self.model.named_parameters() if p.grad is not None})


def by_canonical_name(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Split the fused matrix and rename, written out independently of the weight map."""
    found = {}
    for name, value in values.items():
        if name.endswith("gate_up.weight"):
            prefix = "model." + name.removesuffix("gate_up.weight")
            found[prefix + "gate.weight"], found[prefix + "up.weight"] = value.chunk(2)
        elif name == "embedding.weight":
            found["model.embed.weight"] = value
        elif name == "head.weight":
            found["lm_head.weight"] = value
        else:
            found["model." + name] = value
    return found
