"""Resume checkpoints: appear whole or not at all, are read under any number of ranks, and refuse what does not fit."""

import json
import multiprocessing
import os
import shutil
import signal
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from core_toys.tensor_engine import SHAPES, TensorEngine

from loong_core.checkpoint.resume import Checkpointer, SaveError
from loong_core.checkpoint.resume_folder import ResumeFolder, published
from loong_core.device.cpu import CpuDevice
from loong_core.errors import UserError
from loong_core.parallel.crew import Crew
from loong_core.parallel.pool import RankError, RankPool


def engine_after(updates, shapes=None):
    engine = TensorEngine(shapes)
    for _ in range(updates):
        engine.apply(0.1)
    return engine


def save(folder, step, *, engine=None, **options):
    """Save and publish one step; the engine has taken as many updates."""
    checkpoints = Checkpointer(folder, **{"keep": None, **options})
    checkpoints.save(step, engine or engine_after(step), {"seen": step * 10})
    return checkpoints.finish()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_appears_only_when_it_is_published(tmp_path):
    seen = {}
    save(tmp_path, 3, at_stage=lambda stage, _: seen.setdefault(stage, [path.name for path in published(tmp_path)]))
    assert list(seen) == ["begun", "writing", "durable", "indexed", "published", "pruned"]
    assert [seen["durable"], seen["indexed"], seen["published"]] == [[], [], ["step-00000003"]]
    assert names(tmp_path) == ["step-00000003"]


def test_what_is_saved_is_the_state_at_the_call_and_not_at_the_write(tmp_path):
    """Trap 4: host tensors are copied before `save` returns."""
    engine = engine_after(1)
    expected = {key: value.clone() for key, value in engine.values().items()}
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, engine, {})
    engine.apply(0.1)
    checkpoints.finish()
    loaded = TensorEngine()
    Checkpointer(tmp_path).load(loaded)
    assert all(torch.equal(loaded.values()[key], value) for key, value in expected.items())
    assert loaded.updates == 1


def test_the_runs_own_state_comes_back_from_load(tmp_path):
    save(tmp_path, 4)
    assert Checkpointer(tmp_path).load(TensorEngine()) == {"seen": 40}


def test_without_a_checkpoint_load_says_none(tmp_path):
    assert Checkpointer(tmp_path / "absent").load(TensorEngine()) is None


def save_on_ranks(folder, step):
    save(folder, step)


def load_on_ranks(folder):
    engine = TensorEngine()
    extra = Checkpointer(folder).load(engine)
    return extra, engine.values(), engine.updates


@pytest.mark.parametrize(("saved_on", "loaded_on"), [(1, 2), (2, 1), (2, 3), (3, 2)])
def test_state_saved_on_some_ranks_is_read_on_others(ranks, tmp_path, saved_on, loaded_on):
    ranks.run(saved_on, save_on_ranks, tmp_path, 5)
    loaded = ranks.run(loaded_on, load_on_ranks, tmp_path)
    expected = engine_after(5).values()
    for key, whole in expected.items():
        assert torch.equal(torch.cat([values[key] for _, values, _ in loaded]), whole)
    assert [(extra, updates) for extra, _, updates in loaded] == [({"seen": 50}, 5)] * loaded_on


def test_each_ranks_random_state_continues(ranks, tmp_path):
    saved = ranks.run(2, save_then_draw, tmp_path)
    loaded = ranks.run(2, load_then_draw, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(saved, loaded, strict=True))
    assert not torch.equal(saved[0], saved[1])


def save_then_draw(folder):
    torch.manual_seed(dist.get_rank())
    torch.rand(5)
    save(folder, 1)
    return torch.rand(3)


def load_then_draw(folder):
    Checkpointer(folder).load(TensorEngine())
    return torch.rand(3)


def test_on_another_kind_of_device_random_draws_begin_anew_and_it_is_said(tmp_path):
    class OtherDevice(CpuDevice):
        name = "other"

        def set_random_state(self, state):
            raise AssertionError("a foreign state")

    save(tmp_path, 1)
    engine, told = TensorEngine(), []
    engine.device = OtherDevice()
    assert Checkpointer(tmp_path, say=told.append).load(engine) == {"seen": 10}
    assert engine.updates == 1
    assert told == [
        "random draws (dropout) begin anew: step-00000001 holds those of 1 rank on cpu, not of 1 rank on other"
    ]


