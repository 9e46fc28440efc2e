"""A pipeline stage as megatron-core's schedules see it.

Schedules hand hidden states to a module by `set_input_tensor` and call a step function that returns an output and a
loss function. The project's stages are plain modules and its recipes plain functions; this is the seam between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from loong_core.engine.base import ForwardStep, LossTerms
from loong_core.engine.reduction import LossTally

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig


class MegatronStage(nn.Module):
    """A plain module with the attributes that megatron-core asks of a model chunk.

    The module is held as `stage`, not as `module`: megatron searches for attributes down a chain of `module`s, and
    must not find those of the project's own models.

    Args:
        stage: the plain module.
        config: megatron's, shared by all stages of the rank.
        first: whether the stage embeds (the first of the model).
        last: whether it computes the loss (the last of the model).
    """

    def __init__(self, stage: nn.Module, config: TransformerConfig, *, first: bool, last: bool) -> None:
        super().__init__()
        from megatron.core.enums import ModelType

        self.stage = stage
        self.config = config
        self.model_type = ModelType.encoder_or_decoder
        self.pre_process = first
        self.post_process = last
        self.share_embeddings_and_output_weights = getattr(stage, "tied_table", None) is not None
        self._received: Tensor | None = None

    def set_input_tensor(self, received: list[Tensor | None] | Tensor | None) -> None:
        """Take what the previous stage sent, `[tokens, 1, hidden_size]`, None on the first stage."""
        self._received = received[0] if isinstance(received, list) else received

    def take_hidden(self) -> Tensor | None:
        """What was received, `[tokens, hidden_size]`."""
        received, self._received = self._received, None
        return None if received is None else received.squeeze(1)

    def shared_embedding_or_output_weight(self) -> nn.Parameter | None:
        """The table whose gradient is summed over first and last stage."""
        return getattr(self.stage, "tied_table", None)


ScheduleStep = Callable[[Iterator[Any], nn.Module], tuple[Tensor, Callable[..., Any]]]


def schedule_step(forward_step: ForwardStep, tally: LossTally, counted: int) -> ScheduleStep:
    """A recipe's forward in the form that megatron-core's schedules call.

    Args:
        forward_step: the recipe's.
        tally: of the loss; the first `counted` microbatches are added to it.
        counted: how many that are.
    """

    def step(batches: Iterator[Any], model: nn.Module) -> tuple[Tensor, Callable[..., Any]]:
        chunk = stage_of(model)
        result = forward_step(chunk.stage, next(batches), chunk.take_hidden())
        if isinstance(result, LossTerms):
            if not chunk.post_process:
                raise TypeError("the forward step returned LossTerms on a stage that is not the last")
            if tally.microbatches < counted:
                tally.add(result)
            # Megatron sums token counts in an int32; the tally's own count is the one that is used.
            return result.loss_sum, lambda loss: (loss, torch.zeros((), dtype=torch.int), {})
        if chunk.post_process:
            raise TypeError("the forward step returned hidden states on the last stage; it returns LossTerms there")
        return result.unsqueeze(1), lambda output: output

    return step


def stage_of(model: nn.Module) -> MegatronStage:
    """The stage inside megatron's wrappers."""
    while not isinstance(model, MegatronStage):
        model = model.module  # type: ignore[assignment]
    return model
