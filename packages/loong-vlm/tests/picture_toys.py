"""Small pictures, videos, a tokenizer with Qwen's vision tokens, and corpora of them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image

from loong_llm.conversations.encoding import RenderSettings
from loong_llm.tokenizer.byte_level import byte_tokenizer
from loong_vlm.data.arrangement import arrange
from loong_vlm.data.corpus import VisionSettings, VisionSource, open_vision_corpus
from loong_vlm.data.encoding import VisionEncoder
from loong_vlm.data.pixels.native_resolution import NativeResolution
from loong_vlm.data.pixels.patches import Normalisation
from loong_vlm.data.pixels.video import FrameChoice
from loong_vlm.data.placeholders import FeatureRuns, QwenLayout
from loong_vlm.parts import Meeting
from loong_vlm.positions import ThreeAxes

TOKENS = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]

PROCESSOR = NativeResolution(
    patch=4,
    merge=2,
    temporal=2,
    min_pixels=64,
    max_pixels=1024,
    video_min_pixels=64,
    video_max_pixels=512,
    pixels_of_all_frames=False,
    normalisation=Normalisation((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
    frames=FrameChoice("steps", per_second=2.0, least=2, most=8, multiple=2),
)


def vision_tokenizer(tokens=tuple(TOKENS)):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
    return tokenizer


class Merger:
    """A projector that joins squares of patches."""

    def __init__(self, side=2):
        self.side = side

    def __repr__(self):
        return f"Merger({self.side})"

    def feature_grid(self, grid):
        return (grid[0], grid[1] // self.side, grid[2] // self.side)


QWEN = QwenLayout()
ONE_RUN = ThreeAxes(frame_by_frame=False)


def vision_encoder(layout=QWEN, processor=PROCESSOR, tokenizer=None, positions=ONE_RUN, **settings):
    settings = {"template": "chatml", **settings}
    runs = None if layout is None else FeatureRuns(Merger(), positions)
    return VisionEncoder(tokenizer or vision_tokenizer(), RenderSettings(**settings), layout, processor, runs)


def picture(height=16, width=24, seed=0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def png(height=16, width=24, seed=0) -> bytes:
    file = io.BytesIO()
    picture(height, width, seed).save(file, "png")
    return file.getvalue()


def write_video(path: Path, frames=12, rate=6, height=16, width=16) -> Path:
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            pixels = np.full((height, width, 3), 20 * number % 256, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def parts():
    """What `arrange` asks of a model: where features go and how they are numbered."""
    tokenizer = vision_tokenizer()
    image, video = (tokenizer.convert_tokens_to_ids(token) for token in TOKENS[:2])
    return SimpleNamespace(meeting=Meeting(image, video, ThreeAxes(False)), projector=Merger())


def arranged(text, pictures):
    return arrange(text, pictures, parts())


def write_lines(path: Path, records) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def mixed_records(folder: Path, count=40, seed=0) -> list[dict]:
    """LLaVA's form: no image, one, or two of several sizes; a few with a video."""
    rng = np.random.default_rng(seed)
    records: list[dict] = []
    for number in range(count):
        images = []
        for place in range(int(rng.choice([0, 1, 2], p=[0.3, 0.5, 0.2]))):
            name = f"{seed}-{number}-{place}.png"
            height, width = (int(side) for side in rng.integers(8, 60, 2))
            picture(height, width, seed=number * 7 + place).save(folder / name)
            images.append(name)
        shown = "".join("<image>\n" for _ in images)
        record = {
            "conversations": [
                {"from": "human", "value": f"{shown}question {number}?"},
                {"from": "gpt", "value": "answer " * int(rng.integers(1, 12))},
            ]
        }
        if images:
            record["image"] = images if len(images) > 1 else images[0]
        if number % 13 == 5:
            write_video(folder / f"{seed}-{number}.mp4", frames=int(rng.integers(4, 14)))
            record["video"] = f"{seed}-{number}.mp4"
            record["conversations"][0]["value"] += "<video>"
        records.append(record)
    return records


def open_toys(sources, cache, *, balancer=None, encoder=None, on_blank=None, **settings):
    settings = {"sequence_length": 512, "patch_budget": 1024, "threads": 1, **settings}
    named = tuple(source if isinstance(source, VisionSource) else VisionSource(str(source)) for source in sources)
    whole = VisionSettings(named, Path(cache), **settings)
    return open_vision_corpus(whole, encoder or vision_encoder(), arranged, balancer=balancer, on_blank=on_blank)


def everything(batches) -> dict[str, torch.Tensor]:
    """What a list of batches holds, whatever its order: sorted tokens, labels and sums of patches."""
    return {
        "tokens": torch.cat([batch.tokens for batch in batches]).sort().values,
        "labels": torch.cat([batch.labels for batch in batches]).sort().values,
        "patches": torch.cat([batch.pictures.patches.sum(1) for batch in batches]).sort().values,
    }
