"""Folders are written as many ranks hold them, whole, sharded, and all at once."""

import json

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file

from loong_core.checkpoint.hf_export import export_hf
from loong_core.checkpoint.hf_reader import HFFolder
from loong_core.checkpoint.hf_writer import FolderWriter, parse_size, plan_shards
from loong_core.checkpoint.pieces import Piece, StatePiece
from loong_core.errors import LoongError, UserError
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_core.parallel.pool import RankError

ONE = ParallelContext.single()
CONFIG = {"model_type": "toy", "eos_token_id": 3, "dtype": "float16"}
TENSORS = {
    "layers.2.w": torch.randn(4, 6, generator=torch.Generator().manual_seed(0)),
    "layers.10.w": torch.arange(12.0).reshape(3, 4),
    "norm": torch.tensor([1.0, float("-0.0"), 1e-40]),
}


def whole(tensors):
    return [StatePiece("weight", Piece.whole(name, tuple(t.shape)), t) for name, t in tensors.items()]


def test_what_is_written_is_bit_equal_and_says_its_dtype(tmp_path):
    export_hf(tmp_path / "out", CONFIG, whole(TENSORS), ONE, torch.float32)
    stored = load_file(tmp_path / "out/model.safetensors")
    assert {name: t.numpy().tobytes() for name, t in stored.items()} == {
        name: t.numpy().tobytes() for name, t in TENSORS.items()
    }
    assert json.loads((tmp_path / "out/config.json").read_text()) == CONFIG | {"dtype": "float32"}
    assert json.loads((tmp_path / "out/generation_config.json").read_text()) == {"eos_token_id": 3}
    with safe_open(tmp_path / "out/model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_files_hold_at_most_what_they_may_and_the_index_finds_each_tensor(tmp_path):
    export_hf(tmp_path / "out", CONFIG, whole(TENSORS), ONE, torch.float32, max_shard_size=100)
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert index == {
        "metadata": {"total_size": (24 + 12 + 3) * 4},
        "weight_map": {
            "layers.2.w": "model-00001-of-00002.safetensors",
            "layers.10.w": "model-00002-of-00002.safetensors",
            "norm": "model-00002-of-00002.safetensors",
        },
    }
    opened = HFFolder(tmp_path / "out")
    opened.check({name: tuple(t.shape) for name, t in TENSORS.items()})
    assert torch.equal(opened.read(Piece.whole("norm", (3,))), TENSORS["norm"])


def test_tokenizer_and_generation_files_come_along(tmp_path):
    source, tokenizer = tmp_path / "source", tmp_path / "tokenizer"
    for folder, text in ((source, "old"), (tokenizer, "new")):
        folder.mkdir()
        (folder / "tokenizer.json").write_text(text)
    (source / "generation_config.json").write_text('{"top_k": 5}')
    (source / "modeling.py").write_text("code")
    (source / "model.safetensors").write_text("weights")
    export_hf(tmp_path / "out", CONFIG, whole(TENSORS), ONE, torch.bfloat16, tokenizer, companions=source)
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names == ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"]
    assert (tmp_path / "out/tokenizer.json").read_text() == "new"
    assert (tmp_path / "out/generation_config.json").read_text() == '{"top_k": 5}'


def test_a_folder_in_use_is_kept_unless_it_is_to_give_way(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious").write_text("")
    with pytest.raises(UserError, match="exists and is not empty"):
        export_hf(tmp_path / "out", CONFIG, whole(TENSORS), ONE, torch.float32)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    export_hf(tmp_path / "out", CONFIG, whole(TENSORS), ONE, torch.float32, replace=True)
    assert not (tmp_path / "out/precious").exists()
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_nothing_appears_under_the_name_before_all_is_written(tmp_path):
    writer = FolderWriter(tmp_path / "out")
    writer.begin()
    shards = plan_shards({"norm": ((3,), torch.float32)})
    writer.write_shard(shards[0], TENSORS.get)
    assert not (tmp_path / "out").exists()
    writer.publish(shards, CONFIG)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_elements_that_no_rank_holds_are_told_by_tensor(tmp_path):
    half = [StatePiece("weight", Piece("w", (4, 2), (0, 0), (2, 2)), torch.zeros(2, 2))]
    with pytest.raises(LoongError, match="w: 4 of 8 elements"):
        export_hf(tmp_path / "out", CONFIG, half, ONE, torch.float32)
    assert list(tmp_path.iterdir()) == []


def export_share(folder, full_disk):
    """Rank 0 has the left half of a matrix, rank 1 the right one and the norm; both have the last matrix."""
    context = ParallelContext.build(Layout(tensor=2), "cpu")
    rank = dist.get_rank()
    first = TENSORS["layers.2.w"]
    mine = Piece("layers.2.w", (4, 6), (0, 3 * rank), (4, 3))
    pieces = [StatePiece("weight", mine, first[mine.slices]), *whole({"layers.10.w": TENSORS["layers.10.w"]})]
    if rank == 1:
        pieces += whole({"norm": TENSORS["norm"]})
    with pytest.MonkeyPatch.context() as patch:
        if full_disk and rank == 1:
            patch.setattr(FolderWriter, "write_shard", refuse)
        export_hf(folder, CONFIG, pieces, context, torch.float32, max_shard_size=60)


def refuse(writer, shard, values):
    raise OSError(28, "No space left on device", shard.file)


def test_shares_of_several_ranks_become_whole_tensors(ranks, tmp_path):
    ranks.run(2, export_share, tmp_path / "out", False)
    opened = HFFolder(tmp_path / "out")
    for name, tensor in TENSORS.items():
        assert torch.equal(opened.read(Piece.whole(name, tuple(tensor.shape))), tensor)


def test_a_rank_that_cannot_write_ends_the_export_on_every_rank(ranks, tmp_path):
    with pytest.raises(RankError) as caught:
        ranks.run(2, export_share, tmp_path / "out", True)
    for rank in ("rank 0 of 2", "rank 1 of 2"):
        assert rank in str(caught.value)
    assert str(caught.value).count("could not write the model: rank 1: [Errno 28] No space left on device") == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5 * 10**9), ("2GiB", 2 * 2**30), ("500 mb", 500 * 10**6), ("1.5k", 1500), (7, 7)]
)
def test_sizes_are_read_in_both_kinds_of_unit(text, size):
    assert parse_size(text) == size


def test_a_size_that_is_none_is_refused():
    with pytest.raises(UserError, match="'5 boxes' is not a size; write it as 500MB, 5GB or 2GiB"):
        parse_size("5 boxes")
