"""The stream of packed samples with images: what it gives, to whom, and where it goes on."""

import shutil

import numpy as np
import pytest
import torch
from picture_toys import (
    PROCESSOR,
    everything,
    mixed_records,
    open_toys,
    picture,
    png,
    vision_encoder,
    write_lines,
    write_video,
)

from loong_core.data.batch import IGNORED_LABEL
from loong_core.data.read_ahead import ReadAhead
from loong_core.errors import UserError
from loong_vlm.balance.balancer import Balancer
from loong_vlm.balance.cost import CostModel
from loong_vlm.data.corpus import VisionSource
from loong_vlm.data.loading import load_medium

MODEL = CostModel(token_pairs=1e-3, tokens=1.0, samples=0.0, patch_pairs=1e-3, patches=1.0)


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toys")
    write_lines(folder / "mixed.jsonl", mixed_records(folder, 60))
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "a word or two"}]
    write_lines(folder / "text.jsonl", [{"messages": talk}] * 20)
    return folder


def steps(corpus, count, data_size=1, batch=4, start=None, micro=1):
    """`count` global batches, each as its ranks' microbatches in one list."""
    streams = [
        corpus.stream(global_batch_size=batch, micro_batch_size=micro, data_rank=rank, data_size=data_size)
        for rank in range(data_size)
    ]
    for stream in streams:
        if start is not None:
            stream.load_state_dict(start)
    found = [[batch for stream in streams for batch in stream.next_step()] for _ in range(count)]
    return found, streams[0].state_dict()


def test_an_epoch_shows_every_sample_and_every_image_once(toys, tmp_path):
    corpus = open_toys([toys / "mixed.jsonl"], tmp_path)
    sequences = corpus.samples()[0].per_epoch
    batches = corpus.stream(global_batch_size=sequences, micro_batch_size=1).next_step()

    store = corpus.train[0].store
    assert sum(batch.pictures.count for batch in batches) == len(store.media.rows)
    trained = sum(int((batch.labels != IGNORED_LABEL).sum()) for batch in batches)
    assert trained == corpus.train[0].count.trained_tokens
    assert all(batch.tokens.shape[0] == 512 and batch.pictures.patches.shape[0] <= 1024 for batch in batches)
    kinds = {kind for batch in batches for kind in batch.pictures.kinds}
    assert kinds == {"image", "video"}


