"""Numbers of things in messages."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """`1 document`, `2,000 documents`."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
