"""Reading YAML as people write it: `1e-3` is a number, and a key given twice is a fault, not the last one's victory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from loong_core.errors import Fault


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with YAML 1.2's floats (1.1 reads `1e-3` as a string)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


_MERGE = "tag:yaml.org,2002:merge"
"""Of the key `<<`, which takes over another mapping's keys; a mapping may have several."""


def parse_value(text: str) -> Any:
    """The value of an override, `text` being what follows the `=`. Raises yaml.YAMLError."""
    return yaml.load(text, _Loader)


def read_document(path: Path) -> tuple[dict[str, Any], list[Fault]]:
    """The mapping in a file, and what is wrong with it; nothing where it cannot be read at all."""
    try:
        return parse_document(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        what = f"is not a text file in UTF-8 (byte {error.start} is {error.object[error.start]:#04x})"
        return {}, [Fault(str(path), what, "is it a YAML file?")]
    except OSError as error:
        return {}, [Fault(str(path), f"cannot be read: {error.strerror}")]


def parse_document(text: str, where: str) -> tuple[dict[str, Any], list[Fault]]:
    """The mapping that `text` holds, and what is wrong with it as YAML. `where` names the file."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return {}, []
        if not isinstance(node, yaml.MappingNode):
            return {}, [Fault(where, "is not a mapping of keys to values", "write `key: value` lines")]
        duplicates = _duplicates(node, "", set(), ())
        return loader.construct_document(node), duplicates
    except RecursionError:
        return {}, [Fault(where, "is nested too deeply, or an alias is inside what it names", "write it out")]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}" if mark else where
        return {}, [Fault(place, f"is not YAML: {getattr(error, 'problem', None) or error}")]
    finally:
        if loader is not None:
            loader.dispose()


def _duplicates(node: yaml.Node, prefix: str, seen: set[int], above: tuple[int, ...]) -> list[Fault]:
    """Keys given twice. Aliases lead again to nodes already `seen`; one that leads to a node `above` never ends."""
    if id(node) in above:
        raise RecursionError
    if id(node) in seen:
        return []
    seen.add(id(node))
    above = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        items = enumerate(node.value)
        return [fault for index, item in items for fault in _duplicates(item, f"{prefix}{index}.", seen, above)]
    if not isinstance(node, yaml.MappingNode):
        return []
    faults: list[Fault] = []
    first_line: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(
                None, None, "a key is plain text, not a list or a mapping", key.start_mark
            )
        if key.value in first_line and key.tag != _MERGE:
            what = f"is given twice, in lines {first_line[key.value]} and {line}"
            faults.append(Fault(prefix + key.value, what, "keep one"))
        first_line.setdefault(key.value, line)
        faults += _duplicates(value, f"{prefix}{key.value}.", seen, above)
    return faults
