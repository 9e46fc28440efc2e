"""Pixels equal those of transformers' processors on torchvision (the default, fast ones), in every bit."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.got_ocr2.image_processing_got_ocr2 import GotOcr2ImageProcessor
from transformers.models.internvl.video_processing_internvl import InternVLVideoProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata

from loong_vlm.data.pixels.hugging_face import read_pixel_processor
from loong_vlm.data.pixels.image_files import decode_image, image_size
from loong_vlm.data.pixels.video import VideoFacts

SIZES = [(28, 28), (100, 75), (333, 500), (64, 900), (17, 41), (600, 448), (448, 448), (1200, 30)]
CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def picture(height, width, seed=0):
    """Smooth shapes with noise: neither flat nor white."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [128 + 100 * np.sin(x / (3 + 7 * c) + y / (11 - 3 * c)) for c in range(3)]
    return np.clip(np.stack(waves, -1) + rng.normal(0, 25, (height, width, 3)), 0, 255).astype(np.uint8)


def folder_of(tmp_path, processor, video=None, **config):
    processor.save_pretrained(tmp_path)
    if video is not None:
        video.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    return read_pixel_processor(tmp_path)


NATIVE = {
    "qwen2_5_vl": dict(patch_size=14, size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 300}, **CLIP),
    "qwen3_vl": dict(patch_size=16, size={"shortest_edge": 64 * 64, "longest_edge": 512 * 512}, **HALF),
    "llavaonevision1_5": dict(
        patch_size=14, temporal_patch_size=1, size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 300}, **CLIP
    ),
}


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("family", NATIVE)
def test_native_resolution_gives_the_patches_of_qwens_processor(tmp_path, family, height, width):
    theirs = Qwen2VLImageProcessor(**NATIVE[family])
    ours = folder_of(tmp_path, theirs, model_type=family)
    pixels = picture(height, width)

    expected = theirs(images=[Image.fromarray(pixels)], return_tensors="pt")
    patches = ours.normalisation(ours.image_patches(torch.from_numpy(pixels)), ours.temporal)

    assert torch.equal(patches, expected["pixel_values"])
    assert ours.image_grid(height, width) == tuple(expected["image_grid_thw"][0].tolist())
    assert patches.shape[1] == ours.patch_dim


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_tiles_are_those_of_internvls_processor(tmp_path, height, width):
    theirs = GotOcr2ImageProcessor(size={"height": 56, "width": 56}, crop_to_patches=True, max_patches=6, **CLIP)
    ours = folder_of(tmp_path, theirs, model_type="internvl", vision_config={"patch_size": [14, 14]})
    pixels = picture(height, width)

    expected = theirs(images=[Image.fromarray(pixels)], return_tensors="pt")["pixel_values"]
    patches = ours.normalisation(ours.image_patches(torch.from_numpy(pixels)), ours.temporal)

    tiles, rows, columns = ours.image_grid(height, width)
    assert (tiles, rows, columns) == (len(expected), 4, 4)
    whole = patches.view(tiles, rows, columns, 3, 14, 14).permute(0, 3, 1, 4, 2, 5).reshape(tiles, 3, 56, 56)
    assert torch.equal(whole, expected)


VIDEO = {
    "qwen2_5_vl": lambda: Qwen2VLVideoProcessor(
        size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 20}, do_sample_frames=True, fps=2, **CLIP
    ),
    "llavaonevision1_5": lambda: Qwen2VLVideoProcessor(
        temporal_patch_size=1,
        size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 20},
        do_sample_frames=True,
        fps=2,
        **CLIP,
    ),
    "qwen3_vl": lambda: Qwen3VLVideoProcessor(size={"shortest_edge": 4096, "longest_edge": 32 * 32 * 60}),
}


@pytest.mark.parametrize(("frames", "rate"), [(20, 5.0), (31, 24.0), (7, 1.0), (61, 29.97), (5, 2.0)])
@pytest.mark.parametrize("family", VIDEO)
def test_videos_give_the_frames_and_patches_of_qwens_processors(tmp_path, family, frames, rate):
    theirs = VIDEO[family]()
    ours = folder_of(tmp_path, Qwen2VLImageProcessor(**NATIVE[family]), theirs, model_type=family)
    video = np.stack([picture(90, 120, seed) for seed in range(frames)])
    metadata = VideoMetadata(total_num_frames=frames, fps=rate, duration=frames / rate)

    expected = theirs(videos=[video], video_metadata=[metadata], return_tensors="pt")
    chosen = ours.frames.indices(VideoFacts(frames, rate, 90, 120))
    patches = ours.normalisation(ours.video_patches(torch.from_numpy(video[chosen])), ours.temporal)

    assert torch.equal(patches, expected["pixel_values_videos"])
    assert ours.video_grid(len(chosen), 90, 120) == tuple(expected["video_grid_thw"][0].tolist())


@pytest.mark.parametrize(("frames", "count"), [(20, 8), (9, 8), (31, 4)])
def test_videos_give_the_frames_and_tiles_of_internvls_processor(tmp_path, frames, count):
    theirs = InternVLVideoProcessor(size={"height": 56, "width": 56}, do_sample_frames=True, num_frames=count)
    image = GotOcr2ImageProcessor(size={"height": 56, "width": 56}, **CLIP)
    ours = folder_of(tmp_path, image, theirs, model_type="internvl", vision_config={"patch_size": 14})
    video = np.stack([picture(60, 80, seed) for seed in range(frames)])
    metadata = VideoMetadata(total_num_frames=frames, fps=10.0, duration=frames / 10)

    expected = theirs(videos=[video], video_metadata=[metadata], return_tensors="pt")["pixel_values_videos"][0]
    chosen = ours.frames.indices(VideoFacts(frames, 10.0, 60, 80))
    patches = ours.normalisation(ours.video_patches(torch.from_numpy(video[chosen])), ours.temporal)

    whole = patches.view(count, 4, 4, 3, 14, 14).permute(0, 3, 1, 4, 2, 5).reshape(count, 3, 56, 56)
    assert torch.equal(whole, expected)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "CMYK", "1", "LA"])
def test_files_of_every_mode_decode_as_transformers_loads_them(tmp_path, mode):
    from transformers.image_utils import load_image

    image = Image.fromarray(picture(40, 30)).convert("RGBA" if mode in ("RGBA", "LA") else "RGB").convert(mode)
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    image.save(path)

    assert np.array_equal(decode_image(path.read_bytes()).numpy(), np.array(load_image(str(path))))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_the_image_and_its_size(orientation):
    from transformers.image_utils import load_image

    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(picture(40, 30)).save(file, "jpeg", exif=exif)

    decoded = decode_image(file.getvalue())
    assert image_size(file.getvalue()) == tuple(decoded.shape[:2])
    assert np.array_equal(decoded.numpy(), np.array(load_image(Image.open(io.BytesIO(file.getvalue())))))
