"""The same command writes the same bytes: again, in another folder, and with another hash seed; times apart."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "evaluate": "--policies pack:sjf+backfill greedy-wait random --num-jobs 40 --seeds 2 --cluster leaf-spine-2",
    "simulate": "--policy greedy-wait --num-jobs 60 --cluster leaf-spine-4 --jobs-out jobs.csv",
}
TIMES = re.compile(r'"(wall_s|compile_s)": [-+.0-9e]+')


def written(command: str, folder: Path, hash_seed: str) -> dict[str, str]:
    """What the command writes in `folder`, without its times."""
    folder.mkdir(parents=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed}
    arguments = [command, *COMMANDS[command].split(), "--json", "out.json"]
    done = subprocess.run(
        [sys.executable, "-m", "jaxsched.cli", *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    files = {path.name: TIMES.sub("", path.read_text()) for path in folder.iterdir()}
    return files | {"said": done.stdout}


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_the_same_command_writes_the_same_bytes(tmp_path, command):
    first = written(command, tmp_path / "a", "0")
    assert first["out.json"].count("wall_s") == 0 and len(first["out.json"]) > 1000
    assert written(command, tmp_path / "b", "0") == first
    assert written(command, tmp_path / "another folder" / "ü", "4242") == first
