"""A model that many ranks hold, written as one Hugging Face folder.

The ranks tell each other which boxes they hold, agree on who writes which file, and send the boxes of one tensor after
the other to its file's writer. No rank holds more than its own share and one whole tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from loong_core.checkpoint.hf_format import TRANSFORMERS, FolderKind
from loong_core.checkpoint.hf_writer import DEFAULT_SHARD_SIZE, FolderWriter, Shard, plan_shards
from loong_core.checkpoint.pieces import Piece, StatePiece
from loong_core.errors import LoongError, UserError
from loong_core.parallel.context import ParallelContext


@torch.no_grad()
def export_hf(
    folder: Path | str,
    hf_config: Mapping[str, Any],
    pieces: Iterable[StatePiece],
    context: ParallelContext,
    dtype: torch.dtype,
    tokenizer_dir: Path | None = None,
    *,
    companions: Path | None = None,
    beside: Path | None = None,
    max_shard_size: int = DEFAULT_SHARD_SIZE,
    replace: bool = False,
    kind: FolderKind = TRANSFORMERS,
) -> None:
    """Write a model folder that transformers opens. Collective over the context's ranks; all see the same folder.

    Args:
        folder: where it is to appear, complete, at the end.
        hf_config: its `config.json`; the dtype is set to `dtype`.
        pieces: this rank's weights; together the ranks hold every element, copies are fine.
        context: whose ranks take part.
        dtype: of the files.
        tokenizer_dir: folder whose tokenizer is copied; by default that of `companions`.
        companions: the model folder training began from, whose generation config is copied, if any.
        beside: folder whose every file goes into it too.
        max_shard_size: bytes of a file.
        replace: whether a folder that is there gives way.
        kind: whose convention it follows; `hf_config` is written as it is where that is not transformers'.

    Raises:
        UserError: on every rank, if the folder is taken.
        LoongError: on every rank, if any rank could not write, or the pieces do not make whole tensors.
    """
    exchange = _Exchange(context, pieces, dtype)
    writer = FolderWriter(folder, replace=replace, kind=kind)
    shards = plan_shards({name: (shape, dtype) for name, shape in exchange.shapes().items()}, max_shard_size, kind)
    exchange.together(writer.begin if exchange.rank == 0 else None)
    failure: OSError | None = None
    for number, shard in enumerate(shards):
        owner = number % exchange.size
        failure = _transfer(writer, shard, exchange, owner, failure)
    exchange.together(None, failure)
    exchange.together(
        (lambda: writer.publish(shards, hf_config, companions, tokenizer_dir, beside)) if exchange.rank == 0 else None
    )


def _transfer(
    writer: FolderWriter, shard: Shard, exchange: _Exchange, owner: int, failure: OSError | None
) -> OSError | None:
    """Bring one file's tensors to its owner, who writes them; a failure to write leaves no one waiting."""
    arriving = exchange.arriving(shard, owner)
    if exchange.rank == owner and failure is None:
        try:
            writer.write_shard(shard, lambda _: next(arriving))
        except OSError as error:
            failure = error
    for _ in arriving:  # the others still send
        pass
    return failure


class _Exchange:
    """Who holds what, and the means to bring it together."""

    def __init__(self, context: ParallelContext, pieces: Iterable[StatePiece], dtype: torch.dtype) -> None:
        self.rank, self.size = context.rank, context.world_size
        self._first = context.first_rank
        self._group: dist.ProcessGroup | None = None
        if self.size > 1 and self.size != dist.get_world_size():
            ranks = list(range(self._first, self._first + self.size))
            self._group = dist.new_group(ranks, use_local_synchronization=True)  # type: ignore[assignment]
        self._device = context.device
        self._dtype = dtype
        self._held = {state.piece: state.tensor for state in pieces if 0 not in state.piece.sizes}
        self._holders: dict[str, dict[Piece, int]] = {}
        for rank, boxes in enumerate(self._everyones(list(self._held))):
            for piece in boxes:
                self._holders.setdefault(piece.name, {}).setdefault(piece, rank)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, numbers within names in order.

        Raises:
            LoongError: if boxes of a tensor are missing or overlap.
        """
        found = {name: next(iter(boxes)).global_shape for name, boxes in self._holders.items()}
        wrong = [
            f"{name}: {held} of {prod(found[name])} elements"
            for name, boxes in self._holders.items()
            if (held := sum(prod(piece.sizes) for piece in boxes)) != prod(found[name])
        ]
        if wrong:
            raise LoongError("the ranks do not hold each element of the model just once: " + "; ".join(wrong))
        return {name: found[name] for name in sorted(found, key=_natural)}

    def arriving(self, shard: Shard, owner: int) -> Iterator[Tensor]:
        """The whole tensors of a file, one after the other; what ranks other than `owner` get means nothing."""
        for name in shard.tensors:
            yield self._gather(self._holders[name], owner)

    def together(self, action: Callable[[], None] | None, failure: Exception | None = None) -> None:
        """Run an action (on the ranks that have one) and fail on every rank if any rank fails."""
        try:
            if action is not None and failure is None:
                action()
        except (OSError, LoongError) as error:
            failure = error
        mine = None if failure is None else (f"rank {self.rank}: {failure}", isinstance(failure, UserError))
        failures = [each for each in self._everyones(mine) if each is not None]
        if failures:
            kind = UserError if all(user for _, user in failures) else LoongError
            raise kind("could not write the model: " + "; ".join(text for text, _ in failures))

    def _gather(self, boxes: Mapping[Piece, int], owner: int) -> Tensor:
        """The tensor made of `boxes` on `owner`; each other holder sends its boxes there."""
        if len(boxes) == 1 and boxes.get(piece := next(iter(boxes))) == owner == self.rank:
            return self._values(piece)
        whole = torch.empty(0)
        if self.rank == owner:
            whole = torch.empty(next(iter(boxes)).global_shape, dtype=self._dtype, device=self._device)
        for piece, holder in boxes.items():
            if holder == owner:
                if self.rank == owner:
                    whole[piece.slices] = self._values(piece)
            elif self.rank == holder:
                dist.send(self._values(piece), self._first + owner, self._group)
            elif self.rank == owner:
                part = torch.empty(piece.sizes, dtype=self._dtype, device=self._device)
                dist.recv(part, self._first + holder, self._group)
                whole[piece.slices] = part
        return whole

    def _values(self, piece: Piece) -> Tensor:
        tensor = self._held[piece]
        if tensor is None:
            raise ValueError(f"the piece of {piece.name} that is to be exported has no values")
        return tensor.to(self._device, self._dtype).contiguous()

    def _everyones(self, mine: Any) -> list[Any]:
        """Each rank's value, by rank."""
        if self.size == 1:
            return [mine]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, mine, group=self._group)
        return found


def _natural(name: str) -> list[Any]:
    """Sort key that puts `layers.2` before `layers.10`."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
