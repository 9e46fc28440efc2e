"""Measures `pictures.json` beside this file: `python -m tools.bench.mixes.measure_pictures PYGAME.whl SKIMAGE.whl`.

The sizes are those of texts and images in wheels that anyone can download (`pip download --no-deps pygame`): pages of
pygame's documentation with the images that each shows, and the photographs of scikit-image with what their docstrings
say of them. Kept are, a sample, the bytes of its text and the height and width of each image, in order.
"""

from __future__ import annotations

import ast
import html
import io
import json
import posixpath
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

HERE = Path(__file__).parent
_LOGO = "pygame_tiny"


def size_of(data: bytes) -> list[int]:
    """Height and width."""
    with Image.open(io.BytesIO(data)) as image:
        return [image.height, image.width]


def pages(wheel: Path) -> Iterator[tuple[int, list[list[int]]]]:
    """Each page of documentation: bytes of its text, sizes of its images; the logo on every page is left out."""
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())
    for name in sorted(name for name in names if name.endswith(".html")):
        page = archive.read(name).decode("utf-8", "replace")
        page = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
        images = []
        for address in re.findall(r'<img[^>]+src="([^"]+)"', page):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), html.unescape(address)))
            if path in names and _LOGO not in path and not path.endswith(".svg"):
                images.append(size_of(archive.read(path)))
        text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
        yield len(text.encode("utf-8")), images


def photographs(wheel: Path) -> Iterator[tuple[int, list[list[int]]]]:
    """Each image of scikit-image that a function of its `data` gives, with the function's docstring."""
    archive = zipfile.ZipFile(wheel)
    source = archive.read("skimage/data/_fetchers.py").decode("utf-8")
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        named = [
            each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        files = [f"skimage/{name}" for name in named if f"skimage/{name}" in archive.namelist()]
        files = [file for file in files if file.endswith((".png", ".jpg"))]
        if files and (told := ast.get_docstring(node)):
            yield len(told.encode("utf-8")), [size_of(archive.read(file)) for file in files]


def main() -> None:
    """Measure, and write `pictures.json`."""
    pygame, skimage = (Path(argument) for argument in sys.argv[1:])
    samples: dict[str, Any] = {
        "source": (
            f"{pygame.name.split('-cp')[0]} (pages of its documentation) and {skimage.name.split('-cp')[0]} "
            "(photographs and their docstrings), wheels on PyPI, measured by measure_pictures.py."
        ),
        "sample": "bytes of text, and height and width of each image",
        "pages": list(pages(pygame)),
        "photographs": list(photographs(skimage)),
    }
    lines = ",\n".join(
        f" {json.dumps(key)}: "
        + (json.dumps(value) if isinstance(value, str) else "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]")
        for key, value in samples.items()
    )
    (HERE / "pictures.json").write_text("{\n" + lines + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