def test_old_checkpoints_are_removed_after_a_new_one_is_published(tmp_path):
    left = []
    note = lambda stage, _: left.append((stage, names(tmp_path))) if stage in ("published", "pruned") else None  # noqa: E731
    checkpoints = Checkpointer(tmp_path, keep=1, at_stage=note)
    for step in (1, 2):
        checkpoints.save(step, engine_after(step), {})
        checkpoints.finish()
    assert left[-2:] == [("published", ["step-00000001", "step-00000002"]), ("pruned", ["step-00000002"])]


def test_saving_the_same_state_again_changes_nothing(tmp_path):
    save(tmp_path, 2)
    before = (tmp_path / "step-00000002" / "manifest.json").stat().st_mtime_ns
    assert save(tmp_path, 2) is None
    assert (tmp_path / "step-00000002" / "manifest.json").stat().st_mtime_ns == before


def test_overwriting_a_step_of_another_run_is_refused(tmp_path):
    save(tmp_path, 2)
    with pytest.raises(UserError, match=r"step-00000002 exists already, of another run: after 2 updates .* taken 7"):
        save(tmp_path, 2, engine=engine_after(7))


def test_a_truncated_file_is_named_with_its_sizes_and_the_checkpoint_before(tmp_path):
    save(tmp_path, 1)
    file = save(tmp_path, 2) / "rank-00000.safetensors"
    size = file.stat().st_size
    os.truncate(file, size - 100)
    with pytest.raises(UserError) as refusal:
        Checkpointer(tmp_path).load(TensorEngine())
    assert f"{file} is truncated: {size - 100} bytes found, {size} expected" in str(refusal.value)
    assert f"the one before is {tmp_path}/step-00000001: move step-00000002 out of" in str(refusal.value)


def test_a_missing_file_is_named(tmp_path):
    file = save(tmp_path, 1) / "rank-00000.safetensors"
    file.unlink()
    with pytest.raises(UserError, match=r"rank-00000.safetensors is missing .*; there is no other checkpoint"):
        Checkpointer(tmp_path).load(TensorEngine())


def test_a_changed_byte_is_found(tmp_path):
    file = save(tmp_path, 1) / "rank-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"is damaged: its .* bytes have hash .* expected"):
        Checkpointer(tmp_path).load(TensorEngine())


@pytest.mark.parametrize("key", ["step", "updates", "world_size", "extra", "files", "layout"])
def test_a_manifest_that_says_something_else_than_what_was_written_is_refused(tmp_path, key):
    path = save(tmp_path, 2) / "manifest.json"
    for value in (None, 3, {}, []):
        changed = json.loads(path.read_text())
        if changed[key] == value:
            continue
        path.write_text(json.dumps(changed | {key: value}))
        with pytest.raises(UserError, match=r"manifest\.json is not what was written there"):
            Checkpointer(tmp_path).load(TensorEngine())
        path.write_text(json.dumps(changed))
    assert Checkpointer(tmp_path).load(TensorEngine()) == {"seen": 20}


def test_a_folder_without_its_manifest_is_skipped_and_asked_for_by_name_refused(tmp_path):
    save(tmp_path, 1)
    unmarked = save(tmp_path, 2)
    (unmarked / "manifest.json").unlink()
    checkpoints = Checkpointer(tmp_path)
    assert checkpoints.latest() == tmp_path / "step-00000001"
    with pytest.raises(UserError, match=r"step-00000002 has no manifest\.json, so it was never published"):
        checkpoints.load(TensorEngine(), unmarked)


def test_a_checkpoint_that_is_not_there_is_never_a_fresh_start(tmp_path):
    with pytest.raises(UserError, match="step-00000009 does not exist"):
        Checkpointer(tmp_path).load(TensorEngine(), tmp_path / "step-00000009")


