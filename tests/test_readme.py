"""What the README promises: its commands run on the shipped examples, its code runs."""

import re
import shlex
from pathlib import Path

import pytest

from jaxsched.cli.main import main

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


@pytest.mark.long
def test_every_command_runs_and_the_first_prints_what_is_promised(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("jaxsched.cli.main.enable_cache", lambda: None)
    said = {}
    for command in "\n".join(blocks("sh")).splitlines():
        if not command:
            continue
        program, *arguments = shlex.split(command)
        assert program == "jaxsched"
        main(arguments)
        said[command] = capsys.readouterr().out
    first = next(text for command, text in said.items() if "load-balance pack" in command)
    (promised,) = map(rows_of, blocks("text"))
    assert list(promised) and set(promised) <= set(rows_of(first))
    for name, figures in promised.items():
        assert rows_of(first)[name] == pytest.approx(figures, rel=0.02), name
    made = {path.name for path in tmp_path.iterdir()}
    assert {"examples", "configs", "jobs.csv", "trace.json", "cluster.svg", "report.html"} <= made
    assert any("recorded: " in text and "greedy-wait" in text for text in said.values())


@pytest.mark.long
def test_code_runs(capsys):
    for code in blocks("python"):
        exec(compile(code, "README.md", "exec"), {})
    said = capsys.readouterr().out
    assert "emptiest_first" in said and "(2, " in said
