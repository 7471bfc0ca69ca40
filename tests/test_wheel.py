"""The wheel is the whole product: outside of the checkout its commands find all that they name."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with what the wheel puts into site-packages; its dependencies are those of the tests."""
    pytest.importorskip("hatchling", reason="the wheel is built with hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(folder)]
    done = subprocess.run([*command, str(ROOT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, cwd: Path, *arguments: str) -> str:
    code = "import jaxsched, sys; from jaxsched.cli.main import main; main(sys.argv[1:])"
    environment = os.environ | {"PYTHONPATH": str(installed), "CHECK_SHAPES": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=cwd, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_holds_checkpoints_configurations_and_examples(installed):
    package = installed / "jaxsched"
    for name in (
        "checkpoints/quickstart/weights.msgpack", "checkpoints/interference/card.json",
        "configs/quickstart.yaml", "configs/sweeps/ablations.yaml", "examples/trace.csv", "py.typed", "__init__.pyi",
    ):  # fmt: skip
        assert (package / name).is_file(), name


def test_its_commands_work_in_an_empty_folder(installed, tmp_path):
    where = run(installed, tmp_path, "--version")
    assert where.startswith("jaxsched ")
    shipped = [path for path in (ROOT / "examples").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert f"examples: {len(shipped)} new files" in run(installed, tmp_path, "examples")
    assert "examples: 0 new files" in run(installed, tmp_path, "examples")
    table = run(installed, tmp_path, "evaluate", "--workload", "examples/trace.csv", "--policies", "pack", "quickstart")
    assert "quickstart" in table and "120 arrived = 120 finished" in table
    plan = run(installed, tmp_path, "sweep", "examples/sweep.yaml", "--plan")
    assert plan.count("2 points (0 finished)") == 2
