"""Signals are noted, not obeyed in the middle of a step."""

import os
import signal
import subprocess
import sys

from loong_core.train.signals import SignalWatch


def test_a_signal_is_noted_and_the_handlers_before_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with SignalWatch() as watch:
        os.kill(os.getpid(), signal.SIGTERM)
        assert watch.noted == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_first_signal_decides_the_exit_status():
    with SignalWatch() as watch:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert watch.noted == signal.SIGTERM


def test_a_second_interrupt_ends_the_process_at_once():
    program = """
import os, signal
from loong_core.train.signals import SignalWatch
with SignalWatch():
    os.kill(os.getpid(), signal.SIGINT)
    print("still here", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    print("too late")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "still here\n")
