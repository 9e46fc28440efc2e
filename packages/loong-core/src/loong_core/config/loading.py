"""From a run file and command-line overrides to a configuration, collecting every fault on the way.

A value that cannot be used is left out and its default stands in, so that the checks which follow can report what else
is wrong; a configuration is only trained on when there are no faults.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from loong_core.config.files import missing_file
from loong_core.config.section import REQUIRED, Section, expand_shorthand, field_section, valid_keys
from loong_core.config.yaml_text import parse_value, read_document
from loong_core.errors import ConfigError, Fault


@dataclass(frozen=True)
class Loaded[Config: Section]:
    """A configuration with the faults found so far; faulty keys have their defaults.

    Attributes:
        config: the configuration.
        faults: what is wrong with the file and the overrides.
        given: the dotted keys that the file or an override gives.
    """

    config: Config
    faults: list[Fault]
    given: frozenset[str]


def load_run[Config: Section](
    config_class: type[Config], path: str | Path | None, overrides: Sequence[str] = ()
) -> Loaded[Config]:
    """Read the run file at `path` (None: only overrides) and lay `key.path=value` overrides over it.

    Raises:
        ConfigError: there is no such file, or nothing in it can be read: what else a run lacks is then not known.
    """
    faults: list[Fault] = []
    values: dict[str, Any] = {}
    if path is not None:
        if (fault := missing_file(str(path), str(path))) is not None:
            raise ConfigError([fault])
        if Path(path).is_dir():
            raise ConfigError([Fault(str(path), "is a folder", "name the run's YAML file")])
        values, faults = read_document(Path(path))
        if faults and not values:
            raise ConfigError(faults)
    for override in overrides:
        fault = _override(config_class, values, override)
        faults += [fault] if fault else []
    reading = _Reading(valid_keys(config_class), faults, set())
    config = reading.section(config_class, values, "")
    return Loaded(config, faults, frozenset(reading.given))


def _override(config_class: type[Section], values: dict[str, Any], override: str) -> Fault | None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        return Fault(override, "is not an override", "write key.path=value")
    try:
        value = parse_value(text)
    except yaml.YAMLError:
        return Fault(key, f"{text!r} is not a YAML value", "quote it: key='\"text\"'")
    *parents, last = key.split(".")
    place: Any = values
    section: type[Section] | None = config_class
    for depth, name in enumerate(parents):
        if isinstance(place, list):
            if (fault := _no_such_item(key, parents[:depth], place, name)) is not None:
                return fault
            index: Any = int(name)
            child = place[index]
        else:
            field = section.model_fields.get(name) if section else None
            inner = field_section(field) if field else None
            section = inner[0] if inner else None
            index, child = name, place.get(name)
            following = [*parents, last][depth + 1]
            if inner is not None and inner[1] and following.isdecimal() and not isinstance(child, list):
                child = [] if child is None else [child]
        if section is not None:
            child = expand_shorthand(section, child)
        place[index] = child if isinstance(child, (dict, list)) else {}
        place = place[index]
    if isinstance(place, list):
        if (fault := _no_such_item(key, parents, place, last)) is not None:
            return fault
        place[int(last)] = value
    else:
        place[last] = value
    return None


def _no_such_item(key: str, parents: Sequence[str], items: Sequence[Any], name: str) -> Fault | None:
    """The fault of an override that looks for `name` in a list which has no such item."""
    if name.isdecimal() and int(name) < len(items):
        return None
    parent = ".".join(parents)
    items_there = f"name an item, {parent}.0 to {parent}.{len(items) - 1}, or " if items else ""
    return Fault(key, f"{parent} is a list of {len(items)}", f"{items_there}give {parent} whole")


@dataclass
class _Reading:
    keys: list[str]
    faults: list[Fault]
    given: set[str]

    def section[Config: Section](self, section: type[Config], values: dict[str, Any], prefix: str) -> Config:
        good: dict[str, Any] = {}
        for name, value in values.items():
            field = section.model_fields.get(name)
            if field is None:
                self.faults.append(unknown_key(f"{prefix}{name}", self.keys))
                continue
            self.given.add(f"{prefix}{name}")
            read = self.field(field, value, f"{prefix}{name}")
            if read is not _FAULTY:
                good[name] = read
        for name, field in section.model_fields.items():
            if REQUIRED in field.metadata and not values.get(name):
                self.faults.append(Fault(f"{prefix}{name}", "is missing", f"add it: {prefix}{name}=..."))
            elif name not in values and (inner := _always_there(field)) is not None:
                self.section(inner, {}, f"{prefix}{name}.")  # what it requires is missing too
        return section.model_construct(**good)

    def field(self, field: FieldInfo, value: Any, key: str) -> Any:
        inner = field_section(field)
        if inner is None:
            return self.plain(field, value, key)
        section, is_list = inner
        if value is None:
            # `layout:` with nothing below it means the defaults.
            always = _always_there(field)
            return self.section(always, {}, f"{key}.") if always else field.get_default(call_default_factory=True)
        items = value if isinstance(value, list) and is_list else [value]
        read = []
        for index, item in enumerate(items):
            where = f"{key}.{index}" if isinstance(value, list) else key
            item = expand_shorthand(section, item)
            if not isinstance(item, dict):
                expected = "text or a mapping" if section.shorthand else "a mapping"
                self.faults.append(Fault(where, f"is {item!r}; {expected} is wanted"))
                return _FAULTY
            read.append(self.section(section, item, f"{where}."))
        return read if is_list else read[0]

    def plain(self, field: FieldInfo, value: Any, key: str) -> Any:
        annotation: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        try:
            return TypeAdapter(annotation).validate_python(value, strict=True)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            inside = ".".join(str(part) for part in problem["loc"] if isinstance(part, int))
            what = problem["msg"][0].lower() + problem["msg"][1:]
            self.faults.append(Fault(f"{key}.{inside}" if inside else key, f"is {value!r}; {what}"))
            return _FAULTY


_FAULTY = object()


def _always_there(field: FieldInfo) -> type[Section] | None:
    """The section that a configuration has whether it is given or not; None for a list or an optional one."""
    inner = field_section(field)
    optional = field.get_default(call_default_factory=True) is None
    return None if inner is None or inner[1] or optional else inner[0]


_INDEX = re.compile(r"\.\d+(?=\.|$)")


def unknown_key(key: str, valid: Sequence[str]) -> Fault:
    """The fault of a key that is none of the `valid` ones, with the nearest that is."""
    plain = _INDEX.sub("", key)  # of an item of a list: keys are listed without its number
    nearest = _nearest_key(plain, valid)
    parent, _, leaf = key.rpartition(".")
    if nearest is not None and plain == f"{nearest.rpartition('.')[0]}.{leaf}":
        nearest = f"{parent}.{nearest.rpartition('.')[2]}"
    return Fault(key, "is not a key of a run file", f"did you mean {nearest}?" if nearest else "remove it")


def _nearest_key(key: str, valid: Sequence[str]) -> str | None:
    if near := difflib.get_close_matches(key, valid, n=1, cutoff=0.75):
        return near[0]
    leaf = key.rpartition(".")[2]
    same_leaf = [candidate for candidate in valid if candidate.rpartition(".")[2] == leaf]
    if same_leaf:
        return same_leaf[0]
    leaves = {candidate.rpartition(".")[2]: candidate for candidate in reversed(valid)}
    if near := difflib.get_close_matches(leaf, list(leaves), n=1, cutoff=0.75):
        return leaves[near[0]]
    near = difflib.get_close_matches(key, valid, n=1, cutoff=0.5)
    return near[0] if near else None
