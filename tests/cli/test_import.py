"""`jaxsched import` and what `jaxsched check` says of job logs, as a person meets them."""

import datetime
import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from jaxsched.cli.main import main
from jaxsched.workload.traces import read_log

HEADER = "JobID|JobName|User|Account|AllocTRES|State|Submit|Start|End|ElapsedRaw|Timelimit\n"


def sacct(jobs: int) -> str:
    """What `sacct -P` might say of so many jobs, every fourth with a step."""
    rng, now, lines = random.Random(0), datetime.datetime(2025, 1, 1), [HEADER]
    for number in range(jobs):
        now += datetime.timedelta(seconds=rng.expovariate(1 / 60))
        gpus, took = rng.choice((1, 1, 1, 2, 4, 8, 16)), int(rng.lognormvariate(7, 1.5)) + 1
        start = now + datetime.timedelta(seconds=rng.randrange(4000))
        end = start + datetime.timedelta(seconds=took)
        moments = "|".join(f"{moment:%Y-%m-%dT%H:%M:%S}" for moment in (now, start, end))
        state = rng.choice(("COMPLETED", "FAILED", "CANCELLED by 1000"))
        tres = f"cpu={8 * gpus},gres/gpu={gpus},node=1"
        lines.append(f"{number}|j|u{number % 30}|lab{number % 4}|{tres}|{state}|{moments}|{took}|1-00:00:00\n")
        if number % 4 == 0:
            lines.append(f"{number}.batch|batch|||{tres}|{state}|{moments}|{took}|\n")
    return "".join(lines)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(sacct(20))
    return path


def test_import_shows_and_writes(log, tmp_path, capsys):
    trace, report = tmp_path / "trace.csv", tmp_path / "report.json"
    main(["import", str(log), "-o", str(trace), "--cluster", "leaf-spine-2", "--json", str(report)])
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{log}: a trace, format slurm, of 20 jobs, 5 rows left out (a step of another job)"
    text = "\n".join(said)
    for wanted in ("not read  JobName", "on 16 GPUs", "4 (lab", "20 users", f"wrote {trace}"):
        assert wanted in text
    found = json.loads(report.read_text())
    assert found["jobs"] == 20 and found["left_out"] == {"a step of another job": 5}
    assert found["columns_not_read"] == ["JobName"] and found["gpus"] == 16 and found["offered_load"] > 0
    again = read_log(trace)
    assert again.jobs["job_id"].tolist() == read_log(log).jobs["job_id"].tolist()
    assert "model" not in again.header and "user" in again.header
    main(["check", str(log), "--cluster", "leaf-spine-2", "--json", str(report)])
    checked = capsys.readouterr().out.splitlines()
    assert [line for line in said if not line.startswith("wrote")] == [x for x in checked if not x.startswith("wrote")]
    kept = json.loads(report.read_text())[str(log)]
    assert {key: kept[key] for key in found} == found


def test_import_reads_standard_input(log, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(log.read_bytes())))
    main(["import", "-", "-o", str(tmp_path / "trace.csv")])
    assert capsys.readouterr().out.startswith("-: a trace, format slurm, of 20 jobs")
    assert len(read_log(tmp_path / "trace.csv").jobs["job_id"]) == 20


def test_mistakes_are_listed_and_nothing_is_written(tmp_path, capsys):
    path, trace = tmp_path / "log.csv", tmp_path / "trace.csv"
    path.write_text(sacct(20).replace("COMPLETED", "LOST"))
    for command in (["import", str(path), "-o", str(trace)], ["check", str(path), str(path)]):
        with pytest.raises(SystemExit) as end:
            main(command)
        said = capsys.readouterr().err.splitlines()
        assert (end.value.code == 2 and " mistakes:" in said[0]) or "mistakes, the first 10 of them:" in said[0]
        assert said[1].startswith("  line ") and "State: 'LOST' should be one of completed" in said[1]
    assert not trace.exists()


def test_check_takes_a_file_without_an_ending_for_a_log(log, tmp_path, capsys):
    """Philly's is called `cluster_job_log`."""
    log.rename(tmp_path / "cluster_job_log")
    main(["check", str(tmp_path / "cluster_job_log")])
    assert ": a trace, format slurm, of 20 jobs" in capsys.readouterr().out


def test_strict_and_outputs_that_are_no_traces(log, tmp_path, capsys):
    for command, wrong in (
        (["import", str(log), "--strict"], "line 3, JobID: '0.batch' should be a job"),
        (["import", str(log), "-o", str(tmp_path / "trace.txt")], "should end in .csv"),
        (["import", str(log), "-o", str(log)], "would replace a file that the command reads"),
        (["import", str(log), "--format", "helios"], "has no column job_id, gpu_num, state, submit_time"),
        (["check", str(log), "--cluster", "no-such"], "no-such"),
    ):
        with pytest.raises(SystemExit) as end:
            main(command)
        assert end.value.code == 2 and wrong in capsys.readouterr().err


