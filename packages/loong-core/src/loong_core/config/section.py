"""What every section of a run file has in common: strict types, no unknown keys, and two marks on its fields."""

from __future__ import annotations

from dataclasses import dataclass
from types import UnionType
from typing import Any, ClassVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class Mark:
    """A remark on a field, put into its annotation: `steps: Annotated[int, REQUIRED]`."""

    name: str


REQUIRED = Mark("required")
"""The run file must give the field; its default (an empty value) stands only for "not given"."""

MAY_CHANGE = Mark("may change")
"""A run may be resumed with another value: it changes neither the model, nor the data, nor the optimizer."""


class Section(BaseModel):
    """A part of a run file. Values are not coerced: `"100"` is no integer and `yes` no number."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())

    shorthand: ClassVar[str | None] = None
    """The field that a plain value stands for: with `source`, `model: NAME` means `model: {source: NAME}`."""

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return expand_shorthand(cls, value)


def expand_shorthand(section: type[Section], value: Any) -> Any:
    """`value` as a mapping where it is the section's shorthand, else unchanged."""
    if section.shorthand is not None and isinstance(value, str):
        return {section.shorthand: value}
    return value


def field_section(field: FieldInfo) -> tuple[type[Section], bool] | None:
    """The section class a field holds and whether it holds a list of them; None for a plain value."""
    annotation: Any = field.annotation
    if get_origin(annotation) in (Union, UnionType):
        (annotation, *others) = [argument for argument in get_args(annotation) if argument is not type(None)]
        if others:
            return None
    is_list = get_origin(annotation) is list
    if is_list:
        (annotation,) = get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, is_list
    return None


def valid_keys(section: type[Section], prefix: str = "") -> list[str]:
    """Every dotted key that a run file of this class may give."""
    keys: list[str] = []
    for name, field in section.model_fields.items():
        keys.append(prefix + name)
        if (inner := field_section(field)) is not None:
            keys += valid_keys(inner[0], f"{prefix}{name}.")
    return keys
