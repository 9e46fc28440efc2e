"""Four small pictures with captions, and the list that `loong-dit cache` reads: `python write_list.py FOLDER`."""

import csv
import pathlib
import sys

from PIL import Image, ImageDraw

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
with (folder / "list.csv").open("w", newline="") as stream:
    rows = csv.writer(stream)
    rows.writerow(["image", "prompt"])
    for number, (colour, shape) in enumerate(
        [("red", "disc"), ("blue", "disc"), ("red", "square"), ("blue", "square")]
    ):
        picture = Image.new("RGB", (48, 32), "white")
        draw = ImageDraw.Draw(picture)
        (draw.ellipse if shape == "disc" else draw.rectangle)((14, 6, 34, 26), fill=colour)
        picture.save(folder / f"{number}.png")
        rows.writerow([f"{number}.png", f"a {colour} {shape}"])
