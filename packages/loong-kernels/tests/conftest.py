"""Without a GPU, Triton kernels run in Triton's interpreter; it must be chosen before triton is imported."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def _launches_a_compiler_would_take(monkeypatch):
    """The interpreter ignores launch options; a compiler refuses warps that are no power of two."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from triton.runtime.interpreter import GridExecutor

    launch = GridExecutor.__call__

    def checked(self, *arguments, **options):
        warps = options.get("num_warps", 4)
        assert warps in (1, 2, 4, 8, 16, 32), f"{self.fn.__name__}: num_warps {warps} is no power of two"
        return launch(self, *arguments, **options)

    monkeypatch.setattr(GridExecutor, "__call__", checked)
