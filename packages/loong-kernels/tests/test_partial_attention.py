"""Attention over parts of the keys, joined, is attention over all of them."""

from itertools import pairwise

import torch

from loong_kernels import SequencePairs, packed_attention, partial_attention, partial_attention_backward

LENGTHS = [5, 1, 9]
BOUNDS = torch.tensor([0, 5, 6, 15], dtype=torch.int32)


def inputs():
    generator = torch.Generator().manual_seed(0)
    q, k, v, upstream = (torch.randn(15, heads, 8, dtype=torch.float64, generator=generator) for heads in (4, 2, 2, 4))
    return q, k, v, upstream


def parts():
    """Even and odd keys of each sequence apart: rows of the keys, rows of the queries that see them, and the pairs."""
    for first in (0, 1):
        keys = [torch.arange(int(start) + first, int(stop), 2) for start, stop in pairwise(BOUNDS)]
        seen = [number for number, run in enumerate(keys) if len(run)]
        queries = [torch.arange(int(BOUNDS[number]), int(BOUNDS[number + 1])) for number in seen]
        yield (
            torch.cat(keys),
            torch.cat(queries),
            SequencePairs(
                bounds([len(run) for run in queries]),
                bounds([len(keys[number]) for number in seen]),
                max(len(run) for run in queries),
                max(len(keys[number]) for number in seen),
                causal=False,
            ),
        )


def bounds(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def test_parts_weighted_by_their_sums_of_exponentials_are_the_whole():
    q, k, v, _ = inputs()
    out, total = torch.zeros_like(q), torch.full((15, 4), -torch.inf, dtype=torch.float64)
    for keys, queries, pairs in parts():
        part, own = partial_attention(q[queries], k[keys], v[keys], pairs)
        joined = torch.logaddexp(total[queries], own)
        kept = (total[queries] - joined).exp()[..., None]
        out[queries] = out[queries] * kept + part * (own - joined).exp()[..., None]
        total[queries] = joined
    torch.testing.assert_close(out, packed_attention(q, k, v, BOUNDS, 9, causal=False))


def test_backward_given_the_whole_s_output_adds_up_to_the_whole_s_gradients():
    q, k, v, upstream = (each.requires_grad_() for each in inputs())
    whole = packed_attention(q, k, v, BOUNDS, 9, causal=False)
    expected = torch.autograd.grad(whole, (q, k, v), upstream)
    all_pairs = SequencePairs(BOUNDS, BOUNDS, 9, 9, causal=False)
    q, k, v, upstream = (each.detach() for each in (q, k, v, upstream))
    out, total = partial_attention(q, k, v, all_pairs)
    found = [torch.zeros_like(each) for each in (q, k, v)]
    for keys, queries, pairs in parts():
        of_queries, of_keys, of_values = partial_attention_backward(
            upstream[queries], q[queries], k[keys], v[keys], out[queries], total[queries], pairs
        )
        found[0][queries] += of_queries
        found[1][keys] += of_keys
        found[2][keys] += of_values
    torch.testing.assert_close(tuple(found), expected)


def test_a_causal_part_is_packed_attention():
    q, k, v, _ = inputs()
    out, _ = partial_attention(q, k, v, SequencePairs(BOUNDS, BOUNDS, 9, 9, causal=True), scale=0.4)
    torch.testing.assert_close(out, packed_attention(q, k, v, BOUNDS, 9, scale=0.4))
