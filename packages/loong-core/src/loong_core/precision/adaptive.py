"""The choice between bf16 and 8 bits for each call, from a table, told once for each shape and range of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from loong_core.precision.table import Table, Work


class AdaptiveChoice:
    """Whether 8 bits are faster, by a table. Decisions are kept for ranges of tokens an eighth of a doubling wide.

    Layers in 8 bits take the host longer to launch. Where launching all of the model's layers would take longer than
    the device needs for them, the device would wait, and bf16 is chosen for all.

    Args:
        table: measurements of the device.
        works: every layer that chooses by this, for the comparison with the host; without them none is made.

    Attributes:
        decisions: lines for people, one for each shape and range met so far.
    """

    def __init__(self, table: Table, works: Sequence[Work] = ()) -> None:
        self.works = list(works)
        self.decisions: list[str] = []
        self._table = table
        self._kept: dict[tuple[Work, int], bool] = {}

    def __call__(self, work: Work, tokens: int) -> bool:
        """Whether the work is faster in 8 bits for so many tokens; False where nothing like it was measured."""
        if tokens < 1:
            return False
        key = (work, _eighth(tokens))
        if key not in self._kept:
            faster = _faster(self._table, work, tokens)
            waits = faster and self._host_is_the_limit(work, tokens)
            self._kept[key] = faster and not waits
            line = explained(self._table, work, tokens)
            self.decisions.append(f"{line}; yet bf16, for the host could not launch so many" if waits else line)
        return self._kept[key]

    def _host_is_the_limit(self, work: Work, tokens: int) -> bool:
        """Whether the host needs longer for all layers of this kind than the device, each by its faster precision."""
        on_host = on_device = 0.0
        for other in self.works:
            estimate = self._table.estimate(other, tokens) if other.kind == work.kind else None
            if estimate is not None:
                recipe = "blockwise" if estimate.gain > 1.0 else "bf16"
                size = tokens / estimate.nearest.tokens * _size(other) / _size(estimate.nearest.work)
                on_device += estimate.nearest.microseconds[recipe] * size
                on_host += estimate.nearest.host.get(recipe, 0.0)
        return on_host > on_device


def explained(table: Table, work: Work, tokens: int) -> str:
    """One line: what is chosen for a call and what that rests on."""
    estimate = table.estimate(work, tokens)
    if estimate is None:
        return f"{work}, {tokens} tokens: bf16, nothing like it was measured on {table.device}"
    chosen = "blockwise" if estimate.gain > 1.0 else "bf16"
    near = estimate.nearest
    times = ", ".join(f"{name} {time:.0f} us" for name, time in near.microseconds.items())
    if estimate.measured:
        basis = f"measured at {near.tokens} tokens: {times}"
    else:
        basis = f"as the nearest shape measured, {near.work} at {near.tokens} tokens: {times}"
    return f"{work}, {tokens} tokens: {chosen}, blockwise {estimate.gain:.2f} times as fast as bf16 ({basis})"


def _faster(table: Table, work: Work, tokens: int) -> bool:
    estimate = table.estimate(work, tokens)
    return estimate is not None and estimate.gain > 1.0


def _size(work: Work) -> int:
    return work.out_features * work.in_features


def _eighth(tokens: int) -> int:
    """Which eighth of a doubling a number of tokens lies in: its three bits below the first, and how many follow."""
    shift = max(tokens.bit_length() - 4, 0)
    return (tokens >> shift) + 16 * shift
