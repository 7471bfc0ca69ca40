"""The process of the command line, whatever state its streams, its user's home and its environment are in."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxsched.cli.main import main
from jaxsched.cli.output import Display, still_at

ROOT = Path(__file__).parents[2]
CHECK = [sys.executable, "-m", "jaxsched", "check"]
TRACE = "job_id,submit_time_s,num_gpus,duration_s\na,0,1,60\nb,10,2,60\n"
# A suite in the background has it ignored.
UNIGNORED = "import os, signal, sys; signal.signal(2, signal.SIG_DFL); print('begins', flush=True); "
UNIGNORED += "os.execv(sys.argv[1], sys.argv[1:])"
SIMULATE = ["simulate", "--policy", "pack", "--cluster", "leaf-spine-2", "--num-jobs", "5"]


def shell(command: str, **environment: str) -> subprocess.CompletedProcess:
    """What `jaxsched` in a shell's command does."""
    whole = f'jaxsched() {{ "{sys.executable}" -m jaxsched.cli "$@"; }}; {command}'
    return subprocess.run(
        ["bash", "-c", whole], capture_output=True, cwd=ROOT, env={**os.environ, **environment}, timeout=120
    )


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


@pytest.mark.parametrize("stream", ["2>/dev/full", "2>&-", "2> >(exec 0<&-)"])
def test_a_result_is_not_lost_with_standard_error(stream, tmp_path):
    """Progress goes there; what cannot be written is lost, and nothing else."""
    done = shell(f"jaxsched {' '.join(SIMULATE)} --json {tmp_path / 'out.json'} {stream}")
    assert done.returncode == 0 and done.stderr == b"" and b"5 arrived = 5 finished" in done.stdout
    assert (tmp_path / "out.json").stat().st_size > 100


def test_a_reader_that_has_gone_costs_no_file(trace, tmp_path):
    """Before: a trace was written after what was understood had been printed."""
    out = tmp_path / "out.csv"
    done = shell(f"jaxsched import {trace} -o {out} --json {out}.json | exec 0<&-; true", PYTHONUNBUFFERED="1")
    assert b"Traceback" not in done.stderr and out.read_text().count("\n") == 3
    assert Path(f"{out}.json").stat().st_size > 100


def test_a_closed_standard_output_costs_no_file(trace, tmp_path):
    done = shell(f"jaxsched check {trace} --json {tmp_path / 'out.json'} >&-")
    assert done.returncode == 0 and done.stdout == b"" and done.stderr.count(b"\n") == 1
    assert done.stderr.startswith(b"jaxsched: warning: standard output is closed")
    assert b"jobs" in (tmp_path / "out.json").read_bytes()
    assert shell(f"jaxsched check {trace} >&- 2>&- <&-").returncode == 0
    assert shell("jaxsched check nothing.csv >&- 2>&- <&-").returncode == 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_what_has_no_code_is_written_out(encoding, tmp_path):
    path = tmp_path / "\u2020\u8a9e.csv"
    path.write_text(TRACE)
    done = shell(f"jaxsched check '{path}'", PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and done.stderr == b"" and rb"\u8a9e.csv: a trace" in done.stdout


def test_a_name_that_is_no_text(tmp_path):
    trace, result, page = (os.fsencode(tmp_path) + name for name in (b"/\xff.csv", b"/\xfe.json", b"/page.html"))
    Path(os.fsdecode(trace)).write_text(TRACE)
    for words in (
        [b"check", trace],
        [b"import", trace, b"-o", result[:-4] + b"csv"],
        [b"evaluate", b"--workload", trace, b"--cluster", b"leaf-spine-2", b"--policies", b"pack", b"--json", result],
        [b"report", result, b"-o", page],
    ):
        done = subprocess.run([*CHECK[:-1], *words], capture_output=True, cwd=ROOT, timeout=300)
        assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr
    assert rb"\udcfe" in Path(os.fsdecode(page)).read_bytes()


def test_no_home(trace, tmp_path):
    """As of a container's user who is in no list of users."""
    said = "import pwd, sys; pwd.getpwuid = lambda uid: {}[uid]; sys.argv[0] = 'jaxsched'; "
    said += "from jaxsched.cli.__main__ import run; run()"
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "JAXSCHED_CACHE")}
    command = [sys.executable, "-c", said]
    for words in (["check", str(trace)], ["evaluate", "--workload", "philly", "--help"], SIMULATE):
        done = subprocess.run([*command, *words], capture_output=True, cwd=ROOT, env=environment, timeout=300)
        assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("threads", ["9" * 5000, "0", "-1", "1.5", "\u0663", "many"])
