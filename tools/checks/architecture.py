"""What may import what, and where a device or an engine may be named."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tools.checks.sources import imports, library_files, tree

MAY_IMPORT = {
    "loong-kernels": set(),
    "loong-core": {"loong_kernels"},
    "loong-llm": {"loong_kernels", "loong_core"},
    "loong-vlm": {"loong_kernels", "loong_core", "loong_llm"},
    "loong-vla": {"loong_kernels", "loong_core", "loong_llm", "loong_vlm"},
    "loong-dit": {"loong_kernels", "loong_core"},
    "loong-xpu": {"loong_kernels", "loong_core"},
}
"""The arrows between packages; each may import itself too. Nothing imports loong_xpu."""

CUDA_ROOMS = ("loong_core/device/", "loong_kernels/", "loong_xpu/")
MEGATRON_ROOMS = (
    "loong_core/engine/megatron/",
    "loong_core/parallel/",
    "loong_core/checkpoint/",
    "loong_core/data/indexed.py",
    "loong_core/device/",
)


def imports_follow_the_arrows() -> Iterator[str]:
    """Packages import only those below them."""
    for package, allowed in MAY_IMPORT.items():
        own = package.replace("-", "_")
        for path in library_files(package):
            for line, module, _ in imports(path):
                top = module.split(".")[0]
                if top.startswith("loong_") and top != own and top not in allowed:
                    yield f"{path}:{line}: {own} may not import {module}"


def raw_cuda_stays_in_the_device_folder() -> Iterator[str]:
    """`torch.cuda` and the literal "cuda" appear only where a device is meant."""
    for path in library_files():
        if any(room in path.as_posix() for room in CUDA_ROOMS):
            continue
        for node in ast.walk(tree(path)):
            if (isinstance(node, ast.Attribute) and node.attr == "cuda") or (
                isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("cuda")
            ):
                yield f"{path}:{node.lineno}: ask loong_core.device instead of naming cuda"


def megatron_has_one_door() -> Iterator[str]:
    """megatron-core is imported only behind the engine's door, and never when a module is merely imported."""
    for path in library_files():
        inside = any(room in path.as_posix() for room in MEGATRON_ROOMS)
        for line, module, at_module_level in imports(path):
            if module.split(".")[0] != "megatron":
                continue
            if not inside:
                yield f"{path}:{line}: megatron is imported outside its door"
            elif at_module_level:
                yield f"{path}:{line}: megatron's import takes seconds; import it where it is used"
