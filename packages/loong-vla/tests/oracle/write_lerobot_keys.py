"""Write the names and shapes of the full-size Pi policies' tensors: `python write_lerobot_keys.py FILE`.

Runs in lerobot's own environment; the models are built on the meta device. Layers alike are written once, with `*`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot_sizes import modeling
from write_pi_golden import POLICIES


def keys(kind: str) -> dict[str, Any]:
    """Shape of each tensor by name."""
    config_class, policy_class = POLICIES[kind]
    inner = policy_class.replace("Policy", "Pytorch")
    config = config_class(
        input_features={"observation.images.a": PolicyFeature(FeatureType.VISUAL, (3, 224, 224))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (7,))},
        device="cpu",
    )
    with torch.device("meta"):
        model = getattr(modeling(kind), inner)(config)
    found: dict[str, Any] = {}
    for name, tensor in model.state_dict(prefix="model.").items():
        pattern = re.sub(r"\.layers\.\d+\.", ".layers.*.", name)
        entry = found.setdefault(pattern, {"shape": list(tensor.shape)})
        if entry["shape"] != list(tensor.shape):
            raise ValueError(f"{name} is {list(tensor.shape)}, another layer's {entry['shape']}")
        if pattern != name:
            entry["layers"] = entry.get("layers", 0) + 1
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps({kind: keys(kind) for kind in POLICIES}, indent=1) + "\n")
