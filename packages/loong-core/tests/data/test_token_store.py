import os

import numpy as np
import pytest

from loong_core.data.token_store import TokenStore, TokenWriter, open_store, published_folder
from loong_core.errors import UserError


def written(folder, pieces, vocab_size=300):
    """`pieces`: (ids, whether the document ends)."""
    with published_folder(folder) as temporary:
        writer = TokenWriter(temporary, vocab_size)
        for group in (pieces[:2], pieces[2:]):
            ids = np.array([number for piece, _ in group for number in piece], dtype=np.int64)
            lengths = np.array([len(piece) for piece, _ in group], dtype=np.int64)
            writer.add(ids, lengths, np.array([ends for _, ends in group], dtype=bool), text_bytes=len(ids))
        writer.finish({"made": "here"})
    return folder


PIECES = [([1, 2], True), ([3], False), ([4, 5], False), ([6], True), ([], True), ([7], True)]


def test_what_is_written_in_pieces_reads_back_as_documents(tmp_path):
    store = open_store(written(tmp_path / "store", PIECES), "toy", verify=True)
    assert [store.document(index).tolist() for index in range(len(store))] == [[1, 2], [3, 4, 5, 6], [7]]
    assert (store.total_tokens, store.empty_documents, store.text_bytes) == (7, 1, 7)
    assert isinstance(store.tokens, np.memmap)
    assert store.tokens.dtype == np.uint16


def test_ids_beyond_two_bytes_are_kept(tmp_path):
    folder = written(tmp_path / "store", [([70000, 1], True)], vocab_size=70001)
    assert open_store(folder, "toy", verify=True).document(0).tolist() == [70000, 1]


def test_equal_documents_have_equal_digests_and_others_do_not(tmp_path):
    first = open_store(written(tmp_path / "a", PIECES), "a", verify=False)
    again = open_store(written(tmp_path / "b", PIECES), "b", verify=False)
    other = open_store(written(tmp_path / "c", [([1, 2, 3], True), ([4], True)]), "c", verify=False)
    assert first.digest == again.digest != other.digest
    assert first.select(np.array([0]), "part").digest != first.select(np.array([1]), "part").digest


def test_a_short_token_file_is_told_with_both_sizes(tmp_path):
    folder = written(tmp_path / "store", PIECES)
    (folder / "tokens.bin").write_bytes((folder / "tokens.bin").read_bytes()[:-3])
    with pytest.raises(UserError, match=r"tokens\.bin holds 11 bytes, store\.json says 7 tokens of 2 bytes"):
        open_store(folder, "toy", verify=False)


def test_a_changed_token_file_is_found_by_its_digest(tmp_path):
    folder = written(tmp_path / "store", PIECES)
    data = bytearray((folder / "tokens.bin").read_bytes())
    data[4] ^= 1
    (folder / "tokens.bin").write_bytes(data)
    with pytest.raises(UserError, match=r"is not what was written there .*delete the folder"):
        open_store(folder, "toy", verify=True)


def test_a_rank_that_sees_another_store_says_so(tmp_path):
    folder = written(tmp_path / "store", PIECES)
    with pytest.raises(UserError, match=r"other tokens here .* set data\.cache to a folder that all ranks share"):
        open_store(folder, "toy", verify=False, digest="0" * 64)


def test_a_folder_without_a_description_is_no_store(tmp_path):
    (tmp_path / "store").mkdir()
    with pytest.raises(UserError, match="is no readable token store"):
        open_store(tmp_path / "store", "toy", verify=False)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00v\x00{\x00'descr'", b"no array"])
def test_damaged_bounds_are_told_with_the_folder(tmp_path, content):
    folder = written(tmp_path / "store", PIECES)
    (folder / "bounds.npy").write_bytes(content)
    with pytest.raises(UserError, match="the next start builds it again"):
        open_store(folder, "toy", verify=False)


def test_a_folder_appears_only_when_it_is_complete(tmp_path):
    with pytest.raises(ValueError), published_folder(tmp_path / "store") as temporary:  # noqa: PT012
        (temporary / "half").write_text("half")
        assert not (tmp_path / "store").exists()
        raise ValueError
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_another_run_published_first_stays(tmp_path):
    with published_folder(tmp_path / "store") as temporary:
        (temporary / "content").write_text("ours")
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / "content").write_text("theirs")
    assert (tmp_path / "store" / "content").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_what_a_killed_run_left_goes_when_it_is_old(tmp_path):
    old, young = tmp_path / ".store.1.partial", tmp_path / ".store.2.partial"
    for folder in (old, young):
        folder.mkdir()
        (folder / "tokens.bin").write_bytes(b"half")
    for path in (old / "tokens.bin", old):
        os.utime(path, (1, 1))
    written(tmp_path / "store", PIECES)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".store.2.partial", "store"]


def test_a_store_of_no_documents_is_empty():
    assert len(TokenStore.from_documents([[]], 10)) == 0
