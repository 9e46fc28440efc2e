"""What can be known of a run's data without reading all of it: used by `check`, and before a run starts."""

from __future__ import annotations

from collections.abc import Sequence

from loong_core.data.documents import blocks, read_block
from loong_core.data.indexed import check_pair
from loong_core.data.sources import SourceFile, SourceSpec, resolve, weights_of
from loong_core.errors import Fault, UserError


def source_faults(specs: Sequence[SourceSpec], where: str, text_key: str) -> list[Fault]:
    """Every fault of the sources under one key of a run file; nothing is written, and only beginnings are read.

    Args:
        specs: the sources.
        where: the key, such as `data.train`.
        text_key: the field or column that holds a document's text.

    Returns:
        One fault for each missing file, unknown format, torn pair, file whose first document cannot be read, source
        without any document, or weight that makes no blend.
    """
    faults = []
    try:
        weights_of(specs)
    except UserError as error:
        faults.append(Fault(where, str(error)))
    for number, spec in enumerate(specs):
        key = where if len(specs) == 1 else f"{where}[{number}]"
        try:
            files = resolve(spec.path)
        except UserError as error:
            faults.append(Fault(key, str(error)))
            continue
        found = 0
        for file in files:
            try:
                found += _documents_seen(file, text_key)
            except UserError as error:
                faults.append(Fault(key, str(error)))
                found += 1
        if not found:
            faults.append(Fault(key, f"{spec.path} holds not one document with text in it", "give the run some text"))
    return faults


def _documents_seen(file: SourceFile, text_key: str) -> int:
    """1 if the file holds a document, which is read to see whether it can be; 0 if it holds none."""
    if file.format == "indexed":
        return int(check_pair(file.path)[1] > 0)
    for block in blocks([file]):
        for piece in read_block(block, text_key):
            if piece.text:
                return 1
    return 0
