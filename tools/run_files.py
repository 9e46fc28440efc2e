"""Write docs/run_files.md from the configuration's own types and docstrings: `python -m tools.run_files [--check]`."""

from __future__ import annotations

import inspect
import pathlib
import re
import sys
import types
import typing
from collections.abc import Iterator

import yaml
from pydantic_core import PydanticUndefined

from loong_core.config import Section
from loong_dit.recipes.training_config import DiffusionTrainingConfig
from loong_llm.recipes.training_config import TrainingConfig
from loong_vla.recipes.training_config import PolicyTrainingConfig
from loong_vlm.recipes.training_config import VisionTrainingConfig

TARGET = pathlib.Path(__file__).parents[1] / "docs" / "run_files.md"
INTRODUCTION = """# Run files

A run is one YAML file; any key may be set on the command line as `key.path=value`, which wins. An unknown key is an
error that names the nearest valid one, and all faults of a file are reported at once. `loong-llm check RUN.yaml` (and
likewise those of the other programs) tells them without training. The run folder keeps the resolved file as `run.yaml`;
continuing a run with another model, data or optimizer is refused. (Written from the code by
`python -m tools.run_files`.)

Below are the keys of a language model's run, then of the other programs' those that differ.
"""

PROGRAMS: dict[str, type[Section]] = {
    "loong-llm": TrainingConfig,
    "loong-vlm": VisionTrainingConfig,
    "loong-vla": PolicyTrainingConfig,
    "loong-dit": DiffusionTrainingConfig,
}
"""Each program's run file; the first is described whole."""


def attribute_texts(section: type[Section]) -> dict[str, str]:
    """What the docstrings of the class and of its bases say of each key."""
    texts: dict[str, str] = {}
    for base in reversed(section.__mro__):
        _, _, attributes = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        found = re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", attributes, re.MULTILINE | re.DOTALL)
        texts |= {name: " ".join(words.split()) for name, words in found}
    return texts


def summary(section: type[Section]) -> str:
    """The class's docstring without its list of attributes."""
    return " ".join((inspect.getdoc(section) or "").partition("Attributes:\n")[0].split())


def subsection(annotation: object) -> type[Section] | None:
    """The section that a key holds (itself, or in a list), None for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    inner = (subsection(each) for each in typing.get_args(annotation))
    return next((each for each in inner if each is not None), None)


def type_text(annotation: object) -> str:
    """A type as a reader would write it."""
    if typing.get_origin(annotation) is typing.Literal:
        return " \\| ".join(str(value) for value in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Annotated:
        return type_text(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " \\| ".join(type_text(each) for each in typing.get_args(annotation) if each is not type(None))
    if (container := typing.get_origin(annotation)) in (list, dict):
        return f"{'list' if container is list else 'mapping'} of " + " to ".join(
            map(type_text, typing.get_args(annotation))
        )
    return {"str": "text", "int": "number", "float": "number", "bool": "true \\| false", "Any": "value"}.get(
        getattr(annotation, "__name__", ""), getattr(annotation, "__name__", str(annotation))
    )


def rows(section: type[Section], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    """Key, type, default and meaning of each plain key."""
    texts = attribute_texts(section)
    for name, field in section.model_fields.items():
        if subsection(field.annotation) is None:
            default = field.get_default(call_default_factory=True)
            shown = "" if default in (None, PydanticUndefined, "") else yaml.safe_dump(default, default_flow_style=True)
            kind = type_text(field.annotation)
            yield f"`{prefix}{name}`", kind, shown.replace("...", "").strip(), texts.get(name, "")


def table(section: type[Section], prefix: str, known: type[Section] | None) -> str:
    """The section's plain keys, those left out that `known` has alike."""
    alike = set(rows(known, prefix)) if known else set()
    lines = [f"| {' | '.join(row)} |" for row in rows(section, prefix) if row not in alike]
    return "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *lines]) + "\n" if lines else ""


def chapters(section: type[Section], prefix: str = "", known: type[Section] | None = None) -> Iterator[str]:
    """A table for the section, then one for each section inside it.

    Args:
        section: described.
        prefix: where it is in the file.
        known: a section that was described before; what this one has alike is left out.
    """
    if prefix:
        yield f"### {prefix.rstrip('.')}\n"
    yield f"{summary(section)}\n"
    if own := table(section, prefix, known):
        yield own
    texts = attribute_texts(section)
    for name, field in section.model_fields.items():
        if (inner := subsection(field.annotation)) is None:
            continue
        before = known.model_fields.get(name) if known else None
        described = subsection(before.annotation) if before else None
        if inner is described:
            continue
        if name in texts:
            yield f"`{prefix}{name}`: {texts[name]}\n"
        yield from chapters(inner, f"{prefix}{name}.", described)


def told_before(section: type[Section], known: type[Section], prefix: str = "") -> Iterator[str]:
    """Sections and keys that `known` has alike, which `chapters` leaves out."""
    before = set(rows(known, prefix))
    yield from (row[0] for row in rows(section, prefix) if row in before)
    for name, field in section.model_fields.items():
        inner = subsection(field.annotation)
        described = subsection(known.model_fields[name].annotation) if name in known.model_fields else None
        if inner is not None and inner is described:
            yield f"`{prefix}{name}`"
        elif inner is not None and described is not None:
            yield from told_before(inner, described, f"{prefix}{name}.")


def document() -> str:
    """The whole page."""
    (first, whole), *others = PROGRAMS.items()
    parts = [INTRODUCTION, f"## {first} train\n", *chapters(whole)]
    for program, config in others:
        shared = ", ".join(told_before(config, whole))
        parts += [f"## {program} train\n", *chapters(config, known=whole), f"As those of {first}: {shared}.\n"]
    return "\n".join(parts)


def main() -> int:
    """Write the page, or with `--check` compare it."""
    text = document()
    if "--check" in sys.argv:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
            print(f"{TARGET.name} does not tell what the configuration is: python -m tools.run_files writes it anew")
            return 1
        return 0
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
