"""Reading YAML as people write it: `1e-3` is a number, and a key given twice is a fault, not the last one's victory."""

from __future__ import annotations

import re
from typing import Any

import yaml

from loong_core.errors import Fault


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with YAML 1.2's floats (1.1 reads `1e-3` as a string)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse_value(text: str) -> Any:
    """The value of an override, `text` being what follows the `=`. Raises yaml.YAMLError."""
    return yaml.load(text, _Loader)


def parse_document(text: str, where: str) -> tuple[dict[str, Any], list[Fault]]:
    """The mapping that `text` holds, and what is wrong with it as YAML. `where` names the file."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return {}, []
        if not isinstance(node, yaml.MappingNode):
            return {}, [Fault(where, "is not a mapping of keys to values", "write `key: value` lines")]
        return loader.construct_document(node), _duplicates(node, "")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}" if mark else where
        return {}, [Fault(place, f"is not YAML: {getattr(error, 'problem', None) or error}")]
    finally:
        loader.dispose()


def _duplicates(node: yaml.Node, prefix: str) -> list[Fault]:
    if isinstance(node, yaml.SequenceNode):
        return [fault for index, item in enumerate(node.value) for fault in _duplicates(item, f"{prefix}{index}.")]
    if not isinstance(node, yaml.MappingNode):
        return []
    faults: list[Fault] = []
    first_line: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.value in first_line:
            what = f"is given twice, in lines {first_line[key.value]} and {line}"
            faults.append(Fault(prefix + key.value, what, "keep one"))
        first_line.setdefault(key.value, line)
        faults += _duplicates(value, f"{prefix}{key.value}.")
    return faults
