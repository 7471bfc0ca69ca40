"""What the README promises to a newcomer: its commands, pasted one by one, and its code."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.S)


def blocks(kind: str) -> list[str]:
    return [text for found, text in BLOCK.findall(README) if found == kind]


def test_examples_are_what_their_maker_makes(tmp_path):
    maker: dict = {"__name__": "maker", "__file__": str(ROOT / "examples/make.py")}
    exec((ROOT / "examples/make.py").read_text(), maker)
    maker["write"](tmp_path)
    for name in ("trace.csv", "recording.jsonl"):
        assert (tmp_path / name).read_text() == (ROOT / "examples" / name).read_text()


def rows_of(table: str) -> dict[str, list[float]]:
    """Of every policy the figures of its line."""
    rows = {}
    for line in table.splitlines():
        name, *cells = re.split(r"\s{2,}", line.strip())
        figures = [cell.replace(",", "").rstrip("%") for cell in cells]
        if len(figures) > 8 and re.fullmatch(r"[\d.]+", figures[0]):
            rows[name] = [float(figure) for figure in figures]
    return rows


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory) -> Callable[[str], str]:
    """Runs lines of a shell in a folder outside of the checkout, with the built wheel in a new environment."""
    folder, venv = tmp_path_factory.mktemp("newcomer"), tmp_path_factory.mktemp("environment")
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JAX", "CHECK_SHAPES"))}
    own |= {"PATH": f"{venv}/bin:{own['PATH']}", "JAXSCHED_CACHE": str(venv / "cache")}

    def run(line: str) -> str:
        done = subprocess.run(line, shell=True, cwd=folder, env=own, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    build = "-m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir"
    run(f"{shlex.quote(sys.executable)} {build} . {shlex.quote(str(ROOT))}")
    (wheel,) = folder.glob("*.whl")
    run(f"{shlex.quote(sys.executable)} -m venv {venv}")
    run(f"pip install --quiet --constraint {shlex.quote(str(ROOT / 'constraints.txt'))} '{wheel}[compiled,viz]'")
    wheel.unlink()
    return run


@pytest.mark.long
def test_a_newcomer_gets_what_is_promised(newcomer):
    said = {line: newcomer(line) for line in "\n".join(blocks("sh")).splitlines() if line}
    first = next(text for line, text in said.items() if "load-balance pack" in line)
    (promised,) = map(rows_of, blocks("text"))
    assert list(promised) and set(promised) == set(rows_of(first))
    for name, figures in promised.items():
        assert rows_of(first)[name] == pytest.approx(figures, rel=0.02), name
    made = set(newcomer("ls").split())
    assert {"examples", "configs", "jobs.csv", "trace.json", "cluster.svg", "report.html"} <= made
    assert any("recorded: " in text and "greedy-wait" in text for text in said.values())
    said = "".join(newcomer(f"python -c {shlex.quote(code)}") for code in blocks("python"))
    assert "emptiest_first" in said and "(2, " in said