def test_node_lists_say_what_is_not_read(tmp_path, capsys):
    path = tmp_path / "nodes.csv"
    path.write_text("sn,cpu_milli,memory_mib,gpu,model,rack\na,96000,393216,8,T4,r1\nb,96000,1,0,,r1\n")
    main(["check", str(path)])
    said = capsys.readouterr()
    assert (
        said.out == f"{path}: a cluster of 1 servers with GPUs, 1 row left out (no GPU); not read: rack\n"
        and said.err == ""
    )
    main(["cluster", "show", str(path)])
    assert f"jaxsched: warning: {path}: not read: rack" in capsys.readouterr().err


@pytest.mark.long  # a machine may be throttled to a third of its speed
def test_from_sacct_to_a_table_of_three_policies(tmp_path):
    """Two commands for 10,000 jobs where nothing has been compiled; CPU time, as other tests may be busy."""
    pytest.importorskip("numba", reason="the event loop needs the extra `compiled`")
    log, trace = tmp_path / "log.csv", tmp_path / "trace.csv"
    log.write_text(sacct(10_000))
    policies = ["--cluster", "leaf-spine-64", "--policies", "pack", "pack:sjf+backfill", "greedy-wait"]
    commands = ["import", str(log), "-o", str(trace)], ["evaluate", "--workload", str(trace), *policies]
    nothing = os.environ | {"JAXSCHED_CACHE": str(tmp_path / "cache")}
    before = os.times()
    for command in commands:
        command = [sys.executable, "-m", "jaxsched.cli", *command]
        done = subprocess.run(command, env=nothing, capture_output=True, text=True, check=True)
    after = os.times()
    assert "compiling the event loop" in done.stderr and "10,000 arrived = 10,000 finished" in done.stdout
    assert after.children_user - before.children_user < 30  # 25 where both cores are busy


def moments_of(number: int) -> str:
    """Submission, start and end of a job."""
    submitted = datetime.datetime(2020, 4, 1) + datetime.timedelta(seconds=7 * number)
    end = submitted + datetime.timedelta(seconds=60 + number)
    return f"{submitted},{submitted},{end}"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["native", "sacct", "helios", "philly"])
def test_a_million_rows(kind, tmp_path):
    """In seconds of CPU time, and in less than 2 GiB of the reading process, whatever the tests before it took."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the memory of a process is read from Linux's /proc")
    path = tmp_path / "log.csv"
    text = sacct(20_000)
    header, rows = text.split("\n", 1)
    if kind == "native":
        header = "job_id,submit_time_s,num_gpus,duration_s,user,tenant"
        rows = "".join(f"{i},{i * 7.25},{1 + i % 8},{100.5 + i},u{i % 99},t{i % 9}\n" for i in range(20_000))
    if kind == "helios":
        header = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
        rows = "".join(
            f"{i},u{i % 99},v{i % 9},{1 + i % 8},8,1,COMPLETED,{moments_of(i)},{60 + i},9\n" for i in range(20_000)
        )
    if kind == "philly":  # it has no names of jobs: the first column is the virtual cluster
        header = "cluster,timestamp,duration,num_gpus,gpu_time,status"
        rows = "".join(f"v{i % 9},{moments_of(i)[:19]},{60 + i},{1 + i % 8},9,Pass\n" for i in range(20_000))
    mark = "|" if kind == "sacct" else ","
    with path.open("w") as file:
        file.write(header + "\n")
        for piece in range(1_000_000 // rows.count("\n") + 1):  # names differ
            file.write("".join(f"{piece}x{row}\n" for row in rows.splitlines()))
    code = (  # VmHWM, as ru_maxrss begins with what the parent has
        "import re, sys, time\nfrom pathlib import Path\nfrom jaxsched.workload.traces import read_log, fill_in\n"
        "begin = time.process_time()\nlog = read_log(sys.argv[1])\nfill_in(log)\n"
        "most = re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1]\n"
        "print(len(log.jobs['job_id']) + sum(log.skipped.values()), time.process_time() - begin, most)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    rows_read, cpu_s, most_kib = done.stdout.split()
    assert int(rows_read) == path.read_text().count("\n") - 1 >= 1_000_000 and mark in header
    assert float(cpu_s) < 10 and int(most_kib) < 2 * 2**20  # 4 to 7 s where both cores are busy


def test_the_help_names_every_source():
    from jaxsched.cli.check import IMPORT_HELP

    for name in ("Slurm", "Philly", "Helios", "Acme", "openb", "PAI 2020", "spot GPUs", "ITP", "Tiresias", "Muri"):
        assert name in IMPORT_HELP
    page = (Path(__file__).parents[2] / "docs/howto/your-log.md").read_text()
    from jaxsched.workload.traces import FORMATS

    assert all(f"| `{source.name}` |" in page for source in FORMATS)


@pytest.mark.parametrize("name", ["quickstart", "default"])
def test_check_tells_what_a_folder_holds(name, capsys):
    main(["check", str(Path(__file__).parents[2] / "checkpoints" / name)])
    assert " a checkpoint" in (said := capsys.readouterr().out) or "a policy that seeks" in said
