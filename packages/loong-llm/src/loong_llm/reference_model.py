"""A model folder as transformers computes it, for whoever wants to see that it gives what ours gives."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from loong_core.data.batch import IGNORED_LABEL, PackedBatch
from loong_core.errors import UserError
from loong_core.nn.decoder import Decoder
from loong_llm.inference import OpenedModel


class ReferenceDecoder:
    """`AutoModelForCausalLM` with the face of our decoder: losses of the tokens of a packed batch.

    Raises:
        UserError: transformers does not open the folder.
    """

    def __init__(self, folder: str, device: torch.device, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM

        try:
            model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        except (ValueError, KeyError, OSError) as error:
            raise UserError(f"transformers does not open {folder}: {error}") from error
        self.model = model.to(device).eval()

    def __call__(self, batch: PackedBatch) -> Tensor:
        """Loss of each token, `[tokens]` float32, 0 where it has no label; sequences are run one by one."""
        losses = []
        for start, stop in pairwise(batch.cu_seqlens.tolist()):
            logits = self.model(input_ids=batch.tokens[None, start:stop]).logits[0].float()
            losses.append(cross_entropy(logits, batch.labels[start:stop], ignore_index=IGNORED_LABEL, reduction="none"))
        return torch.cat(losses)


def as_transformers_computes(model: OpenedModel, folder: str) -> OpenedModel:
    """The same opened model with transformers' class in place of ours; it can be evaluated, not generate."""
    dtype = next(model.decoder.parameters()).dtype
    return replace(model, decoder=cast(Decoder, ReferenceDecoder(folder, model.device, dtype)))
