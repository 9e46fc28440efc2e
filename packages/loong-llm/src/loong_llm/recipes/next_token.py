"""The loss of every stage: how well the next token is predicted where there is a label."""

from __future__ import annotations

from torch import Tensor, nn

from loong_core.data.batch import IGNORED_LABEL, PackedBatch
from loong_core.engine.base import LossTerms


def next_token_loss(model: nn.Module, batch: PackedBatch, hidden: Tensor | None) -> LossTerms | Tensor:
    """Summed cross-entropy of a microbatch's labels; on a pipeline stage without head its hidden states."""
    output = model(batch.to(next(model.parameters()).device, non_blocking=True), hidden)
    if model.head is None:
        return output
    return LossTerms(output.sum(), (batch.labels != IGNORED_LABEL).sum().to(output.device))
