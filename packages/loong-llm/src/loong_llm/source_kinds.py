"""Whether a source of a run holds documents or conversations: said by the stage, by the run file, or by its records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from loong_core.config.files import user_path
from loong_core.errors import UserError
from loong_core.json_text import parse_json
from loong_llm.conversations import formats
from loong_llm.conversations.preparation import first_record
from loong_llm.conversations.records import record_files
from loong_llm.recipes.training_config import SourceSection, TrainingConfig

SourceKind = Literal["documents", "conversations"]


def kind_of(source: SourceSection) -> SourceKind:
    """What a source of a mid-training run holds.

    Its `format` says so where it is given. Otherwise a file whose first record has the fields of a conversation holds
    conversations; so does a folder of prepared ones. Everything else holds documents.
    """
    if source.format == "documents":
        return "documents"
    if source.format is not None or source.fields:
        return "conversations"
    prepared = user_path(source.path) / "store.json"
    if prepared.is_file():
        return "conversations" if _made_from(prepared).get("kind") == "conversations" else "documents"
    try:
        for path, kind in record_files(source.path):
            if (record := first_record(path, kind)) is not None:
                return "documents" if formats.detect(record) is None else "conversations"
    except UserError:
        pass  # plain text, a .bin/.idx pair, or a fault that the checks of documents tell
    return "documents"


def of_kind(config: TrainingConfig, sources: Sequence[SourceSection], kind: SourceKind) -> list[SourceSection]:
    """Those of a run's sources that hold one kind, in their order; in stages pretrain and sft all are of theirs."""
    if config.stage == "midtrain":
        return [source for source in sources if kind_of(source) == kind]
    return list(sources) if heeds(config, kind) else []


def heeds(config: TrainingConfig, kind: SourceKind) -> bool:
    """Whether a run reads sources of this kind: its stage says so, in mid-training its sources."""
    if config.stage == "midtrain":
        return any(kind_of(source) == kind for source in [*config.data.train, *config.data.validation] if source.path)
    return (config.stage == "sft") == (kind == "conversations")


def _made_from(description: Path) -> dict[str, object]:
    try:
        return dict(parse_json(description.read_text(encoding="utf-8"))["made_from"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
