"""Records go from any form to any other with their images unharmed; conversions go on; tars are WebDataset's."""

import json
import tarfile

import pytest
import torch
from picture_toys import mixed_records, open_toys, picture, png, write_lines
from typer.testing import CliRunner

from loong_core.errors import UserError
from loong_vlm.cli.main import app
from loong_vlm.data.conversion import convert_data


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toys")
    write_lines(folder / "mixed.jsonl", mixed_records(folder, 25))
    return folder


def seen(source, tmp_path):
    """Everything that a run sees of a source, in order."""
    corpus = open_toys([source], tmp_path / "cache", packing=False)
    samples = corpus.samples()[0].per_epoch
    batches = corpus.stream(global_batch_size=samples, micro_batch_size=1).next_step()
    return [(batch.tokens, batch.labels, batch.pictures.patches) for batch in batches]


def equal(one, other):
    assert len(one) == len(other)
    for first, second in zip(one, other):
        assert all(torch.equal(a, b) for a, b in zip(first, second))


@pytest.mark.parametrize("target", ["webdataset", "jsonl", "parquet"])
def test_every_form_trains_the_same(toys, tmp_path, target):
    convert_data(str(toys / "mixed.jsonl"), tmp_path / "out", target, samples_a_shard=10)
    equal(seen(toys / "mixed.jsonl", tmp_path), seen(tmp_path / "out", tmp_path))


def test_forms_follow_each_other_without_loss(toys, tmp_path):
    convert_data(str(toys / "mixed.jsonl"), tmp_path / "tars", "webdataset", samples_a_shard=7)
    convert_data(str(tmp_path / "tars"), tmp_path / "rows", "parquet", samples_a_shard=11)
    convert_data(str(tmp_path / "rows"), tmp_path / "lines", "jsonl", samples_a_shard=100)
    equal(seen(toys / "mixed.jsonl", tmp_path), seen(tmp_path / "lines", tmp_path))


def test_the_webdataset_library_reads_what_is_written(toys, tmp_path):
    import webdataset

    convert_data(str(toys / "mixed.jsonl"), tmp_path / "out", "webdataset", samples_a_shard=10)
    shards = sorted(str(path) for path in (tmp_path / "out").glob("*.tar"))
    assert len(shards) == 3
    records = list(webdataset.WebDataset(shards, shardshuffle=False))
    assert len(records) == 25
    for record in records:
        parts = [part for message in json.loads(record["json"])["messages"] for part in message["content"]]
        named = [part[part["type"]] for part in parts if isinstance(part, dict) and part["type"] != "text"]
        assert all(record[name] for name in named)


def test_tars_of_images_and_captions_are_read(tmp_path):
    import webdataset

    with webdataset.TarWriter(str(tmp_path / "a.tar")) as tar:
        for number in range(4):
            tar.write({"__key__": f"k{number}", "png": png(seed=number), "txt": f"caption {number}"})
    batch = open_toys([tmp_path / "a.tar"], tmp_path).stream(global_batch_size=1, micro_batch_size=1).next_step()[0]
    assert batch.pictures.count == 4


def test_a_conversion_goes_on_where_it_was_and_gives_the_same_bytes(toys, tmp_path):
    source = str(toys / "mixed.jsonl")
    convert_data(source, tmp_path / "whole", "webdataset", samples_a_shard=5)
    shards = []

    class Stopped(Exception):
        pass

    def stop_after_two(count):
        shards.append(count.shards)
        if count.shards == 2:
            raise Stopped

    with pytest.raises(Stopped):
        convert_data(source, tmp_path / "out", "webdataset", samples_a_shard=5, on_shard=stop_after_two)
    assert len(list((tmp_path / "out").glob("*.tar"))) == 2
    done = convert_data(source, tmp_path / "out", "webdataset", samples_a_shard=5, workers=2)
    assert (done.shards, done.found, done.written) == (5, 2, 25)
    for path in sorted((tmp_path / "whole").glob("*.tar")):
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()


def test_a_folder_of_something_else_is_not_written_into(toys, tmp_path):
    source = str(toys / "mixed.jsonl")
    (tmp_path / "mine").write_text("keep me")
    with pytest.raises(UserError, match="not empty and holds no conversion"):
        convert_data(source, tmp_path, "webdataset")
    convert_data(source, tmp_path / "out", "webdataset")
    with pytest.raises(UserError, match="the shards of another conversion"):
        convert_data(source, tmp_path / "out", "jsonl")


def test_bad_input_records_stop_a_conversion_or_are_left_out(tmp_path):
    picture().save(tmp_path / "a.png")
    good = {"image": "a.png", "caption": "a"}
    source = write_lines(tmp_path / "some.jsonl", [good, {"image": "gone.png", "caption": "a"}, good])
    with pytest.raises(UserError, match=r"some.jsonl, line 2: .*gone.png is missing.*--bad-samples skip"):
        convert_data(str(source), tmp_path / "out", "webdataset")
    assert list((tmp_path / "out").glob("shard-*")) == []
    done = convert_data(str(source), tmp_path / "out", "webdataset", bad_samples="skip")
    assert (done.records, done.written, done.left_out) == (3, 2, {"unreadable": 1})


def test_bad_input_a_tar_with_a_broken_member_is_told_or_left_out(toys, tmp_path):
    convert_data(str(toys / "mixed.jsonl"), tmp_path / "out", "webdataset")
    whole = next((tmp_path / "out").glob("*.tar"))
    with tarfile.open(whole) as tar:
        members = [member for member in tar if member.isfile()]
    cut = members[len(members) // 2]
    broken = tmp_path / "broken.tar"
    broken.write_bytes(whole.read_bytes()[: cut.offset_data + cut.size // 2])
    with pytest.raises(UserError, match=r"broken.tar, after member \d+: the tar is broken there"):
        open_toys([broken], tmp_path / "cache")
    corpus = open_toys([broken], tmp_path / "cache", bad_samples="skip")
    assert 0 < len(corpus.train[0].store) < 25
    assert "with an unreadable tar" in corpus.warnings()[-1]


def test_bad_input_a_record_of_a_tar_without_text_is_told(tmp_path):
    import webdataset

    with webdataset.TarWriter(str(tmp_path / "a.tar")) as tar:
        tar.write({"__key__": "k0", "png": png(), "txt": "a"})
        tar.write({"__key__": "k1", "png": png()})
    with pytest.raises(UserError, match=r"a.tar, record k1: it has no .json and no .txt part \(png\)"):
        open_toys([tmp_path / "a.tar"], tmp_path)


def test_the_command_converts_and_tells(toys, tmp_path):
    arguments = ["convert-data", str(toys / "mixed.jsonl"), str(tmp_path / "out"), "--samples-a-shard", "20"]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert "25 records" in first.output
    assert "2 shards" in first.output
    assert "2 shards of them there before" in CliRunner().invoke(app, arguments).output


def test_what_a_run_sees_is_shown_to_people(toys, tmp_path):
    from loong_vlm.data.inspection import inspect_vision_batches

    corpus = open_toys([toys / "mixed.jsonl"], tmp_path)
    batches = corpus.stream(global_batch_size=4, micro_batch_size=1).next_step()
    shown = "\n".join(text.plain for text in inspect_vision_batches(batches, corpus.encoder.text.tokenizer))
    assert shown.count("[image ") + shown.count("[video ") == sum(batch.pictures.count for batch in batches)
    assert "tokens]" in shown
    assert "<|image_pad|>" not in shown
    assert corpus.report()[0].startswith(str(toys / "mixed.jsonl"))
