"""Measures the length histograms beside this file: `python -m tools.bench.mixes.measure`.

The texts are those that ship with CPython, so anyone can measure them again. A length is the number of tokens of the
sample's text under the built-in byte tokenizer (its bytes in UTF-8 and one token at each end). Lengths are kept in bins
of about 4 % width, which is all that packing depends on.
"""

from __future__ import annotations

import ast
import json
import math
import platform
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
_BINS = 18  # a factor of two in length


def questions() -> Iterator[str]:
    """Questions with their answers, as the fine-tuning quickstart trains on them."""
    from loong_llm.conversations.python_questions import python_questions

    for question in python_questions()[0]:
        yield f"User: {question.question}\nAssistant: {question.answer}"


def topics() -> Iterator[str]:
    """The sections of the language reference."""
    from pydoc_data.topics import topics as texts

    for text in texts.values():
        lines = text.split("\n")
        starts = [
            number
            for number, line in enumerate(lines[1:])
            if len(line) > 3 and line[0] in "*=-~" and not line.strip(line[0])
        ]
        for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
            yield "\n".join(lines[start:stop])


def functions() -> Iterator[str]:
    """Functions of the standard library, asked for by their docstring: code instructions and their answers."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts or "test" in path.parts or "tests" in path.parts:
            continue
        try:
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (told := ast.get_docstring(node)):
                yield f"User: Write {node.name}. {told}\nAssistant: {ast.get_source_segment(text, node)}"


def modules() -> Iterator[str]:
    """Whole modules of the standard library, in its top folder: long documents."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield path.read_text(encoding="utf-8", errors="replace")


MIXES = {
    "python_questions": (questions, 2048, "drop"),
    "reference_sections": (topics, 8192, "split"),
    "library_functions": (functions, 8192, "split"),
    "library_modules": (modules, 131072, "split"),
}
"""Name: its texts, the sequence length to pack it into, and what to do with longer samples."""


def main() -> None:
    """Measure every mix and write its histogram."""
    for name, (texts, sequence_length, long_samples) in MIXES.items():
        lengths = [len(text.encode("utf-8")) + 2 for text in texts()]
        bins = Counter(int(math.log2(length) * _BINS) for length in lengths)
        counts = [[math.ceil(2 ** (number / _BINS)), bins[number]] for number in sorted(bins)]
        described = {
            "source": f"{(texts.__doc__ or '').strip()} CPython {platform.python_version()}, measured by measure.py.",
            "tokenizer": "bytes",
            "samples": len(lengths),
            "tokens": sum(lengths),
            "longest": max(lengths),
            "sequence_length": sequence_length,
            "long_samples": long_samples,
            "bins_to_a_factor_of_two": _BINS,
            "shortest_of_bin_and_count": counts,
        }
        text = json.dumps(described, indent=1).replace("[\n   ", "[").replace(",\n   ", ", ").replace("\n  ]", "]")
        (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {len(lengths):,} samples, {sum(lengths):,} tokens, longest {max(lengths):,}")


if __name__ == "__main__":
    main()
