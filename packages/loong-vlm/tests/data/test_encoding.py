"""Conversations with images become the very ids that transformers' processors give, with the answers marked."""

import struct

import numpy as np
import pytest
import torch
from picture_toys import PROCESSOR, TOKENS, png, vision_encoder, vision_tokenizer, write_video
from PIL import Image

from loong_core.errors import UserError
from loong_llm.conversations.messages import BadSample
from loong_vlm.data import forms
from loong_vlm.data.media import MediaFolder, Medium, Stretch
from loong_vlm.data.pixels.tiles import Tiles
from loong_vlm.data.placeholders import InternLayout, QwenLayout
from loong_vlm.positions import OneAxis, ThreeAxes

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}IMAGE{% elif part.type == 'video' %}VIDEO"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def encoded(encoder, messages, tmp_path, number=0):
    talk, media = forms.reader("messages", {})({"messages": messages}, MediaFolder(tmp_path))
    return encoder.encode(talk, media)[number]


def shows(*parts):
    return [{"role": "user", "content": list(parts)}, {"role": "assistant", "content": "An answer."}]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_ids_are_those_of_qwens_processors(tmp_path, family):
    from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    from transformers.video_utils import read_video_pyav

    from loong_vlm.data.pixels.hugging_face import read_pixel_processor

    third = family == "qwen3_vl"
    template = CHATML.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
    # Qwen3-VL's processor of transformers 5 writes marks of vision around each frame, and leaves the template's around
    # all frames, which the model was not trained with; a template without these gives what it was trained with.
    template = template.replace("VIDEO", "<|video_pad|>" if third else "<|vision_start|><|video_pad|><|vision_end|>")
    tokenizer = vision_tokenizer([*TOKENS, "<|im_start|>", "<|im_end|>"])
    tokenizer.chat_template = template
    image = Qwen2VLImageProcessor(patch_size=4, size={"shortest_edge": 64, "longest_edge": 1024})
    make_video = Qwen3VLVideoProcessor if third else Qwen2VLVideoProcessor
    video = make_video(patch_size=4, size={"shortest_edge": 64, "longest_edge": 2048}, do_sample_frames=True, fps=2)
    make = Qwen3VLProcessor if third else Qwen2_5_VLProcessor
    theirs = make(image_processor=image, video_processor=video, tokenizer=tokenizer, chat_template=template)
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(f'{{"model_type": "{family}"}}')
    picture, film = tmp_path / "a.png", write_video(tmp_path / "a.mp4", frames=30, rate=10)
    picture.write_bytes(png(30, 50))
    parts = [
        {"type": "text", "text": "One "},
        {"type": "image", "path": str(picture)},
        {"type": "text", "text": " and "},
        {"type": "video", "path": str(film)},
    ]

    layout = QwenLayout(timestamps=third)
    ours = vision_encoder(
        layout, read_pixel_processor(tmp_path), tokenizer, ThreeAxes(frame_by_frame=third), template=None
    )
    sample = encoded(ours, shows(*parts), tmp_path)
    frames, metadata = read_video_pyav(str(film), lambda metadata: list(range(metadata.total_num_frames)))
    expected = theirs(
        text=[tokenizer.apply_chat_template(shows(*parts), tokenize=False)],
        images=[Image.open(picture)],
        videos=[frames],
        video_metadata=[metadata],
        return_tensors="pt",
        return_metadata=True,
        add_special_tokens=False,
    )

    length = len(sample.ids)
    assert sample.ids.tolist() == expected["input_ids"][0].tolist()[:length]
    assert tokenizer.decode(sample.ids[sample.trained]) == "An answer.<|im_end|>"
    grids = [*expected["image_grid_thw"].tolist(), *expected["video_grid_thw"].tolist()]
    assert [list(placed.measured.grid) for placed in sample.media] == grids
    if not third:
        seconds = [placed.measured.seconds for placed in sample.media][1]
        assert seconds == pytest.approx(float(expected["second_per_grid_ts"][0]))


def test_ids_of_tiles_are_those_of_internvls_processor(tmp_path):
    from transformers.models.got_ocr2.image_processing_got_ocr2 import GotOcr2ImageProcessor
    from transformers.models.internvl.processing_internvl import InternVLProcessor
    from transformers.models.internvl.video_processing_internvl import InternVLVideoProcessor

    special = ["<img>", "</img>", "<IMG_CONTEXT>", "<video>", "<|im_start|>", "<|im_end|>"]
    tokenizer = vision_tokenizer(special)
    names = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    for name, token in {**names, "video_token": "<video>"}.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    template = CHATML.replace("IMAGE", "<IMG_CONTEXT>\n").replace("VIDEO", "<video>\n")
    tokenizer.chat_template = template
    image = GotOcr2ImageProcessor(size={"height": 8, "width": 8}, crop_to_patches=True, max_patches=6)
    video = InternVLVideoProcessor(size={"height": 8, "width": 8})
    theirs = InternVLProcessor(image, tokenizer, video, image_seq_length=1, chat_template=template)
    picture = tmp_path / "a.png"
    picture.write_bytes(png(30, 50))
    parts = [{"type": "image", "path": str(picture)}, {"type": "text", "text": "What?"}]

    processor = Tiles(8, 4, 1, 6, PROCESSOR.normalisation, PROCESSOR.frames)
    ours = vision_encoder(InternLayout(), processor, tokenizer, OneAxis(), template=None)
    sample = encoded(ours, shows(*parts), tmp_path)
    expected = theirs(
        images=[Image.open(picture)],
        text=tokenizer.apply_chat_template(shows(*parts), tokenize=False),
        add_special_tokens=False,
    )
    assert sample.ids.tolist() == expected["input_ids"][0][: len(sample.ids)]


