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
from loong_llm.recipes.training_config import TrainingConfig

TARGET = pathlib.Path(__file__).parents[1] / "docs" / "run_files.md"
INTRODUCTION = """# Run files

A run is one YAML file; any key may be set on the command line as `key.path=value`, which wins. An unknown key is an
error that names the nearest valid one, and all faults of a file are reported at once. `loong-llm check RUN.yaml` tells
them without training. The run folder keeps the resolved file as `run.yaml`; continuing a run with another model, data
or optimizer is refused. (Written from the code by `python -m tools.run_files`.)
"""


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


def chapters(section: type[Section], prefix: str = "") -> Iterator[str]:
    """A table for the section, then one for each section inside it."""
    yield f"## {prefix.rstrip('.') or 'At the top'}\n\n{summary(section)}\n"
    table = list(rows(section, prefix))
    if table:
        lines = [f"| {' | '.join(row)} |" for row in table]
        yield "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *lines]) + "\n"
    texts = attribute_texts(section)
    for name, field in section.model_fields.items():
        if (inner := subsection(field.annotation)) is not None:
            if name in texts:
                yield f"`{prefix}{name}`: {texts[name]}\n"
            yield from chapters(inner, f"{prefix}{name}.")


def document() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *chapters(TrainingConfig)])


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
