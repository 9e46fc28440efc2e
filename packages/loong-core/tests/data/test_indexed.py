import numpy as np
import pytest

from loong_core.data.checks import source_faults
from loong_core.data.indexed import IndexedWriter, check_pair, open_indexed
from loong_core.data.sources import SourceSpec
from loong_core.errors import UserError

DOCUMENTS = [[5, 6, 7], [8], [9, 10], [300] * 9]


def write_pair(prefix, documents=DOCUMENTS, vocab_size=1000):
    with IndexedWriter(prefix, vocab_size) as writer:
        for document in documents:
            writer.add(np.array(document), np.array([len(document)]), np.array([True]))
    return prefix


def test_a_written_pair_reads_back_by_us_and_by_megatron(tmp_path):
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    prefix = write_pair(tmp_path / "corpus")
    store = open_indexed(prefix)
    assert [store.document(index).tolist() for index in range(len(store))] == DOCUMENTS
    theirs = IndexedDataset(str(prefix))
    assert [theirs[index].tolist() for index in range(len(theirs))] == DOCUMENTS
    assert theirs.document_indices.tolist() == [0, 1, 2, 3, 4]
    assert theirs.index.dtype is np.uint16


def test_a_pair_that_megatron_wrote_reads_as_documents_of_several_sequences(tmp_path):
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(tmp_path / "corpus.bin"), dtype=np.int32)
    for group in ([[1, 2], [3]], [[4]]):
        for sequence in group:
            builder.add_item(torch.tensor(sequence))
        builder.end_document()
    builder.finalize(str(tmp_path / "corpus.idx"))
    store = open_indexed(tmp_path / "corpus")
    assert [store.document(index).tolist() for index in range(len(store))] == [[1, 2, 3], [4]]


def test_pieces_of_a_document_become_one_sequence(tmp_path):
    with IndexedWriter(tmp_path / "corpus", 100) as writer:
        writer.add(np.array([1, 2, 3]), np.array([2, 1]), np.array([True, False]))
        writer.add(np.array([4, 5]), np.array([1, 1]), np.array([True, True]))
    store = open_indexed(tmp_path / "corpus")
    assert [store.document(index).tolist() for index in range(len(store))] == [[1, 2], [3, 4], [5]]


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(ValueError), IndexedWriter(tmp_path / "corpus", 100) as writer:  # noqa: PT012
        writer.add(np.array([1]), np.array([1]), np.array([True]))
        raise ValueError
    assert list(tmp_path.iterdir()) == []


def test_a_short_bin_file_is_told_with_both_sizes(tmp_path):
    prefix = write_pair(tmp_path / "corpus")
    data = tmp_path / "corpus.bin"
    data.write_bytes(data.read_bytes()[:-4])
    message = r"corpus\.bin holds 26 bytes, corpus\.idx says 30 \(15 tokens of 2 bytes\): the file is cut short"
    with pytest.raises(UserError, match=message):
        open_indexed(prefix)
    (fault,) = source_faults([SourceSpec(str(prefix))], "data.train", "text")
    assert "holds 26 bytes" in str(fault)


def test_a_bin_file_of_another_index_is_told(tmp_path):
    prefix = write_pair(tmp_path / "corpus")
    with (tmp_path / "corpus.bin").open("ab") as stream:
        stream.write(b"more")
    with pytest.raises(UserError, match=r"holds 34 bytes, .* belongs to another index"):
        check_pair(prefix)


def test_a_torn_idx_file_is_told_with_both_sizes(tmp_path):
    prefix = write_pair(tmp_path / "corpus")
    index = tmp_path / "corpus.idx"
    index.write_bytes(index.read_bytes()[:-8])
    with pytest.raises(UserError, match=r"corpus\.idx holds 114 bytes, its header says 122 \(4 sequences\)"):
        check_pair(prefix)


def test_a_foreign_idx_file_is_told(tmp_path):
    prefix = write_pair(tmp_path / "corpus")
    (tmp_path / "corpus.idx").write_bytes(b"not an index" * 10)
    with pytest.raises(UserError, match=r"corpus\.idx is not a Megatron index file"):
        check_pair(prefix)


@pytest.mark.parametrize(
    ("offset", "dtype", "words"),
    [
        (34, "<i4", "is damaged: sequence 0 has -9 tokens"),
        (34 + 4 * 4 + 8, "<i8", "is damaged: sequence 1 begins at token"),
        (34 + 4 * 12, "<i8", "its marks of documents do not rise from 0 to its 4 sequences"),
        (34 + 4 * 12 + 8, "<i8", "its marks of documents do not rise from 0 to its 4 sequences"),
        (18, "<u8", "its header is damaged|its header says"),
    ],
)
def test_numbers_of_an_idx_file_that_contradict_each_other_are_told(tmp_path, offset, dtype, words):
    prefix = write_pair(tmp_path / "corpus")
    index = tmp_path / "corpus.idx"
    content = bytearray(index.read_bytes())
    value = np.array([3 if dtype == "<u8" else -9], dtype=dtype).tobytes()
    content[offset : offset + len(value)] = value
    index.write_bytes(content)
    with pytest.raises(UserError, match=words):
        check_pair(prefix)


def test_whatever_byte_of_an_idx_file_is_changed_it_is_read_or_refused(tmp_path):
    prefix = write_pair(tmp_path / "corpus")
    index = tmp_path / "corpus.idx"
    whole = index.read_bytes()
    for place in range(len(whole)):
        for value in (0, 1, 127, 255):
            index.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            try:
                store = open_indexed(prefix)
            except UserError:
                continue
            assert [len(store.document(number)) >= 0 for number in range(len(store))]
