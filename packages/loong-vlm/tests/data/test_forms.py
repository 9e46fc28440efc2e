"""Every form of conversation with images becomes the same text and the same images."""

import base64

import pytest
from picture_toys import png

from loong_llm.conversations.messages import BadSample
from loong_vlm.data import forms
from loong_vlm.data.media import MediaFolder, Stretch

PICTURE = png()
URL = "data:image/png;base64," + base64.b64encode(PICTURE).decode()


def read(record, tmp_path, form=None, fields=None):
    chosen = form or forms.detect(record)
    conversation, media = forms.reader(chosen, fields or {})(record, MediaFolder(tmp_path))
    return [message["content"] for message in conversation.messages], media


def user(*parts):
    return [{"role": "user", "content": list(parts)}, {"role": "assistant", "content": "a"}]


TEXT = {"type": "text", "text": " what?"}
SAME = {
    "openai": {"messages": user({"type": "image_url", "image_url": {"url": "a.png"}}, TEXT)},
    "qwen": {"messages": user({"type": "image", "image": "a.png"}, TEXT)},
    "transformers": {"messages": user({"type": "image", "path": "a.png"}, TEXT)},
    "images beside parts": {"messages": user({"type": "image"}, TEXT), "images": ["a.png"]},
    "llava": {
        "id": "7",
        "image": "a.png",
        "conversations": [{"from": "human", "value": "<image> what?"}, {"from": "gpt", "value": "a"}],
    },
    "sharegpt with images": {
        "images": ["a.png"],
        "conversations": [{"from": "human", "value": "<image> what?"}, {"from": "gpt", "value": "a"}],
    },
    "messages with images": {
        "images": [{"path": "a.png", "bytes": None}],
        "messages": [{"role": "user", "content": "<image> what?"}, {"role": "assistant", "content": "a"}],
    },
    "alpaca": {"images": ["a.png"], "instruction": "<image> what?", "output": "a"},
    "caption": {"image": "a.png", "prompt": " what?", "caption": "a"},
    "json in a cell": {
        "images": '["a.png"]',
        "conversations": '[{"from": "human", "value": "<image> what?"}, {"from": "gpt", "value": "a"}]',
    },
}


@pytest.mark.parametrize("record", SAME.values(), ids=SAME)
def test_every_form_becomes_the_same_conversation(tmp_path, record):
    contents, media = read(record, tmp_path)
    assert contents == [forms.mark(0) + " what?", "a"]
    assert [(medium.kind, medium.source) for medium in media] == [("image", Stretch(tmp_path / "a.png"))]


def test_images_and_videos_keep_the_order_of_the_text(tmp_path):
    text = "<image> then <video> then <image>"
    record = {"images": ["a", "c"], "videos": ["b"], "messages": [{"role": "user", "content": text}]}
    record["messages"].append({"role": "assistant", "content": "a"})
    contents, media = read(record, tmp_path)
    assert contents[0] == f"{forms.mark(0)} then {forms.mark(1)} then {forms.mark(2)}"
    assert [(medium.kind, medium.source.path.name) for medium in media] == [
        ("image", "a"),
        ("video", "b"),
        ("image", "c"),
    ]


@pytest.mark.parametrize(
    "image",
    [{"bytes": PICTURE, "path": None}, PICTURE, URL, {"url": URL}],
    ids=["datasets", "bytes", "data address", "openai"],
)
def test_images_may_come_as_bytes(tmp_path, image):
    _, media = read({"image": image, "caption": "a"}, tmp_path)
    assert media[0].read() == PICTURE


def test_a_file_address_is_a_path(tmp_path):
    (tmp_path / "a b.png").write_bytes(PICTURE)
    _, media = read({"image": f"file://{tmp_path}/a%20b.png", "caption": "a"}, tmp_path)
    assert media[0].read() == PICTURE


def test_fields_of_other_names_are_told(tmp_path):
    record = {"pictures": ["a.png"], "talk": [{"role": "user", "content": "<image>"}]}
    record["talk"].append({"role": "assistant", "content": "a"})
    contents, media = read(record, tmp_path, "messages", {"images": "pictures", "messages": "talk"})
    assert contents == [forms.mark(0), "a"]
    assert len(media) == 1


def test_a_video_tells_its_own_frames_per_second(tmp_path):
    _, media = read({"messages": user({"type": "video", "video": "a.mp4", "fps": 0.5}, TEXT)}, tmp_path)
    assert media[0].per_second == 0.5


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": user({"type": "image"}, TEXT)}, "shows image 1, the record has 0 images"),
        ({"image": "a", "conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": "a"}]}, "0 places"),
        (
            {"image": "a", "conversations": [{"from": "human", "value": "<image><image>"}]},
            "shows image 2, the record has 1 images",
        ),
        ({"image": "http://host/a.png", "caption": "a"}, "lies on the network"),
        ({"image": 7, "caption": "a"}, "is 7, expected a path or bytes"),
        ({"image": "data:image/png;base64,@@@", "caption": "a"}, "cannot be decoded"),
        ({"image": "data:image/png,abc", "caption": "a"}, "expected 'data:...;base64,'"),
        ({"messages": user({"type": "video", "video": "a", "fps": -1}, TEXT)}, "-1 frames per second"),
        ({"messages": user({"type": "image", "image": "a"}, {"type": "text", "text": forms.mark(3)})}, "U\\+E000"),
    ],
)
def test_bad_input_in_a_record_is_told(tmp_path, record, message):
    with pytest.raises(BadSample, match=message):
        read(record, tmp_path)


def test_records_of_no_form_are_not_guessed_at():
    assert forms.detect({"image": "a.png", "label": 3}) is None
    assert forms.detect({"text": "only words"}) is None
