import pytest

from loong_core.data.checks import source_faults
from loong_core.data.documents import blocks, read_block
from loong_core.data.sources import SourceSpec, resolve
from loong_core.errors import UserError

TEXTS = [f"row {number} ä" for number in range(50)]


def texts(path, text_key="text"):
    return [piece.text for block in blocks(resolve(str(path))) for piece in read_block(block, text_key)]


def write_parquet(path, columns, **options):
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def test_parquet_is_read_row_group_by_row_group(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", {"id": list(range(50)), "text": TEXTS}, row_group_size=7)
    assert texts(path) == TEXTS


def test_strings_may_be_large_or_dictionaries(tmp_path):
    import pyarrow

    large = pyarrow.array(TEXTS, pyarrow.large_string())
    assert texts(write_parquet(tmp_path / "a.parquet", {"text": large})) == TEXTS
    assert texts(write_parquet(tmp_path / "b.parquet", {"text": large.dictionary_encode()})) == TEXTS


def test_a_saved_dataset_is_read_as_datasets_reads_it(tmp_path):
    import datasets

    whole = datasets.Dataset.from_dict({"text": TEXTS, "id": list(range(50))}).shuffle(seed=1)
    whole.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    assert texts(tmp_path / "saved") == datasets.load_from_disk(str(tmp_path / "saved"))["text"][:]


def test_one_split_of_a_saved_dataset_is_named_by_its_folder(tmp_path):
    import datasets

    parts = {"train": datasets.Dataset.from_dict({"text": ["a"]}), "test": datasets.Dataset.from_dict({"text": ["b"]})}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    assert texts(tmp_path / "saved" / "test") == ["b"]
    with pytest.raises(UserError, match=r"2 splits; name one of them: .*train, .*test"):
        resolve(str(tmp_path / "saved"))


def test_arrow_files_of_both_kinds_are_read(tmp_path):
    import pyarrow
    import pyarrow.ipc

    table = pyarrow.table({"text": TEXTS})
    with pyarrow.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=9)
    with pyarrow.ipc.new_stream(tmp_path / "b.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=9)
    assert texts(tmp_path) == TEXTS * 2


def test_a_missing_column_lists_those_there_are(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", {"id": [1], "body": ["x"]})
    with pytest.raises(UserError, match=r"a\.parquet: no column 'text'; its columns are 'id', 'body'; set data\.text"):
        texts(path)
    (fault,) = source_faults([SourceSpec(str(path))], "data.train", "text")
    assert "no column 'text'" in str(fault)


def test_a_column_of_numbers_is_no_text(tmp_path):
    with pytest.raises(UserError, match="column 'text' holds int64, expected strings"):
        texts(write_parquet(tmp_path / "a.parquet", {"text": [1, 2]}))


def test_a_row_without_text_is_named(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", {"text": [*TEXTS, None]}, row_group_size=20)
    with pytest.raises(UserError, match=r"a\.parquet, row 50: 'text' is null"):
        texts(path)


def test_bytes_that_are_not_utf8_are_told_with_their_rows(tmp_path):
    import pyarrow

    broken = pyarrow.array([b"fine", b"\xff"], pyarrow.binary()).view(pyarrow.string())
    with pytest.raises(UserError, match=r"a\.parquet, rows 0 to 1: text is not UTF-8"):
        texts(write_parquet(tmp_path / "a.parquet", {"text": broken}))


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_truncated_file_is_named(tmp_path, name):
    import pyarrow
    import pyarrow.ipc

    path = tmp_path / name
    if name == "a.parquet":
        write_parquet(path, {"text": TEXTS})
    else:
        table = pyarrow.table({"text": TEXTS})
        with pyarrow.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=rf"{name}.*not a whole (parquet|arrow) file"):
        texts(path)
