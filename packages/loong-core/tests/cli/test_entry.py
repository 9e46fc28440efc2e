"""Every kind of end has its message and its status."""

import subprocess
import sys

import pytest
import typer

from loong_core.cli.entry import run_app
from loong_core.errors import Interrupted, NumericalError, UserError
from loong_kernels.errors import KernelChoiceError


def ending(error):
    """An app whose only command ends with `error`."""
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def work(number: int = 0) -> None:
        print("working")
        if error is not None:
            raise error

    return app


def status(app, *arguments):
    with pytest.raises(SystemExit) as end:
        run_app(app, arguments)
    return end.value.code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("no such file: a.yaml; name another"), 2),
        (NumericalError("loss is NaN at step 3"), 3),
        (Interrupted(15), 143),
        (Interrupted(2), 130),
        (KernelChoiceError(["no implementation of attention is called atention; there are sdpa and triton"]), 2),
    ],
)
def test_our_own_errors_end_with_their_status_and_one_message(error, code, capsys):
    assert status(ending(error)) == code
    assert capsys.readouterr() == ("working\n", f"error: {error}\n")


def test_a_note_on_an_error_is_printed_below_it(capsys):
    error = UserError("bad value")
    error.add_note("seen on rank 3")
    status(ending(error))
    assert capsys.readouterr().err == "error: bad value\nseen on rank 3\n"


def test_a_good_end_has_status_0():
    assert status(ending(None)) == 0


def test_a_wrong_command_line_has_status_2(capsys):
    assert status(ending(None), "--number", "many") == 2
    assert "--number" in capsys.readouterr().err


def test_a_status_that_a_command_asks_for_is_its_status():
    assert status(ending(typer.Exit(7))) == 7


def test_ctrl_c_has_status_130():
    assert status(ending(KeyboardInterrupt())) == 130


def test_an_unexpected_error_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run_app(ending(ZeroDivisionError()), [])


PROGRAM = """
import typer
from loong_core.cli.entry import run_app
app = typer.Typer()
@app.command()
def work() -> None:
    for number in range({lines}):
        print(number)
run_app(app, [])
"""


@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_reader_that_leaves_early_gets_no_traceback(lines):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(lines=lines)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1
