"""Which parts of a model something is to be done to: blocks by number, or modules by patterns of their names.

Blocks are the children of every `layers` in a stage. Imports no torch, for run files and plans.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Parts:
    """A choice of parts; nothing by default.

    Attributes:
        blocks: so many blocks of each pipeline rank, the first ones; None: all of them.
        modules: patterns of module names (`feed_forward`, `layers.3.*`, `head`; see `loong_core.nn.name_patterns`).
    """

    blocks: int | None = 0
    modules: tuple[str, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether no part is chosen."""
        return self.blocks == 0 and not self.modules

    @property
    def everything(self) -> bool:
        """Whether every block is."""
        return self.blocks is None

    def __str__(self) -> str:
        """As the run file has it: `full`, `4 blocks`, `modules feed_forward`."""
        if self.everything:
            return "full"
        chosen = [f"{self.blocks} block{'' if self.blocks == 1 else 's'}"] if self.blocks else []
        if self.modules:
            chosen.append(f"modules {', '.join(self.modules)}")
        return " and ".join(chosen) or "none"


NOTHING, ALL_BLOCKS = Parts(), Parts(blocks=None)


def outermost(names: Iterable[str]) -> list[str]:
    """Of dotted names those that lie in no other of them, in order."""
    kept: list[str] = []
    for name in sorted(names, key=lambda each: each.count(".")):
        if not any(name.startswith(f"{outer}.") for outer in kept):
            kept.append(name)
    return sorted(kept)
