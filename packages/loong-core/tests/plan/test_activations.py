"""What a plan counts of activations is what autograd holds, and how the cross-entropy divides its logits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from plan_toys import THIRTY_BILLION, TOKENS, TOYS, work

from loong_core.parallel.layout import Layout
from loong_core.plan import activations
from loong_core.plan.activations import BLOCK, FEED_FORWARD, block_held, head_held, logits_chunk
from loong_core.plan.workload import Share
from loong_kernels.ops.linear_cross_entropy.chunk_plan import ACCELERATOR_BUDGET, plan_chunks

PLENTY = 1e12


@pytest.fixture(scope="module")
def measured():
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("saved_bytes.py")],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def share_of(config, layout=None, tokens=TOKENS):
    return Share.of(work(config, sequence_length=tokens), layout or Layout())


@pytest.mark.parametrize("name", TOYS)
def test_a_block_saves_what_autograd_holds_of_it(measured, name):
    planned = block_held(TOYS[name].blocks[0], 64, share_of(TOYS[name]), 1.0).saved
    # The order of the experts' rows is kept outside of what autograd is shown.
    assert planned == pytest.approx(measured[name][0], rel=0.02 if name == "mixture" else 0)


@pytest.mark.parametrize("name", TOYS)
def test_a_block_saves_less_of_the_parts_that_are_recomputed(measured, name):
    held = block_held(TOYS[name].blocks[0], 64, share_of(TOYS[name]), 1.0)
    for part in held.parts:
        found = measured[name + part if part else f"{name}."]
        if name == "mixture" and part in (BLOCK, FEED_FORWARD):  # operations hold the order of the experts' rows apart
            found += TOKENS * 2 * 2 * 8
        assert held.saved - held.parts[part] == pytest.approx(found, rel=0.03 if name == "mixture" else 0), part


@pytest.mark.parametrize("name", TOYS)
def test_the_head_saves_what_autograd_holds_besides_blocks(measured, name):
    planned = head_held(TOYS[name], share_of(TOYS[name]), PLENTY).saved
    assert planned == pytest.approx(measured[name][1], rel=0.05)


@pytest.mark.parametrize(("tokens", "rows"), [(8192, 151_936), (65_536, 32_000), (1000, 257), (4096, 75_968)])
def test_logits_are_divided_as_the_kernel_divides_them(tokens, rows):
    plan = plan_chunks(tokens, rows, ACCELERATOR_BUDGET, 4, None)
    assert logits_chunk(tokens, rows) == (plan.tokens[0][1], plan.rows[0][1])


def test_exponentials_are_kept_up_to_the_kernels_share_of_the_device():
    pytest.importorskip("triton")
    from loong_kernels.ops.linear_cross_entropy import kept, triton_kept

    assert activations.KEPT_SHARE == triton_kept.KEPT_SHARE
    assert activations.KEPT_MULTIPLE == kept.ROW_MULTIPLE


def test_a_head_whose_exponentials_are_too_many_keeps_none_of_them():
    share = share_of(THIRTY_BILLION, tokens=65_536)
    little, much = (head_held(THIRTY_BILLION, share, memory).saved for memory in (80e9, 1e15))
    assert much - little == 65_536 * 151_936 * 2


def test_tensor_ranks_share_all_activations_as_they_gather_tokens_anew():
    block = THIRTY_BILLION.blocks[0]
    alone = block_held(block, 2048, share_of(THIRTY_BILLION), 1.0).saved
    shared = block_held(block, 2048, share_of(THIRTY_BILLION, Layout(tensor=4)), 1.0).saved
    whole = 128 * 2048 * 4  # the router's weight, widened
    assert shared == pytest.approx((alone - whole) / 4 + whole, rel=0.001)


def test_matrices_that_read_gathered_tokens_together_keep_them():
    block = THIRTY_BILLION.blocks[0]
    kv_heads = block.mixer.num_kv_heads
    apart, together = (
        block_held(block, 2048, share_of(THIRTY_BILLION, Layout(tensor=tensor)), 1.0).saved
        for tensor in (kv_heads, 2 * kv_heads)
    )
    assert together > apart / 2 + TOKENS * 2048 * 2 * 0.8


def test_rows_of_the_busiest_expert_rank_count():
    share = share_of(THIRTY_BILLION, Layout(expert=8))
    even, uneven = (block_held(THIRTY_BILLION.blocks[0], 2048, share, factor).saved for factor in (1.0, 1.5))
    assert uneven - even == 0.5 * TOKENS * 8 * (2048 + 3 * 768) * 2
