"""When encoder and pipeline work, on ranks of a pipeline whose encoder is apart: the encoder is never in its way."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest
import torch.distributed as dist
from vision_toys import Shown, batch_of

sys.path.insert(0, str(Path(__file__).parent))  # for `vision_cases`; ranks of the pool get the same path

from vision_cases import ONE, Case, engine_of, save_model

from loong_core.engine.components.engine import ComponentsEngine
from loong_core.parallel.layout import Layout
from loong_llm.recipes.next_token import next_token_loss
from loong_vlm.feeding import ImageFeeding
from loong_vlm.source import open_vision_model

STAGES = 2
MICROBATCHES = 8
ROUNDS = MICROBATCHES // STAGES  # a microbatch for each rank


@dataclass(frozen=True)
class Event:
    """Work of one rank, between two moments of a clock that the ranks share."""

    rank: int
    what: str
    number: int
    start: float
    stop: float


def watched_step(folder: Path) -> list[Event]:
    """What this rank does in a step of microbatches that show an image each."""
    source = open_vision_model(folder)
    engine, _ = engine_of(Case(STAGES, Layout(pipeline=STAGES), encoder=ONE), source)
    assert isinstance(engine, ComponentsEngine)
    batches = [batch_of([[3, Shown((1, 4, 4)), 2]], source.parts, seed) for seed in range(MICROBATCHES)]
    numbers = {id(batch.placeholders): number for number, batch in enumerate(batches)}
    events: list[Event] = []

    def note(what: str, number: int, start: float) -> None:
        events.append(Event(dist.get_rank(), what, number, start, monotonic()))

    class Watched(ImageFeeding):
        def encode(self, stage, chosen):
            start, first = monotonic(), numbers[id(chosen[0].batch.placeholders)]
            rows = super().encode(stage, chosen)
            note("encode", first // STAGES, start)
            rows.register_hook(lambda gradient: note("encoder backward", first // STAGES, monotonic()))
            return rows

        def fed(self, batch, features):
            note("arrived", numbers[id(batch.placeholders)] // STAGES, monotonic())
            return super().fed(batch, features)

    def forward_step(model, batch, hidden):
        start, number = monotonic(), numbers[id(batch.placeholders)]
        result = next_token_loss(model, batch, hidden)
        note("forward", number, start)
        output = result if model.head is None else result.loss_sum
        output.register_hook(lambda gradient: note("backward", number, monotonic()))
        return result

    (feeder,) = engine.feeders
    object.__setattr__(feeder, "feeding", Watched(source.parts, engine.context))
    dist.barrier()
    engine.accumulate(batches, forward_step)
    return events


@pytest.fixture(scope="module")
def events(ranks, tmp_path_factory):
    """Of all ranks, by when they began; printed as a table."""
    folder = save_model("qwen3", tmp_path_factory.mktemp("model"))
    found = [each for own in ranks.run(STAGES, watched_step, folder) for each in own]
    found.sort(key=lambda event: event.start)
    for each in found:
        milliseconds = 1000 * (each.start - found[0].start)
        print(f"{milliseconds:9.2f} ms  rank {each.rank}  {each.what} {each.number}")
    return found


def of(events, what, number=None, rank=None):
    return [
        each for each in events if each.what == what and number in (None, each.number) and rank in (None, each.rank)
    ]


@pytest.mark.parametrize("rank", range(STAGES))
def test_a_round_is_encoded_on_every_rank_while_the_one_before_travels(events, rank):
    for number in range(1, ROUNDS):
        (encoded,) = of(events, "encode", number, rank)
        assert encoded.start < min(event.start for event in of(events, "arrived", number - 1, rank))


def test_a_round_begins_before_the_microbatches_of_the_one_before_end(events):
    for number in range(1, ROUNDS):
        last = max(event.stop for event in of(events, "backward") if event.number // STAGES == number - 1)
        assert all(event.start < last for event in of(events, "encode", number))


@pytest.mark.parametrize("rank", range(STAGES))
def test_no_encoding_interrupts_the_pipeline(events, rank):
    begin = min(event.start for event in of(events, "forward", rank=rank))
    end = max(event.stop for event in of(events, "backward", rank=rank))
    between = {event.what for event in events if event.rank == rank and begin <= event.start <= end}
    assert between == {"forward", "backward"}
    assert len(of(events, "forward", rank=rank)) == len(of(events, "backward", rank=rank)) == MICROBATCHES


@pytest.mark.parametrize("rank", range(STAGES))
def test_every_rank_encodes_and_runs_the_encoders_backward_once_a_round(events, rank):
    for what in ("encode", "encoder backward"):
        assert [event.number for event in of(events, what, rank=rank)] == list(range(ROUNDS))
