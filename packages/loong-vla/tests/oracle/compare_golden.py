"""Compare freshly written results of lerobot's with those kept in the tests: `python compare_golden.py FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

TESTS = Path(__file__).parents[1]

if __name__ == "__main__":
    fresh = Path(sys.argv[1])
    for kept in sorted((TESTS / "families" / "golden").glob("lerobot_*.safetensors")):
        before, now = load_file(kept), load_file(fresh / kept.name)
        assert before.keys() == now.keys(), kept.name
        for name, values in before.items():
            torch.testing.assert_close(now[name], values, rtol=1e-6, atol=1e-9, msg=lambda text, n=name: f"{n}: {text}")
        print(f"{kept.name}: {len(before)} tensors are the same")
    for keys in sorted((TESTS / "lerobot_folder").glob("lerobot_*keys.json")):
        assert json.loads(keys.read_text()) == json.loads((fresh / keys.name).read_text()), keys.name
        print(f"{keys.name}: the same")
