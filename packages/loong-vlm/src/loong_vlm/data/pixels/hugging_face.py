"""The pixel processor that a Hugging Face folder describes, by its preprocessor files. No code of it is run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loong_core.errors import UserError
from loong_vlm.data.pixels.native_resolution import NativeResolution
from loong_vlm.data.pixels.patches import Normalisation
from loong_vlm.data.pixels.processor import PixelProcessor
from loong_vlm.data.pixels.resampling import FILTERS, Filter
from loong_vlm.data.pixels.tiles import Tiles
from loong_vlm.data.pixels.video import FrameChoice

_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

_Config = Mapping[str, Any]


def read_pixel_processor(folder: Path) -> PixelProcessor:
    """The processor of a model's folder.

    Raises:
        UserError: the folder lacks a preprocessor file, or it is of a kind that is not known.
    """
    image, video = _configs(folder)
    model = _json(folder / "config.json") if (folder / "config.json").is_file() else {}
    kind = str(image.get("image_processor_type", image.get("feature_extractor_type", ""))).removesuffix("Fast")
    kind = kind.removesuffix("Pil")
    if kind in ("Qwen2VLImageProcessor", "Qwen3VLImageProcessor"):
        return _native(image, video, model)
    if kind == "GotOcr2ImageProcessor":
        return _got_tiles(image, video, model)
    if model.get("model_type") == "internvl_chat":
        return _chat_tiles(image, model)
    raise UserError(
        f"{folder}: images of a {kind or 'nameless processor'} are not known; known are Qwen2VLImageProcessor, "
        "GotOcr2ImageProcessor, and folders of model type internvl_chat"
    )


def _configs(folder: Path) -> tuple[_Config, _Config]:
    """Settings for images and for videos."""
    whole = _json(folder / "processor_config.json") if (folder / "processor_config.json").is_file() else {}
    image = whole.get("image_processor")
    if image is None:
        path = folder / "preprocessor_config.json"
        if not path.is_file():
            raise UserError(
                f"{folder} has no preprocessor_config.json, so there is no telling how it reads images; copy the whole "
                "folder of a vision-language model"
            )
        image = _json(path)
    video = whole.get("video_processor")
    if video is None:
        path = folder / "video_preprocessor_config.json"
        video = _json(path) if path.is_file() else {}
    return image, video


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _native(image: _Config, video: _Config, model: _Config) -> NativeResolution:
    text = str(video.get("video_processor_type", "")) or str(model.get("model_type", ""))
    third = text.startswith(("Qwen3VL", "qwen3_vl"))
    patch, merge = int(image.get("patch_size", 14)), int(image.get("merge_size", 2))
    temporal = int(image.get("temporal_patch_size", 2))
    least, most = _pixels(image, 56 * 56, 28 * 28 * 1280)
    side = 32 if third else 28
    video_least, video_most = _pixels(video, 128 * side * side, side * side * 768)
    return NativeResolution(
        patch=patch,
        merge=merge,
        temporal=temporal,
        min_pixels=least,
        max_pixels=most,
        video_min_pixels=video_least,
        video_max_pixels=video_most,
        pixels_of_all_frames=third,
        normalisation=_normalisation(image, _CLIP),
        frames=FrameChoice(
            spread="ends" if third else "steps",
            per_second=float(video.get("fps") or 2.0),
            count=video.get("num_frames"),
            least=int(video.get("min_frames", 4)),
            most=int(video.get("max_frames", 768)),
            multiple=temporal,
        ),
        filter=_filter(image),
    )


def _pixels(config: _Config, least: int, most: int) -> tuple[int, int]:
    size = config.get("size") or {}
    low = config.get("min_pixels") or size.get("shortest_edge") or size.get("min_pixels") or least
    high = config.get("max_pixels") or size.get("longest_edge") or size.get("max_pixels") or most
    return int(low), int(high)


def _got_tiles(image: _Config, video: _Config, model: _Config) -> Tiles:
    vision = model.get("vision_config", {})
    patch = vision.get("patch_size", 14)
    return Tiles(
        side=int((image.get("size") or {}).get("height", 448)),
        patch=int(patch[0] if isinstance(patch, list) else patch),
        least=int(image.get("min_patches", 1)),
        most=int(image.get("max_patches", 12)),
        normalisation=_normalisation(image, _CLIP),
        frames=_middles(video),
        filter=_filter(image),
    )


def _chat_tiles(image: _Config, model: _Config) -> Tiles:
    vision = model.get("vision_config", {})
    dynamic = model.get("dynamic_image_size", True)
    return Tiles(
        side=int(model.get("force_image_size") or vision.get("image_size", 448)),
        patch=int(vision.get("patch_size", 14)),
        least=int(model.get("min_dynamic_patch", 1)) if dynamic else 1,
        most=int(model.get("max_dynamic_patch", 12)) if dynamic else 1,
        normalisation=_normalisation(image, _IMAGENET),
        frames=_middles({}),
        filter=_filter(image),
    )


def _middles(video: _Config) -> FrameChoice:
    count = video.get("num_frames")
    return FrameChoice("middles", per_second=None if count else float(video.get("fps") or 2.0), count=count, least=1)


def _normalisation(config: _Config, default: tuple[tuple[float, ...], tuple[float, ...]]) -> Normalisation:
    if config.get("do_normalize", True) is False or config.get("do_rescale", True) is False:
        raise UserError("a processor that does not rescale or not normalise is not known; set do_rescale, do_normalize")
    mean, std = config.get("image_mean") or default[0], config.get("image_std") or default[1]
    return Normalisation(tuple(mean), tuple(std), float(config.get("rescale_factor") or 1 / 255))


def _filter(config: _Config) -> Filter:
    number = config.get("resample", 3)
    if number not in FILTERS:
        raise UserError(f"resample {number} is not known; known are {', '.join(map(str, FILTERS))} (bilinear, bicubic)")
    return FILTERS[number]
