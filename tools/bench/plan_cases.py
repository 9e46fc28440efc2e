"""The steps that plans are measured by: some to fit the rates to, the others, of other shapes, to judge them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from loong_core.nn.decoder_config import DecoderConfig
from loong_core.parallel.layout import Layout
from loong_core.plan.workload import Workload
from loong_llm.model_config import read_model_config


@dataclass(frozen=True)
class Case:
    """One step to measure.

    Attributes:
        name: what it is called in tables.
        model: a named size.
        layers: how many of its layers.
        sequence: tokens of a sequence.
        batch: sequences of a microbatch.
        microbatches: of a step, on each data rank.
        packed: whether sequences are documents of unlike lengths that fill a microbatch of `batch * sequence` tokens.
        fitted: whether the rates are fitted to it; else it judges them.
        layout: degrees above 1.
    """

    name: str
    model: str
    layers: int
    sequence: int
    batch: int
    microbatches: int
    packed: bool = False
    fitted: bool = False
    layout: Mapping[str, int] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """How many it needs: all its degrees, data ranks among them."""
        data = self.layout.get("data", 1)
        return self.degrees.model * data

    @property
    def degrees(self) -> Layout:
        """The layout."""
        return replace(Layout(), **{name: degree for name, degree in self.layout.items() if name != "data"})

    def config(self) -> DecoderConfig:
        """The model, cut to its layers."""
        return read_model_config(self.model, {"num_hidden_layers": self.layers}).config

    def workload(self) -> Workload:
        """As plans take it."""
        return Workload(
            model=self.config(),
            sequence_length=self.sequence,
            global_batch_size=self.batch * self.microbatches * self.layout.get("data", 1),
            micro_batch_size=self.batch,
            packed=self.packed,
            attended=sum(length**2 for length in self.lengths()) / (self.batch * self.sequence**2),
            imbalance=1.0,
        )

    def lengths(self) -> list[int]:
        """Lengths of a microbatch's sequences; packed ones are of 1/2, 1/4, 1/8 and 1/8 of a sequence."""
        if not self.packed:
            return [self.sequence] * self.batch
        parts = [self.sequence // 2, self.sequence // 4, self.sequence // 8]
        return [*parts, self.sequence - sum(parts)] * self.batch

    def about(self) -> dict[str, Any]:
        """For a record."""
        return {
            "case": self.name,
            "model": self.model,
            "layers": self.layers,
            "sequence": self.sequence,
            "batch": self.batch,
            "microbatches": self.microbatches,
            "packed": self.packed,
            "fitted": self.fitted,
            "layout": dict(self.layout),
        }


def _fit(name: str, model: str, layers: int, sequence: int, batch: int, microbatches: int, **more: Any) -> Case:
    return Case(name, model, layers, sequence, batch, microbatches, fitted=True, **more)


CASES = (
    _fit("8B", "qwen3-8b", 8, 8192, 1, 4),
    _fit("8B, short", "qwen3-8b", 4, 2048, 4, 2),
    _fit("8B, packed", "qwen3-8b", 4, 8192, 1, 2, packed=True),
    _fit("30B-A3B", "qwen3-30b-a3b", 8, 8192, 1, 4),
    _fit("30B-A3B, short", "qwen3-30b-a3b", 3, 4096, 2, 2),
    _fit("0.6B", "qwen3-0.6b", 28, 4096, 1, 4),
    _fit("0.6B, host-bound", "qwen3-0.6b", 28, 512, 1, 4),
    _fit("30B-A3B, host-bound", "qwen3-30b-a3b", 3, 512, 1, 4),
    Case("30B-A3B, 6 layers", "qwen3-30b-a3b", 6, 4096, 1, 4),
    Case("llama3.1-8B", "llama3.1-8b", 6, 8192, 1, 4),
    Case("qwen3-1.7B", "qwen3-1.7b", 28, 4096, 4, 2),
    Case("qwen3-1.7B, packed", "qwen3-1.7b", 14, 8192, 1, 3, packed=True),
    Case("qwen3-14B, long", "qwen3-14b", 4, 16384, 1, 2),
    Case("mixtral-8x7B", "mixtral-8x7b", 2, 8192, 1, 3),
    Case("qwen3-4B", "qwen3-4b", 12, 4096, 2, 3),
    Case("qwen3-235B-A22B", "qwen3-235b-a22b", 1, 4096, 1, 4),
    Case("qwen2.5-7B", "qwen2.5-7b", 6, 4096, 1, 6),
    Case("qwen3-32B", "qwen3-32b", 2, 4096, 2, 3),
    Case("8B tensor 2", "qwen3-8b", 8, 8192, 1, 4, layout={"tensor": 2}),
    Case("8B pipeline 2", "qwen3-8b", 8, 8192, 1, 4, layout={"pipeline": 2}),
    Case("8B context 2, ring", "qwen3-8b", 8, 8192, 1, 4, layout={"context": 2}),
    Case("8B context 2, heads", "qwen3-8b", 8, 8192, 1, 4, layout={"context": 2, "ulysses": 2}),
    Case("8B data 2", "qwen3-8b", 8, 8192, 1, 4, layout={"data": 2}),
    Case("30B-A3B expert 2", "qwen3-30b-a3b", 8, 8192, 1, 4, layout={"data": 2, "expert": 2}),
    Case("30B-A3B tensor 2, expert 2", "qwen3-30b-a3b", 8, 8192, 1, 4, layout={"tensor": 2, "expert": 2}),
)
"""Judging cases differ from fitted ones in model, shape, batch or sequence, and in all layouts of several ranks."""
