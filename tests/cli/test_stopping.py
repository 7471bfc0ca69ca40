"""SIGTERM is handled as Ctrl-C is: one line, and nothing that was saved is lost."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORK = """
import signal, time, sys
from jaxsched.cli.errors import mistakes
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background has it ignored
with mistakes():
    try:
        print("at work", flush=True)
        {}
    finally:
        {}
"""
STUBBORN = "print('once more', flush=True); time.sleep(60)"


def started(at_the_end: str, work: str = "time.sleep(60)") -> subprocess.Popen:
    running = subprocess.Popen(
        [sys.executable, "-c", WORK.format(work, at_the_end)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert running.stdout is not None and running.stdout.readline() == "at work\n"
    return running


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [(signal.SIGTERM, 143, "jaxsched: terminated\n"), (signal.SIGINT, 130, "jaxsched: interrupted\n")],
)
def test_a_signal_is_one_line(number, code, line):
    running = started("pass")
    running.send_signal(number)
    assert running.communicate(timeout=30) == ("", line) and running.returncode == code


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [(signal.SIGTERM, 143, "jaxsched: terminated\n"), (signal.SIGINT, 130, "jaxsched: interrupted\n")],
)
def test_a_signal_is_heard_while_garbage_is_collected(number, code, line):
    """Python ignores what is raised there, and JAX has a callback there."""
    collecting = (
        "import gc; gc.callbacks.append(lambda *_: (gc.callbacks.clear(), time.sleep(60))); "
        "print('collects', flush=True); gc.collect(); time.sleep(60)"
    )
    running = started("pass", collecting)
    assert running.stdout is not None and running.stdout.readline() == "collects\n"
    time.sleep(0.2)
    running.send_signal(number)
    assert running.communicate(timeout=30) == ("", line) and running.returncode == code


def test_a_second_signal_ends_what_cannot_be_ended(tmp_path):
    running = started(STUBBORN)
    running.send_signal(signal.SIGTERM)
    assert running.stdout is not None and running.stdout.readline() == "once more\n"
    running.send_signal(signal.SIGTERM)
    assert running.communicate(timeout=30) == ("", "") and running.returncode == 143


@pytest.mark.parametrize("arguments", ["cluster show leaf-spine-8", "simulate --help"])
def test_a_full_disk_behind_standard_output_is_one_line(arguments, tmp_path):
    command = [sys.executable, "-m", "jaxsched.cli", *arguments.split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={"JAXSCHED_CACHE": str(tmp_path)}
        )
    assert done.returncode == 2
    assert done.stderr == "jaxsched: error: standard output: No space left on device\n"