def test_an_image_written_with_a_new_line_gets_no_second_one(tmp_path):
    special = ["<img>", "</img>", "<IMG_CONTEXT>"]
    processor = Tiles(8, 4, 1, 1, PROCESSOR.normalisation, PROCESSOR.frames)
    encoder = vision_encoder(InternLayout(), processor, vision_tokenizer(special), OneAxis())
    (tmp_path / "a.png").write_bytes(png())
    record = {"images": ["a.png"], "messages": [{"role": "user", "content": "<image>\nWhat?"}]}
    record["messages"].append({"role": "assistant", "content": "a"})
    talk, media = forms.reader("messages", {})(record, MediaFolder(tmp_path))
    text = encoder.text.tokenizer.decode(encoder.encode(talk, media)[0].ids)
    assert "<img>" + "<IMG_CONTEXT>" + "</img>\nWhat?" in text


def test_answers_after_images_are_trained_on_where_they_stand(tmp_path):
    (tmp_path / "a.png").write_bytes(png(40, 40))
    encoder = vision_encoder()
    messages = [*shows({"type": "image", "image": "a.png"}), *shows({"type": "image", "image": "a.png"})]
    sample = encoded(encoder, messages, tmp_path)
    decoded = encoder.text.tokenizer.decode(sample.ids[sample.trained])
    assert decoded == "An answer.<|im_end|>" * 2
    pads = np.flatnonzero(np.isin(sample.ids, list(encoder.placeholder_ids.values())))
    assert [pads[0] - 1, pads[15] + 1] == [sample.media[0].first, sample.media[0].stop]
    assert len(pads) == 2 * sum(rows * columns // 4 for _, rows, columns in [PROCESSOR.image_grid(40, 40)])


def test_bad_input_a_tokenizer_without_the_image_token_is_refused():
    with pytest.raises(UserError, match=r"no token <\|image_pad\|> and no <\|video_pad\|>"):
        vision_encoder(tokenizer=vision_tokenizer(TOKENS[2:]))


def test_bad_input_text_that_holds_the_placeholder_itself_is_refused(tmp_path):
    messages = [{"role": "user", "content": "a <|image_pad|> b"}, {"role": "assistant", "content": "a"}]
    with pytest.raises(BadSample, match=r"shows more images than it has"):
        encoded(vision_encoder(), messages, tmp_path)


def test_bad_input_an_image_for_a_text_only_model_is_refused(tmp_path):
    encoder = vision_encoder(None, None)
    with pytest.raises(BadSample, match=r"the model reads text only"):
        encoded(encoder, shows({"type": "image", "image": "a.png"}), tmp_path)
    assert encoded(encoder, shows({"type": "text", "text": "a"}), tmp_path).media == []


BROKEN = {
    "missing": (None, "is missing; copy it there"),
    "empty": (b"", r"empty \(0 bytes\)"),
    "no image": (b"hello, world", "no image that Pillow knows"),
    "header cut": (png()[:20], "cannot be decoded|no image"),
    "no pixels": (b"GIF89a" + struct.pack("<HHBBB", 0, 0, 0, 0, 0) + b";", "cannot be decoded|no image|0 x 0"),
    "absurd ratio": (png(4, 1200), "300 times the other, at most 200"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_bad_input_an_unreadable_image_is_told_with_its_file(tmp_path, kind):
    data, message = BROKEN[kind]
    if data is not None:
        (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(BadSample, match=message) as told:
        encoded(vision_encoder(), shows({"type": "image", "image": "a.png"}), tmp_path)
    assert "a.png" in str(told.value)


def test_bad_input_a_file_that_is_no_video_is_told(tmp_path):
    for data, message in ((b"", r"empty \(0 bytes\)"), (b"hello", "no video that FFmpeg can decode")):
        (tmp_path / "a.mp4").write_bytes(data)
        with pytest.raises(BadSample, match=message):
            encoded(vision_encoder(), shows({"type": "video", "video": "a.mp4"}), tmp_path)


def test_bad_input_a_video_shorter_than_asked_gives_all_it_has(tmp_path):
    from loong_vlm.data.encoding import measure

    film = write_video(tmp_path / "a.mp4", frames=1, rate=2)
    assert measure(Medium("video", Stretch(film)), PROCESSOR).grid[0] == 1
    film = write_video(tmp_path / "b.mp4", frames=3, rate=30)
    assert measure(Medium("video", Stretch(film)), PROCESSOR).grid[0] == 1
    assert torch.equal(torch.tensor(PROCESSOR.frames.indices(_facts(film))), torch.tensor([0, 1]))


def _facts(film):
    from loong_vlm.data.pixels.video_files import video_facts

    return video_facts(film)