def test_patches_stand_in_the_order_of_their_placeholders(toys, tmp_path):
    corpus = open_toys([toys / "mixed.jsonl"], tmp_path)
    stream = corpus.stream(global_batch_size=4, micro_batch_size=2)
    dealt = stream.deal()
    for number, batch in enumerate(stream.next_step()):
        rows = [stream.row(placements) for placements in dealt[2 * number : 2 * number + 2]]
        loaded = [load_medium(shown.medium.medium, PROCESSOR) for row in rows for shown in row.shown]
        assert torch.equal(batch.pictures.patches, torch.cat(loaded))
        features = int((batch.pictures.grid_thw.prod(1) // 4).sum())
        assert len(batch.placeholders) == features
        assert batch.text.position_ids.shape == (1024, 3)


@pytest.mark.parametrize("balanced", [False, True])
def test_global_batches_are_the_same_on_every_number_of_ranks(toys, tmp_path, balanced):
    alone, _ = steps(open_toys([toys / "mixed.jsonl"], tmp_path), 3)
    for ranks in (2, 4):
        balancer = Balancer(MODEL) if balanced else None
        shared, _ = steps(open_toys([toys / "mixed.jsonl"], tmp_path, balancer=balancer), 3, ranks)
        for one, several in zip(alone, shared):
            for name, expected in everything(one).items():
                assert torch.equal(everything(several)[name], expected)


def test_a_run_resumes_exactly_on_another_number_of_ranks(toys, tmp_path):
    sources = [VisionSource(str(toys / "mixed.jsonl"), 3), VisionSource(str(toys / "text.jsonl"), 1)]
    whole, _ = steps(open_toys(sources, tmp_path), 6)
    _, position = steps(open_toys(sources, tmp_path), 2)
    for ranks in (1, 4):
        resumed, _ = steps(open_toys(sources, tmp_path), 4, ranks, start=position)
        for expected, found in zip(whole[2:], resumed):
            assert torch.equal(everything(found)["patches"], everything(expected)["patches"])
            assert torch.equal(everything(found)["tokens"], everything(expected)["tokens"])


def test_other_images_are_other_data(toys, tmp_path):
    _, position = steps(open_toys([toys / "mixed.jsonl"], tmp_path), 1)
    other = tmp_path / "other"
    shutil.copytree(toys, other)
    with pytest.raises(UserError, match=r"not those of the checkpoint"):
        steps(open_toys([other / "mixed.jsonl"], tmp_path), 1, start=position)


def test_text_only_samples_are_mixed_in_by_weight(toys, tmp_path):
    sources = [VisionSource(str(toys / "mixed.jsonl"), 1), VisionSource(str(toys / "text.jsonl"), 1)]
    found, _ = steps(open_toys(sources, tmp_path), 4, batch=2)
    assert all(sum(batch.pictures.count == 0 for batch in batch_of_two) >= 1 for batch_of_two in found)
    text = open_toys([toys / "text.jsonl"], tmp_path).stream(global_batch_size=1, micro_batch_size=1).next_step()[0]
    assert text.pictures.patches.shape == (0, PROCESSOR.patch_dim)
    assert text.placeholders.shape == (0,)


def test_steps_are_read_ahead_by_threads(toys, tmp_path):
    expected, _ = steps(open_toys([toys / "mixed.jsonl"], tmp_path), 3)
    corpus = open_toys([toys / "mixed.jsonl"], tmp_path, threads=3)
    ahead = ReadAhead(corpus.stream(global_batch_size=4, micro_batch_size=1))
    for step in expected:
        for one, other in zip(step, ahead.next_step()):
            assert torch.equal(one.pictures.patches, other.pictures.patches)
    ahead.close()
    corpus.close()


def test_preparing_in_processes_gives_the_same_store(toys, tmp_path):
    one = open_toys([toys / "mixed.jsonl"], tmp_path / "one")
    two = open_toys([toys / "mixed.jsonl"], tmp_path / "two", workers=2)
    assert one.train[0].store.tokens.digest == two.train[0].store.tokens.digest
    assert one.train[0].store.media.digest == two.train[0].store.media.digest


def test_held_out_rows_have_their_images_too(toys, tmp_path):
    corpus = open_toys([toys / "mixed.jsonl"], tmp_path, validation_fraction=0.2)
    held_out = corpus.held_out()
    batches = held_out.microbatches(micro_batch_size=2)
    assert sum(int((batch.labels != IGNORED_LABEL).sum()) for batch in batches) == held_out.predicted_tokens
    shown = len(corpus.train[0].store.media.rows) + sum(batch.pictures.count for batch in batches)
    assert shown == len(open_toys([toys / "mixed.jsonl"], tmp_path).train[0].store.media.rows)


def test_parquet_and_datasets_folders_with_bytes_are_read(tmp_path):
    from datasets import Dataset, Features, Image, List, Value

    features = Features(
        {"images": List(Image()), "messages": List({"role": Value("string"), "content": Value("string")})}
    )
    talk = [{"role": "user", "content": "<image>what?"}, {"role": "assistant", "content": "a thing"}]
    rows = [{"images": [{"bytes": png(seed=seed), "path": None}], "messages": talk} for seed in range(5)]
    saved = Dataset.from_list(rows, features=features)
    saved.save_to_disk(tmp_path / "folder")
    saved.to_parquet(tmp_path / "rows.parquet")
    found = [
        open_toys([tmp_path / name], tmp_path / "cache").stream(global_batch_size=1, micro_batch_size=1).next_step()[0]
        for name in ("folder", "rows.parquet")
    ]
    assert found[0].pictures.count == 5
    assert torch.equal(found[0].pictures.patches, found[1].pictures.patches)


def one_sample(folder, *images, answer="an answer"):
    shown = "".join("<image>" for _ in images)
    talk = [{"role": "user", "content": f"{shown}what?"}, {"role": "assistant", "content": answer}]
    return write_lines(folder / "one.jsonl", [{"images": list(images), "messages": talk}] * 2)


def test_bad_input_a_sample_larger_than_the_sequence_is_cut_before_the_image_that_does_not_fit(tmp_path):
    picture(32, 32).save(tmp_path / "a.png")
    record = {
        "images": ["a.png", "a.png"],
        "messages": [
            {"role": "user", "content": "<image>"},
            {"role": "assistant", "content": "first answer"},
            {"role": "user", "content": "<image>"},
            {"role": "assistant", "content": "second"},
        ],
    }
    source = write_lines(tmp_path / "one.jsonl", [record])
    corpus = open_toys([source], tmp_path / "cache", sequence_length=110)
    batch = corpus.stream(global_batch_size=1, micro_batch_size=1).next_step()[0]
    assert batch.pictures.count == 1
    decoded = bytes(int(token) for token in batch.labels[batch.labels != IGNORED_LABEL] if token < 256).decode()
    assert decoded.startswith("first answer")
    assert "second" not in decoded
    assert corpus.samples()[0].count.truncated == 1
    with pytest.raises(
        UserError, match=r"sample 0 has .* data.sequence_length is 110; raise it, lower data.max_pixels"
    ):
        open_toys([source], tmp_path / "cache", sequence_length=110, long_samples="stop").samples()
    with pytest.raises(UserError, match=r"none of its 1 samples"):
        open_toys([source], tmp_path / "cache", sequence_length=110, long_samples="drop").samples()


def test_bad_input_a_sample_of_more_patches_than_the_budget_is_told(tmp_path):
    picture(32, 32).save(tmp_path / "a.png")
    source = one_sample(tmp_path, "a.png", "a.png")
    with pytest.raises(UserError, match=r"shows 128 patches of images, data.patch_budget is 100"):
        open_toys([source], tmp_path / "cache", patch_budget=100, long_samples="stop").samples()
    with pytest.raises(UserError, match=r"data.patch_budget 0 holds no image"):
        open_toys([source], tmp_path / "cache", patch_budget=0)


def test_bad_input_an_image_cut_short_stops_the_run_or_is_left_untrained(tmp_path):
    whole = png(48, 48)
    (tmp_path / "a.png").write_bytes(whole[: len(whole) // 2])
    source = one_sample(tmp_path, "a.png")
    with pytest.raises(UserError, match=r"a.png: it cannot be decoded .*; or set data.bad_samples to skip"):
        open_toys([source], tmp_path / "cache").stream(global_batch_size=1, micro_batch_size=1).next_step()

    told = []
    corpus = open_toys([source], tmp_path / "cache", bad_samples="skip", on_blank=lambda *news: told.append(news))
    batch = corpus.stream(global_batch_size=1, micro_batch_size=1).next_step()[0]
    assert int((batch.labels != IGNORED_LABEL).sum()) == 0
    assert batch.pictures.patches.abs().sum() == 0
    assert [count for _, count in told] == [1, 2]
    assert "a.png: it cannot be decoded" in told[0][0]


def test_bad_input_an_image_that_changed_since_it_was_prepared_is_told(tmp_path):
    picture(16, 16).save(tmp_path / "a.png")
    corpus = open_toys([one_sample(tmp_path, "a.png")], tmp_path / "cache")
    picture(32, 16).save(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"has 32 patches, 16 when it was prepared; it was changed since"):
        corpus.stream(global_batch_size=1, micro_batch_size=1).next_step()
    (tmp_path / "a.png").unlink()
    with pytest.raises(UserError, match=r"a.png is missing"):
        corpus.stream(global_batch_size=1, micro_batch_size=1).next_step()


def test_bad_input_pixels_that_are_no_numbers_are_told(tmp_path):
    from PIL import Image

    Image.fromarray(np.full((16, 16), np.nan, np.float32)).save(tmp_path / "a.tiff")
    corpus = open_toys([one_sample(tmp_path, "a.tiff")], tmp_path / "cache")
    with pytest.raises(UserError, match=r"a.tiff: it has pixels that are NaN"):
        corpus.stream(global_batch_size=1, micro_batch_size=1).next_step()


def test_bad_input_a_video_that_ends_before_its_header_says_is_told(tmp_path):
    film = write_video(tmp_path / "a.mp4", frames=12)
    from loong_vlm.data.pixels.video_files import decode_frames

    with pytest.raises(UserError, match=r"ends after 12 frames.*frame 40 is wanted"):
        decode_frames(film, [0, 3, 40])


def test_bad_input_bad_records_stop_the_run_or_are_counted_with_their_place(tmp_path):
    picture().save(tmp_path / "a.png")
    good = {"image": "a.png", "caption": "a thing"}
    source = write_lines(tmp_path / "some.jsonl", [good, {"image": "b.png", "caption": "a"}, good])
    with pytest.raises(UserError, match=r"some.jsonl, line 2: .*b.png is missing.*data.bad_samples to skip"):
        open_toys([source], tmp_path / "cache")
    corpus = open_toys([source], tmp_path / "cache", bad_samples="skip")
    assert len(corpus.train[0].store) == 2
    assert "1 of 3 records were left out (1 with images that cannot be read)" in corpus.warnings()[-1]


def test_bad_input_a_batch_without_any_image_on_one_rank_or_all_is_whole(toys, tmp_path):
    corpus = open_toys([toys / "text.jsonl"], tmp_path, balancer=Balancer(MODEL), sequence_length=64)
    found, _ = steps(corpus, 2, data_size=2, batch=4)
    assert all(batch.pictures.count == 0 and batch.tokens.shape == (64,) for step in found for batch in step)
    picture(32, 32).save(tmp_path / "a.png")
    sources = [VisionSource(str(toys / "text.jsonl"), 3), VisionSource(str(one_sample(tmp_path, "a.png")), 1)]
    corpus = open_toys(sources, tmp_path / "other", sequence_length=128, balancer=Balancer(MODEL))
    found, _ = steps(corpus, 1, data_size=4, batch=4)
    assert sorted(batch.pictures.count > 0 for batch in found[0]) == [False, False, False, True]


def test_a_run_for_text_only_has_no_corpus_with_images(toys, tmp_path):
    encoder = vision_encoder(None, None)
    with pytest.raises(ValueError, match=r"needs a pixel processor"):
        open_toys([toys / "text.jsonl"], tmp_path, encoder=encoder)
