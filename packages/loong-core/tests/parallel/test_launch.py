import os
import signal
import subprocess
import sys

import pytest

from loong_core.errors import UserError
from loong_core.parallel.launch import launch
from loong_core.parallel.ranks import RankPlace

PLACE = "import os; rank = int(os.environ['RANK']); "


def run(code, nproc=2, **options):
    said = []
    status = launch([sys.executable, "-c", PLACE + code], nproc, say=said.append, **options)
    return status, "\n".join(said)


def test_every_rank_knows_its_place(tmp_path):
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"]
    code = f"open(r'{tmp_path}/%d' % rank, 'w').write(' '.join(os.environ[n] for n in {names}))"
    assert run(code) == (0, "")
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["0 2 0 2 127.0.0.1", "1 2 1 2 127.0.0.1"]


def test_ranks_but_the_first_write_to_their_logs(tmp_path, capfd):
    run("print('I am', rank)", nproc=3, log_dir=tmp_path)
    assert capfd.readouterr().out == "I am 0\n"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "rank-1.log": "I am 1\n",
        "rank-2.log": "I am 2\n",
    }


def test_a_failing_rank_ends_the_others_and_is_named_with_the_end_of_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr("loong_core.parallel.launch.GRACE_SECONDS", 0.2)
    status, said = run("rank and exit('no luck'); import signal; signal.pause()", log_dir=tmp_path)
    assert status == 1
    assert "rank 1 of 2 ended with status 1" in said
    assert "no luck" in said
    assert "rank 0 is killed: it went on after rank 1 had ended" in said


def test_a_killed_rank_gives_the_status_of_its_signal(monkeypatch):
    monkeypatch.setattr("loong_core.parallel.launch.GRACE_SECONDS", 0.2)
    status, said = run("import signal; os.kill(os.getpid(), 9) if rank else signal.pause()")
    assert status == 128 + signal.SIGKILL
    assert "rank 1 of 2 was killed by SIGKILL" in said


FAILING = """
import os, pathlib, time
rank, mark = int(os.environ["RANK"]), pathlib.Path({mark!r})
if rank:
    mark.touch()
    os.kill(os.getpid(), {signal})
while not mark.exists():
    time.sleep(0.01)
time.sleep(0.2)
raise RuntimeError("peer gone")
"""


def test_a_traceback_that_follows_from_a_killed_rank_goes_to_the_log_and_the_advice_is_last(tmp_path, capfd):
    failing = FAILING.format(signal=9, mark=str(tmp_path / "mark"))
    status, said = run(failing, log_dir=tmp_path, advice=lambda: "give it again")
    assert status == 137
    assert said.splitlines()[-1] == "give it again"
    assert said.splitlines()[-2].startswith("rank 1 of 2 was killed by SIGKILL")
    assert capfd.readouterr().err == ""
    assert "peer gone" in (tmp_path / "rank-0.log").read_text()


def test_a_traceback_of_rank_0_is_shown_where_it_may_be_the_cause(tmp_path, capfd):
    status, _ = run(FAILING.format(signal=6, mark=str(tmp_path / "mark")), log_dir=tmp_path)
    assert status == 128 + signal.SIGABRT
    assert "RuntimeError: peer gone" in capfd.readouterr().err


def test_a_rank_that_refuses_its_input_sets_the_status_without_a_word_more():
    assert run("exit(2)") == (2, "")


LAUNCHER = """
import sys
from loong_core.parallel.launch import launch
rank = '''
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # it waits until it is waited for
os.write(1, b"ready\\\\n")
signal.sigwait([signal.SIGTERM])
open(sys.argv[1] + "/saved-" + os.environ["RANK"], "w").close()
sys.exit(128 + signal.SIGTERM)
'''
sys.exit(launch([sys.executable, "-c", rank, sys.argv[1]], 2))
"""


@pytest.fixture
def launcher(tmp_path):
    """A launcher whose two ranks are ready for a signal."""
    process = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_signal_to_the_launcher_lets_every_rank_save(launcher, tmp_path):
    launcher.terminate()
    assert launcher.wait(20) == 128 + signal.SIGTERM
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved-0", "saved-1"]


def test_ranks_save_when_their_launcher_dies(launcher, tmp_path):
    launcher.kill()
    assert launcher.stdout.read() == b""  # the pipe closes when the last rank has gone
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved-0", "saved-1"]


def test_a_process_that_nobody_started_is_the_only_rank():
    assert RankPlace.from_env({}) == RankPlace(0, 1, 0, 1, started=False)


def test_a_half_set_environment_is_refused_by_name():
    with pytest.raises(UserError, match="MASTER_ADDR and MASTER_PORT are not set"):
        RankPlace.from_env({"RANK": "0", "WORLD_SIZE": "2"})


def test_a_rank_that_is_no_number_is_refused_by_name():
    environ = dict.fromkeys(["WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"], "1")
    with pytest.raises(UserError, match="RANK='first' is not a number"):
        RankPlace.from_env(environ | {"RANK": "first"})


def test_launching_does_not_import_torch():
    code = "import sys, loong_core.parallel.launch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ)).returncode == 0


JOINING = """
import torch, torch.distributed as dist
from loong_core.device.cpu import CpuDevice
from loong_core.parallel.ranks import initialise_from_env, leave
place, device = initialise_from_env(CpuDevice())
total = torch.tensor(place.rank + 1)
dist.all_reduce(total)
print(place.rank, place.world_size, device, int(total), flush=True)
leave()
"""


def test_started_ranks_join_each_other(tmp_path, capfd):
    assert launch([sys.executable, "-c", JOINING], 2, log_dir=tmp_path) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "0 2 cpu 3"
    assert (tmp_path / "rank-1.log").read_text().splitlines()[-1] == "1 2 cpu 3"


def test_a_process_that_nobody_started_joins_itself():
    outcome = subprocess.run([sys.executable, "-c", JOINING], capture_output=True, text=True)
    assert outcome.stdout == "0 1 cpu 1\n"