def test_threads_that_are_no_number(threads):
    done = shell(f"jaxsched {' '.join(SIMULATE)}", JAXSCHED_THREADS=threads)
    *_, last = done.stderr.decode().splitlines()
    assert done.returncode == 2 and last.startswith("jaxsched: error: JAXSCHED_THREADS: ") and len(last) < 200


@pytest.mark.parametrize("after_s", [0.1, 0.2, 0.3, 0.5, 0.8])
def test_a_stop_while_modules_are_imported(after_s, trace):
    running = subprocess.Popen(
        [sys.executable, "-c", UNIGNORED, *CHECK, *[str(trace)] * 2000],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    assert running.stdout is not None and running.stdout.readline() == "begins\n"
    time.sleep(after_s)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130 and said == "jaxsched: interrupted\n"


def test_a_run_that_stands_still_has_no_time_left(capsys, monkeypatch):
    """Its pace until then says nothing of the rest."""
    now = [0.0]
    monkeypatch.setattr("jaxsched.cli.output.time.monotonic", lambda: now[0])
    display = Display(["pack"], 200)
    for now[0], done in ((1.0, 100), (7.0, 189), (13.0, 189), (19.0, 189), (25.0, 195)):
        display.update("pack", done, now[0], over=False)
    first, moving, soon, still, again = capsys.readouterr().err.splitlines()
    assert "about 1 s left" in first and "s left" in moving and "s left" in again
    assert soon.endswith(", none for 6 s") and still.endswith(", none for 12 s")


def test_work_of_unknown_length_is_said_to_go_on(capsys, monkeypatch):
    monkeypatch.setattr("jaxsched.cli.output.EVERY_S", 0.01)
    with still_at("drawing"):
        time.sleep(0.2)
    said = capsys.readouterr().err.splitlines()
    assert 2 <= len(said) and all(line.startswith("drawing: at work for ") for line in said)


def test_what_follows_a_run_is_shown_as_work(capsys, monkeypatch):
    """The lower bound of many jobs takes a while; before, nothing was said of it."""
    monkeypatch.setattr("jaxsched.cli.output.EVERY_S", 0.05)
    monkeypatch.setattr("jaxsched.evaluation.compare.jct_lower_bound_s", lambda *_, **__: time.sleep(0.5) or 1.0)
    main(SIMULATE)
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("figures and the lower bound: at work for ")], said


@pytest.mark.parametrize(
    ("figures", "wanted"),
    [
        ([{}], "figures"),
        ("x", "figures"),
        ([{"command": "jaxsched evaluate 'a", "jct_mean_s": {}}], "No closing quotation"),
        ([{"command": "jaxsched evaluate --polices pack", "jct_mean_s": {}}], "--polices"),
        ([{"command": "jaxsched evaluate --policies nonsense", "jct_mean_s": {}}], "nonsense"),
        ([{"command": "jaxsched evaluate --workload none.csv", "jct_mean_s": {}}], "none.csv"),
        ([{"command": "jaxsched evaluate", "jct_mean_s": {"pack": "fast"}}], "jct_mean_s"),
    ],
)
@pytest.mark.parametrize("name", ["quickstart", "default"])
def test_a_card_is_read_before_anything_is_trained(name, figures, wanted, capsys, monkeypatch, tmp_path):
    """Before: a traceback after 83 s of training."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / name
    shutil.copytree(ROOT / "checkpoints" / name, folder)
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps(card | {"figures": figures}))
    with pytest.raises(SystemExit) as end:
        main(["reproduce", str(folder), "--out", "run"])
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count("\n") == 1 and wanted in said, said
    assert [one.name for one in tmp_path.iterdir()] == [name]
