"""One of two ranks that split a vocabulary: `python cross_entropy_on_two_ranks.py RANK FOLDER`; run by a test.

The vocabulary of 50 is padded to 72; each rank has 36 rows, of which the second's last 22 are padding.
"""

import sys

import torch
from torch import distributed as dist
from torch.nn import functional as F

from loong_kernels import linear_cross_entropy, registry

ROWS, VOCABULARY = 36, 50


def compare(rank: int, implementation: str, lift: float) -> None:
    """`lift` sets the first rank's logits above the second's."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(7, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(VOCABULARY, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    weight.data[:ROWS, 0] += lift
    hidden.data[:, 0] = 1
    labels = torch.tensor([0, 49, 36, -100, 35, 12, 40])
    upstream = torch.arange(7, dtype=torch.float64) - 2
    padded = F.pad(weight.detach(), (0, 0, 0, 2 * ROWS - VOCABULARY), value=99.0)
    mine = slice(ROWS * rank, ROWS * (rank + 1))
    rows = padded[mine].requires_grad_()
    with registry.using({"linear_cross_entropy": implementation}):
        loss = linear_cross_entropy(
            hidden, rows, labels, group=dist.group.WORLD, vocab_start=mine.start, valid_vocab=VOCABULARY, chunk_size=16
        )
    hidden_part, rows_gradient = torch.autograd.grad(loss, (hidden, rows), upstream)
    dist.all_reduce(hidden_part)
    whole = linear_cross_entropy(hidden, weight, labels)
    hidden_gradient, weight_gradient = torch.autograd.grad(whole, (hidden, weight), upstream)
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(hidden_part, hidden_gradient)
    torch.testing.assert_close(rows_gradient, F.pad(weight_gradient, (0, 0, 0, 2 * ROWS - VOCABULARY))[mine])


if __name__ == "__main__":
    rank, folder = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    for implementation in ("chunked", "kept_torch"):
        for lift in (0.0, 300.0):
            compare(rank, implementation, lift)
    dist.destroy_process_group()
