"""Write the names and shapes of the full-size GR00T N1.7's tensors: `python write_lerobot_groot_keys.py FILE`.

Runs in lerobot's own environment; the model is built on the meta device. Numbered layers are written as `*`, with the
numbers of those that have a shape.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import torch
from lerobot.policies.groot import groot_n1_7 as module

PREFIX = "_groot_model."


def keys() -> dict[str, dict[str, list[int]]]:
    """Of each name, with `*` for a number between dots, the numbers of each shape (none where there is no `*`)."""
    with torch.device("meta"):
        model = module.GR00TN17(module.GR00TN17Config(), load_backbone_weights=False)
    found: dict[str, dict[str, list[int]]] = {}
    for name, tensor in model.state_dict(prefix=PREFIX).items():
        number = re.search(r"(?:layers|blocks|transformer_blocks|deepstack_merger_list)\.(\d+)\.", name)
        pattern = name if number is None else f"{name[: number.start(1)]}*{name[number.end(1) :]}"
        numbers = found.setdefault(pattern, {}).setdefault(",".join(map(str, tensor.shape)), [])
        if number is not None:
            numbers.append(int(number[1]))
    return found


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(shapes)}" for name, shapes in keys().items()]
    Path(sys.argv[1]).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
