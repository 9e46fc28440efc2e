"""Tables of the rotary embedding: frequencies as the papers define them, in float32 whatever the model's dtype."""

import math

import pytest
import torch

from loong_core.nn.decoder import Decoder
from loong_core.nn.decoder_config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    FeedForwardConfig,
    LinearScaling,
    Llama3Scaling,
    RotaryConfig,
)
from loong_core.nn.rotary import Rotary, inverse_frequencies
from loong_core.parallel.context import ParallelContext


def test_frequencies_are_a_geometric_series_of_the_base():
    expected = torch.tensor([10000 ** (-2 * i / 8) for i in range(4)])
    torch.testing.assert_close(inverse_frequencies(RotaryConfig(10000.0, 8)), expected)


def test_linear_scaling_divides_every_position():
    plain, scaled = (Rotary(RotaryConfig(100.0, 8, scaling)) for scaling in (None, LinearScaling(4.0)))
    positions = torch.arange(6)
    torch.testing.assert_close(
        scaled.tables(4 * positions, torch.float32)[1], plain.tables(positions, torch.float32)[1], rtol=0, atol=1e-6
    )


def test_llama3_scaling_stretches_long_waves_keeps_short_ones_and_blends_between():
    scaling = Llama3Scaling(8.0, 1.0, 4.0, original_max_position_embeddings=100)
    plain, scaled = inverse_frequencies(RotaryConfig(1e4, 16)), inverse_frequencies(RotaryConfig(1e4, 16, scaling))
    waves = 2 * math.pi / plain
    short, long = waves < 25, waves > 100
    assert torch.equal(scaled[short], plain[short])
    assert torch.equal(scaled[long], plain[long] / 8)
    between = ~short & ~long
    assert between.any()
    assert ((scaled < plain) & (scaled > plain / 8))[between].all()


def test_tables_of_a_float64_model_are_float64_and_of_a_bfloat16_model_float32():
    rotary = Rotary(RotaryConfig(1e4, 8))
    assert [rotary.tables(torch.arange(3), dtype)[0].dtype for dtype in (torch.float64, torch.bfloat16)] == [
        torch.float64,
        torch.float32,
    ]


def test_casting_a_model_leaves_its_frequencies_exact():
    rotary = RotaryConfig(1e4, 8)
    block = BlockConfig(AttentionConfig(2, 1, 8, rotary), FeedForwardConfig(8))
    model = Decoder(DecoderConfig(16, 11, (block,), 1e-6), ParallelContext.single()).to(torch.bfloat16)
    assert torch.equal(model._rotaries[rotary].frequencies, inverse_frequencies(rotary))


def test_along_several_axes_each_section_turns_by_its_own_position():
    plain, by_runs, by_turns = (
        Rotary(RotaryConfig(1e4, 16, None, sections, interleaved))
        for sections, interleaved in (((), False), ((4, 2, 2), False), ((4, 2, 2), True))
    )
    positions = torch.tensor([[5, 7, 9], [0, 3, 1]])
    single = [plain.tables(positions[:, axis], torch.float32)[0] for axis in range(3)]
    for rotary, axes in ((by_runs, [0, 0, 0, 0, 1, 1, 2, 2]), (by_turns, [0, 1, 2, 0, 1, 2, 0, 0])):
        expected = torch.stack([single[axis][:, number] for number, axis in enumerate(axes)], dim=1)
        assert torch.equal(rotary.tables(positions, torch.float32)[0], expected)
        same = positions[:, :1].expand(-1, 3)
        assert torch.equal(rotary.tables(same, torch.float32)[1], rotary.tables(positions[:, 0], torch.float32)[1])


def test_positions_along_several_axes_are_refused_by_a_model_of_one():
    with pytest.raises(ValueError, match="positions along 3 axes"):
        Rotary(RotaryConfig(1e4, 8)).tables(torch.zeros(2, 3, dtype=torch.int64), torch.float32)
