"""The run file of pretraining. Imports neither torch nor transformers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from loong_core.config import MAY_CHANGE, REQUIRED, RunConfig, Section
from loong_core.config.sections import Count, Positive


class ModelSection(Section):
    """What is trained; `model: NAME` is short for `model: {source: NAME}`.

    Attributes:
        source: a named size (`loong models` lists them), or a Hugging Face folder.
        initialise: `random` draws weights, `weights` loads the folder's, `auto` loads them where there are any.
        overrides: keys of the model's `config.json` to replace.
    """

    shorthand = "source"

    source: Annotated[str, REQUIRED] = ""
    initialise: Literal["auto", "random", "weights"] = "auto"
    overrides: dict[str, Any] = Field(default_factory=dict)


class SourceSection(Section):
    """One source of text: a file, a folder, a glob, or the prefix of a .bin/.idx pair; a path is short for it.

    Attributes:
        path: where it is.
        weight: its share in the blend, relative to the others'; all sources have one, or none.
    """

    shorthand = "path"

    path: Annotated[str, REQUIRED] = ""
    weight: Positive | None = None


class DataSection(Section):
    """Documents, and how they become sequences.

    Attributes:
        train: one or several sources.
        validation: held-out sources.
        validation_fraction: share of the training documents to hold out instead.
        text_key: field of JSON lines, or column of parquet and arrow files, that holds a document's text.
        sequence_length: tokens of a sample.
        attend_across_documents: whether attention and labels ignore document boundaries within a sample.
        cache: folder for token ids, seen by all ranks; `cache` in the run folder by default.
        workers: processes that tokenise, at the start of the run.
    """

    train: Annotated[list[SourceSection], REQUIRED] = Field(default_factory=list)
    validation: list[SourceSection] = Field(default_factory=list)
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    text_key: str = "text"
    sequence_length: Count = 1024
    attend_across_documents: bool = False
    cache: Annotated[str | None, MAY_CHANGE] = None
    workers: Annotated[Count, MAY_CHANGE] = 1


class PretrainConfig(RunConfig):
    """A pretraining run.

    Attributes:
        model: what is trained.
        tokenizer: a Hugging Face folder, or `bytes` for the built-in one; the model folder's by default.
        data: what it is trained on.
    """

    model: Annotated[ModelSection, REQUIRED] = ModelSection()
    tokenizer: str | None = None
    data: DataSection = DataSection()
