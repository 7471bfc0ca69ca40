"""No row is lost: what is read and what is left out are as many as others count; no column is lost in silence."""

import csv
import gzip
import io
import json
import random

import pytest

from jaxsched.errors import UserError
from jaxsched.workload.readers.summary import details, understood
from jaxsched.workload.traces import fill_in, read_log
from tests.workload.readers.cases import CASES, GAVEL, HEAD, PAI, SWF, written

MARKS = {"slurm": "|", "native": ";"}
HEADLESS = ("pai", "gavel", "gavel of seven columns", "swf")


def rows_of(name: str, content: str) -> int:
    """Rows of a case's file, as Python's own readers count them."""
    if content.lstrip()[:1] in "[{":
        value = json.loads(content)
        return len(value["jobs"] if isinstance(value, dict) else value)
    mark = "\t" if name.startswith("gavel") else " " if name == "swf" else MARKS.get(name, ",")
    quoting = csv.QUOTE_NONE if mark in "|\t" else csv.QUOTE_MINIMAL
    rows = [row for row in csv.reader(io.StringIO(content), delimiter=mark, quoting=quoting) if row]
    return sum(not row[0].startswith(";") for row in rows) - (name not in HEADLESS)


@pytest.mark.parametrize("name", [name for name in CASES if name != "pai"])  # its rows are tasks, see below
def test_as_many_as_others_count(name, tmp_path):
    case = CASES[name]
    log = read_log(written(tmp_path / case.file, case.content))
    assert len(log.jobs["job_id"]) + sum(log.skipped.values()) == rows_of(name, case.content) > 0


def test_tasks_of_pai_are_counted_by_job(tmp_path):
    """Every task is of a job that is read, or is left out."""
    tasks = [row for row in csv.reader(io.StringIO(PAI))]
    log = read_log(written(tmp_path / "log.csv", PAI))
    read = set(log.jobs["job_id"].tolist())
    of_none = [row for row in tasks if row[0] not in read]
    no_gpu = [row for row in tasks if row[0] in read and not row[8]]
    assert len(of_none) + len(no_gpu) == sum(log.skipped.values()) and read == {"j1", "j2", "j4"}


@pytest.mark.parametrize("name", ["helios", "acme", "openb", "spot", "itp", "tiresias", "philly", "pollux"])
def test_as_many_as_pandas_counts_in_parquet(name, tmp_path):
    pandas = pytest.importorskip("pandas", reason="needs the extra `tables`")
    pytest.importorskip("pyarrow", reason="needs the extra `tables`")
    table = pandas.read_csv(io.StringIO(CASES[name].content))
    table.to_parquet(tmp_path / "log.parquet")
    log, right = read_log(tmp_path / "log.parquet"), read_log(written(tmp_path / "log.csv", CASES[name].content))
    assert len(log.jobs["job_id"]) + sum(log.skipped.values()) == len(table)
    assert log.skipped == right.skipped and log.unread == right.unread
    for field in ("submit_s", "duration_s", "workers", "ended", "milli", "allowed"):
        assert log.jobs[field].tolist() == right.jobs[field].tolist(), field


@pytest.mark.parametrize("seed", range(20))
def test_random_logs_with_hostile_rows(seed, tmp_path):
    """A row is a job, is left out and counted, or is a mistake that is named by its line."""
    rng = random.Random(seed)
    kinds = [("1", "60", "job"), ("8", "1e3", "job"), ("0", "60", "out"), ("2", "-", "out"), ("-1", "60", "wrong")]
    kinds += [("1.5", "60", "wrong"), ("1", "nan5", "wrong"), ("9" * 400, "60", "wrong"), ("\u0663", "60", "wrong")]
    drawn = [rng.choice(kinds if seed % 2 else kinds[:4]) for _ in range(rng.randrange(5, 60))]
    text = HEAD + "".join(f"j{i},{i},{gpus},{run}\n" for i, (gpus, run, _) in enumerate(drawn))
    path = written(tmp_path / "log.csv.gz", gzip.compress(text.encode()))
    count = {what: sum(kind[2] == what for kind in drawn) for what in ("job", "out", "wrong")}
    if count["wrong"]:
        with pytest.raises(UserError) as error:
            read_log(path)
        first = next(i for i, kind in enumerate(drawn) if kind[2] == "wrong") + 2
        assert f"line {first}, " in str(error.value) and ("mistakes" in str(error.value)) == (count["wrong"] > 1)
    elif count["job"]:
        log = read_log(path)
        assert (len(log.jobs["job_id"]), sum(log.skipped.values())) == (count["job"], count["out"])


@pytest.mark.parametrize("name", HEADLESS)
def test_columns_without_names_are_named(name, tmp_path):
    """By the schema; a line with more cells than it has is a mistake."""
    case = CASES[name]
    log = read_log(written(tmp_path / case.file, case.content))
    (told,) = [line for line in details(understood(log, fill_in(log))) if line.startswith("  not read")]
    assert case.not_read and all(column in told for column in case.not_read.split())


@pytest.mark.parametrize(
    ("content", "file", "wider"), [(SWF, "log.swf", " 7\n"), (GAVEL, "log.trace", "\t7\t8\n"), (PAI, "log.csv", ",7\n")]
)
def test_cells_beyond_a_schema_are_mistakes(content, file, wider, tmp_path):
    last = content.rstrip("\n")
    with pytest.raises(UserError, match=rf"line {content.count(chr(10))}: [0-9]+ cells, should be"):
        read_log(written(tmp_path / file, last + wider))


def test_an_unknown_column_of_ours_is_a_mistake(tmp_path):
    with pytest.raises(UserError, match="line 1: unknown column 'nodes_2' in a native trace, should be one of job_id"):
        read_log(written(tmp_path / "log.csv", HEAD.strip() + ",nodes_2\na,0,1,5,n\n"))


def test_a_header_of_pai_and_what_it_does_not_know(tmp_path):
    header = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type,zone\n"
    text = header + "".join(f"{line},z\n" for line in PAI.splitlines())
    log = read_log(written(tmp_path / "log.csv", text))
    assert log.source.name == "pai" and "zone" in log.unread
