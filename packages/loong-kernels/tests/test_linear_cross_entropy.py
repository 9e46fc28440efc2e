"""What cross-entropy promises beyond its values: memory, precision, labels, and a vocabulary split over ranks."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from loong_kernels import linear_cross_entropy, registry
from loong_kernels.ops.linear_cross_entropy import chunked
from loong_kernels.ops.linear_cross_entropy.chunk_plan import plan_chunks
from loong_kernels.ops.linear_cross_entropy.settings import HeadSettings


def inputs(tokens, vocabulary, hidden, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(tokens, hidden, generator=generator, dtype=torch.float64)
    weight = torch.randn(vocabulary, hidden, generator=generator, dtype=torch.float64) / hidden**0.5
    labels = torch.randint(0, vocabulary, (tokens,), generator=generator)
    return states.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), labels


class LargestTensor(TorchDispatchMode):
    """Watches how many elements the largest new tensor has."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return result


def test_no_tensor_is_as_large_as_the_logits():
    hidden, weight, labels = inputs(64, 512, 4, torch.float32)
    with LargestTensor() as largest:
        linear_cross_entropy(hidden, weight, labels, chunk_size=64).sum().backward()
    assert largest.elements == 64 * 64


def test_a_memory_budget_cuts_tokens_as_well(monkeypatch):
    monkeypatch.setattr(chunked, "CPU_BUDGET", 64 * 16 * 4)
    hidden, weight, labels = inputs(60, 500, 4, torch.float32)
    with LargestTensor() as largest:
        loss = linear_cross_entropy(hidden, weight, labels, chunk_size=128)
        gradients = torch.autograd.grad(loss.sum(), (hidden, weight))
    assert largest.elements <= max(64 * 16, weight.numel())
    with registry.using({"linear_cross_entropy": "reference"}):
        whole = linear_cross_entropy(hidden, weight, labels)
        expected = torch.autograd.grad(whole.sum(), (hidden, weight))
    torch.testing.assert_close((loss, *gradients), (whole, *expected))


def test_gradients_are_those_of_finite_differences():
    hidden, weight, labels = inputs(5, 40, 3)
    labels[2] = -100
    assert torch.autograd.gradcheck(
        lambda h, w: linear_cross_entropy(h, w, labels, chunk_size=16, valid_vocab=37, softcap=1.5), (hidden, weight)
    )


def test_loss_of_bfloat16_inputs_is_exact_to_float32():
    hidden, weight, labels = inputs(32, 300, 64, torch.bfloat16)
    loss = linear_cross_entropy(hidden, weight, labels, chunk_size=100)
    exact = F.cross_entropy(hidden.double() @ weight.double().T, labels, reduction="none")
    assert loss.dtype is torch.float32
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=1e-6)


def test_gradient_of_bfloat16_weights_is_rounded_once_however_tokens_are_cut(monkeypatch):
    hidden, weight, labels = inputs(256, 40, 16, torch.bfloat16)
    monkeypatch.setattr(chunked, "CPU_BUDGET", 4 * 40 * 4)  # 64 blocks of tokens
    (gradient,) = torch.autograd.grad(linear_cross_entropy(hidden, weight, labels).sum(), weight)
    wide = weight.detach().double().requires_grad_()
    exact = F.cross_entropy(hidden.detach().double() @ wide.T, labels, reduction="sum")
    (expected,) = torch.autograd.grad(exact, wide)
    # The logits' gradient is rounded to bfloat16 (2^-9 each, at random); adding up in bfloat16 would lose far more.
    assert (gradient.double() - expected).abs().max() < 2 * 2**-8 * expected.abs().max()
    assert gradient.dtype is torch.bfloat16


@pytest.mark.parametrize("label", [50, 45, -1])
def test_a_label_outside_the_vocabulary_shows_as_nan(label):
    hidden, weight, labels = inputs(4, 50, 8)
    labels = labels % 45
    labels[1] = label
    for name in ("reference", "chunked"):
        with registry.using({"linear_cross_entropy": name}):
            loss = linear_cross_entropy(hidden, weight, labels, valid_vocab=45)
        assert loss.isnan().tolist() == [False, True, False, False]


def test_rows_that_are_padding_get_a_zero_gradient():
    hidden, weight, labels = inputs(4, 50, 8)
    linear_cross_entropy(hidden, weight, labels % 45, valid_vocab=45).sum().backward()
    assert weight.grad[45:].abs().max() == 0
    assert weight.grad[:45].abs().min() > 0


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"\[4, 8\], \[50, 9\], \[4\]"):
        linear_cross_entropy(torch.zeros(4, 8), torch.zeros(50, 9), torch.zeros(4, dtype=torch.int64))


def test_no_tokens_give_no_loss_and_zero_gradients():
    hidden, weight, labels = inputs(0, 50, 8)
    loss = linear_cross_entropy(hidden, weight, labels)
    loss.sum().backward()
    assert loss.shape == (0,)
    assert weight.grad.abs().max() == 0


def test_chunks_hold_whole_tiles_and_are_balanced():
    plan = plan_chunks(tokens=8192, rows=151936, budget=1 << 30, element_size=4, chunk_size=None)
    sizes = [end - start for start, end in plan.rows]
    assert plan.tokens == [(0, 8192)]
    assert plan.rows[-1][1] == 151936
    assert len(sizes) == 5
    assert all(size % 128 == 0 for size in sizes)
    assert max(sizes) - min(sizes) < 128 * len(sizes)
    assert max(sizes) * 8192 * 4 <= 1 << 30


def test_many_tokens_are_cut_before_chunks_become_thin():
    plan = plan_chunks(tokens=1 << 20, rows=151936, budget=1 << 30, element_size=4, chunk_size=None)
    assert plan.rows[0] == (0, 4096 - 4096 % 128)
    assert len(plan.tokens) == 16


def test_a_small_call_is_one_chunk():
    plan = plan_chunks(tokens=100, rows=1000, budget=1 << 26, element_size=4, chunk_size=None)
    assert (plan.rows, plan.tokens) == ([(0, 1000)], [(0, 100)])


def test_a_rank_whose_rows_are_all_padding_takes_no_part():
    assert HeadSettings(vocab_start=100, valid_vocab=90).rows_of(torch.zeros(50, 2)) == 0


def test_a_vocabulary_split_over_two_ranks_gives_the_loss_and_gradients_of_the_whole(tmp_path):
    script = Path(__file__).with_name("cross_entropy_on_two_ranks.py")
    ranks = [
        subprocess.Popen([sys.executable, script, str(rank), tmp_path], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)