@pytest.mark.parametrize(
    ("shapes", "difference"),
    [
        ({**SHAPES, "c.weight": (2,)}, "weight/c.weight [2] is not in the checkpoint"),
        ({**SHAPES, "b.weight": (14,)}, "weight/b.weight is [12] in the checkpoint, [14] in the model"),
        ({"a.weight": (6, 4)}, "weight/b.weight is in the checkpoint, not in the model"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing(tmp_path, shapes, difference):
    save(tmp_path, 1)
    engine = engine_after(3, shapes)
    before = {key: value.clone() for key, value in engine.values().items()}
    with pytest.raises(UserError, match=r"is of another model \(") as refusal:
        Checkpointer(tmp_path).load(engine)
    assert difference in str(refusal.value)
    assert all(torch.equal(engine.values()[key], value) for key, value in before.items())


def test_only_the_weights_can_be_loaded(tmp_path):
    save(tmp_path, 2)
    engine = TensorEngine()
    Checkpointer(tmp_path).load(engine, optimizer=False)
    assert torch.equal(engine.values()["weight/b.weight"], engine_after(2).values()["weight/b.weight"])
    assert not engine.values()["exp_avg/b.weight"].any()
    assert engine.updates == 0


def fill_the_disk(folder):
    """Rank 1's file is a device that is always full."""
    save(folder, 1)

    def full(stage, attempt):
        if stage == "begun" and dist.get_rank() == 1:
            (attempt / "rank-00001.safetensors").symlink_to("/dev/full")

    with pytest.raises(SaveError) as failure:
        save(folder, 2, at_stage=full)
    return str(failure.value), names(folder)


def test_a_full_disk_is_reported_by_every_rank_and_the_last_checkpoint_stays(ranks, tmp_path):
    for message, left in ranks.run(2, fill_the_disk, tmp_path):
        assert "the checkpoint of step 2 is not saved: rank 1 could not write" in message
        assert "No space left on device" in message
        assert f"the last good checkpoint is {tmp_path}/step-00000001" in message
        assert left == ["step-00000001"]


def die_at(folder, stage, victim):
    save(folder, 1)

    def fall(reached, _):
        if reached == stage and Crew().rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    save(folder, 2, at_stage=fall)


def assert_resumes_from(folder, step):
    engine = TensorEngine()
    assert Checkpointer(folder).load(engine) == {"seen": 10 * step}
    assert engine.updates == step
    assert all(name.startswith("step-") for name in names(folder))


@pytest.mark.parametrize(
    ("stage", "step"), [("begun", 1), ("writing", 1), ("durable", 1), ("indexed", 1), ("published", 2)]
)
def test_a_kill_at_any_stage_leaves_a_complete_checkpoint(tmp_path, stage, step):
    process = multiprocessing.get_context("fork").Process(target=die_at, args=(tmp_path, stage, 0))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert_resumes_from(tmp_path, step)


def test_a_rank_killed_while_others_write_leaves_the_checkpoint_before(tmp_path):
    with RankPool(2) as pool, pytest.raises(RankError, match="rank 1 of 2: its process ended with -9"):
        pool.run(2, die_at, tmp_path, "writing", 1)
    assert_resumes_from(tmp_path, 1)


def test_what_a_living_process_is_writing_is_left_alone(tmp_path):
    (tmp_path / f".step-00000001.saving-{socket.gethostname()}-{os.getpid()}-0").mkdir()
    start = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    mine = tmp_path / f".step-00000001.saving-{socket.gethostname()}-{os.getpid()}-{start}"
    mine.mkdir()
    Checkpointer(tmp_path).latest()
    assert names(tmp_path) == [mine.name]


def test_a_folder_that_ranks_do_not_share_is_found_when_publishing(ranks, tmp_path):
    for message in ranks.run(2, save_into_own_folder, tmp_path):
        assert "rank-00001.safetensors of other ranks cannot be seen by rank 0" in message
        assert "has to be on a file system that all machines share" in message


def save_into_own_folder(folder):
    with pytest.raises(SaveError) as failure:
        save(folder / f"machine-{dist.get_rank()}", 1)
    return str(failure.value)


def test_files_open_with_safetensors_and_hold_canonical_names(tmp_path):
    from safetensors.torch import load_file

    path = save(tmp_path, 1)
    tensors = load_file(path / "rank-00000.safetensors")
    assert set(tensors) == {f"{kind}/{name}" for kind in ("weight", "exp_avg") for name in SHAPES} | {
        "random_state/rank-0"
    }
    assert json.loads((path / "manifest.json").read_text())["step"] == 1


def test_a_copied_checkpoint_reads_like_the_original(tmp_path):
    copied = shutil.copytree(save(tmp_path / "here", 3), tmp_path / "there" / "any-name")
    assert ResumeFolder(copied).step == 3
    engine = TensorEngine()
    assert Checkpointer(tmp_path / "elsewhere").load(engine, copied) == {"seen": 30}
