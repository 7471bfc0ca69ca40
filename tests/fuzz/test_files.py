"""Files that are cut, spliced, mistyped or hostile: each is refused with one line, or read without losing a row."""

import gzip
import importlib
import io
import json
import random
import re
import signal
import time
from pathlib import Path

import pytest

from jaxsched.cli.check import Check, what_is
from jaxsched.cli.errors import mistakes
from jaxsched.workload.readers.cells import LISTED
from jaxsched.workload.readers.opening import STDIN
from tests.fuzz import sources
from tests.fuzz.mutations import mutated

SHORT, LONG, PARTS = 1000, 20_000, 20
MOST_S, HANGS_S = 2.0, 30
LONGEST_LINE = 4000  # of a message
PACKED, STREAMED = 0.15, 0.05  # shares of the logs
TABLES = (".csv", ".swf", ".trace", ".json")


def look_at(path: Path, capsys: pytest.CaptureFixture) -> tuple[int, str]:
    """Exit code and the first line that `jaxsched check` says; further ones are indented, and there are few."""
    begin = time.process_time()
    code = 0
    try:
        with mistakes():
            Check(files=(path,)).run()
    except SystemExit as end:
        assert isinstance(end.code, int)
        code = end.code
    said = capsys.readouterr()
    assert time.process_time() - begin < MOST_S
    lines = [line for line in said.err.splitlines() if not line.startswith("jaxsched: warning: ")]
    errors = [line for line in lines if not line.startswith("  ")]
    assert len(lines) - len(errors) <= LISTED and all(len(line) < LONGEST_LINE for line in lines), said.err
    assert code in (0, 2)
    if code == 0:
        first, *more = said.out.splitlines()
        assert lines == [] and all(line.startswith("  ") for line in more) and len(more) < 200, said
        return code, first
    assert len(errors) == 1 and errors[0].startswith("jaxsched: error: ") and said.out == "", said
    assert str(path) in errors[0] or path.name in errors[0], errors
    assert len(errors[0]) < LONGEST_LINE + len(str(path))
    return code, errors[0]


def records(content: bytes, said: str) -> int:
    """How many records a table of `content` has, counted by its lines, not by our reader."""
    if content.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"[", b"{"):
        value = json.loads(content.decode("utf-8-sig"))
        return len(value["jobs"] if isinstance(value, dict) else value)
    lines = [line for line in content.decode("utf-8-sig").split("\n") if line.strip()]
    if "format swf" in said:
        return sum(not line.lstrip().startswith(";") for line in lines)
    if "format pai" in said:  # tasks are put together into jobs, so only those left out can be counted
        return counted(said)
    if "format gavel" in said:
        return len(lines)
    return len(lines) - 1


def unpacked(suffix: str, content: bytes) -> bytes:
    """What a packed file holds; nothing of a file that is not packed, or is a table of Parquet."""
    if suffix == ".zst":
        arrow = importlib.import_module("pyarrow")
        return arrow.CompressedInputStream(io.BytesIO(content), "zstd").read()
    return gzip.decompress(content) if suffix == ".gz" else b""


def counted(said: str) -> int:
    """The records that `jaxsched check` says it has read or left out."""
    numbers = re.findall(r"(?<= )[0-9][0-9,]*(?= )", f" {said.partition(': ')[2]}")
    return sum(int(number.replace(",", "")) for number in numbers)


def fuzz(
    seed: int, inputs: int, folder: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[int]]:
    """Reads so many mutated files. Returns how many were read, and how many refused; by ending, and in all."""
    rng = random.Random(seed)
    outcomes = {"": [0, 0], **{ending: [0, 0] for ending in sources.ENDINGS.values()}}
    what_is(sources.ROOT / "checkpoints" / "quickstart")  # what this imports is no part of the time of an input
    shipped = sources.shipped()
    for name, content in shipped.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    def hung(*_: object) -> None:
        raise AssertionError(f"input {number} of seed {seed} takes more than {HANGS_S} s")

    for number in range(inputs):
        if number % 100 == 0:
            good = [*(sources.made(rng) | shipped | sources.real(rng)).items()]
        name, whole = rng.choice(good)
        content = mutated(rng, whole)
        path = folder / name
        looked_at, written, rows = path, content, None
        if path.suffix in TABLES and rng.random() < PACKED:
            content = rng.choice((whole, content))
            ending, written, rows = sources.packed(rng, name, content)
            looked_at = path = path.with_name(path.name + ending)
        path.write_bytes(written)
        if path.suffix in TABLES and rng.random() < STREAMED:
            looked_at = STDIN
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(written)))
        if path.name == "card.json":
            weights = sources.ROOT / "checkpoints" / path.parent.name / "weights.msgpack"
            if weights.exists():  # what seeks has its numbers in the card
                (path.parent / weights.name).write_bytes(weights.read_bytes())
            looked_at = path.parent
        before = signal.signal(signal.SIGALRM, hung)
        signal.alarm(HANGS_S)
        try:
            code, said = look_at(looked_at, capsys)
            told = counted(said.removeprefix(f"{looked_at}"))
            if code == 0 and rows is not None:
                assert told == rows or "format pai" in said, said
            same = code == 0 and unpacked(path.suffix, written) == content
            if code == 0 and (same or path.suffix in TABLES) and (".json" not in path.name or "a trace" in said):
                assert told == records(content, said), said
        except BaseException as error:
            kept = folder / f"seed{seed}-input{number}-{path.name}"
            kept.write_bytes(written)
            error.add_note(f"the input is in {kept}")
            raise
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        path.write_bytes(shipped.get(name, b""))  # others may be based on it
        for ending in {"", path.suffix} & outcomes.keys():
            outcomes[ending][code // 2] += 1
    return outcomes


def test_a_thousand_wrong_files(tmp_path, capsys, monkeypatch):
    outcomes = fuzz(0, SHORT, tmp_path, capsys, monkeypatch)
    read, refused = outcomes[""]
    assert read > SHORT / 20 and refused > SHORT / 4  # the mutations are neither without effect nor without sense
    packed = [outcomes[ending][0] for ending in (sources.ENDINGS.values() if sources.ARROW else [".gz"])]
    assert min(packed) > SHORT / 500, outcomes


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_twenty_thousand_wrong_files(part, tmp_path, capsys, monkeypatch):
    fuzz(1000 + part, LONG // PARTS, tmp_path, capsys, monkeypatch)


def test_the_good_files_are_read_whole(tmp_path, capsys):
    rng = random.Random(1)
    for name, content in (sources.made(rng) | sources.real(rng)).items():
        path = tmp_path / name
        path.write_bytes(content)
        code, said = look_at(path, capsys)
        assert code == 0, said
        if path.suffix in TABLES and (path.suffix != ".json" or "a trace" in said):
            assert counted(said) == records(content, said), said


def test_a_folder_of_nothing_is_refused(tmp_path, capsys):
    assert "nothing of ours" in look_at(tmp_path, capsys)[1]
    (tmp_path / "card.json").write_text(json.dumps({"what": "cake"}))
    assert "what should be one of" in look_at(tmp_path, capsys)[1]
