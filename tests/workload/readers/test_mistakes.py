"""What is wrong with job logs: rows that are no jobs, mistakes that are listed, and the line that each of them has."""

import gzip

import pytest

from jaxsched.errors import Mistakes, UserError
from jaxsched.workload.traces import read_log
from tests.workload.readers.cases import (
    CASES,
    HEAD,
    HELIOS,
    MURI,
    OPENB,
    PAI,
    PHILLY_LOG,
    SACCT,
    SACCT_JSON,
    SPOT,
    SWF,
    write_case,
    written,
)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.left_out])
def test_strict_refuses_rows_that_are_no_jobs(name, tmp_path):
    with pytest.raises(UserError, match=r"(line|job|row) [0-9]+, [\w.]+: .* should be") as error:
        read_log(write_case(tmp_path, name), strict=True)
    told = int(str(error.value).split()[1]) if isinstance(error.value, Mistakes) else 1
    assert told == sum(CASES[name].left_out.values())


def test_the_first_ten_mistakes_are_listed(tmp_path):
    rows = "a,0,1,5\nb,x,1,5\nc,0,1.5,nan5\nd,0\n" + "".join(f"e{i},0,-1,5\n" for i in range(20))
    path = written(tmp_path / "log.csv", HEAD + rows)
    with pytest.raises(
        Mistakes, match=r"log.csv: 24 mistakes, the first 10 of them: line 3, submit_time_s: 'x'"
    ) as error:
        read_log(path)
    assert len(error.value.first) == 10 and "\n" not in str(error.value)
    assert error.value.first[:4] == [
        "line 3, submit_time_s: 'x' should be a finite number >= 0",
        "line 4, duration_s: 'nan5' should be a finite number > 0",
        "line 4, num_gpus: '1.5' should be a whole number >= 1",
        "line 5: 2 cells, should be 4 (job_id,submit_time_s,num_gpus,duration_s)",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HELIOS.replace("18:43:11", "18:40:11"),
            "line 2, end_time: '2020-06-09 18:40:11' should be not before the start",
        ),
        (HELIOS.replace("18:43:11", "18:63:11"), "line 2, end_time: .* should be a date and time like"),
        (HELIOS.replace("COMPLETED", "LOST"), "line 2, state: 'LOST' should be one of completed, cancelled, failed"),
        (HELIOS.replace("4,16,1,TIMEOUT", "4.5,16,1,TIMEOUT"), "line 3, gpu_num: '4.5' should be a whole number >= 1"),
        (SACCT.replace("|7200|1-", "|many|1-"), "line 2, ElapsedRaw: 'many' should be a finite number"),
        (
            SACCT.replace("AllocTRES", "X").replace("ReqTRES", "Y"),
            "has no column AllocTRES or ReqTRES.*export with sacct",
        ),
        (
            SACCT.replace("Submit", "X", 1),
            "is of no known trace format; Slurm's has JobID, Submit and State; export with",
        ),
        (OPENB.replace("b,4000,16384,1", "b,4000,16384,1e-400"), "line 3, num_gpu: '1e-400' should be a whole number"),
        (OPENB.replace("A10|T4,BE,Failed,20", "A10|T4,BE,Failed,x"), "line 3, creation_time: 'x' should be a finite"),
        (PAI.replace("j2,tensorflow,1.0", "j2,tensorflow,1.5"), "line 4, inst_num: '1.5' should be a whole number"),
        (OPENB.replace(",500,", ",half,"), "log, line 3, gpu_milli: 'half' should be a whole number"),  # told once
        (SPOT.replace("1,16", "1,-2"), "line 3, worker_num: '-2' should be a whole number >= 1"),
        (SWF.replace("100 8", "1e400 8"), "line 3, run_time: '1e400' should be a finite number"),
        (SWF + "5 1 2\n", "line 7: 3 cells, should be 18"),
        (MURI.replace("dqn", "lenet"), "line 2, model_name: 'lenet' should be one of the known models"),
        (
            PHILLY_LOG.replace("2017-10-07 01:12:09", "noon", 1),
            "job 1, attempts.start_time: 'an attempt without a time'",
        ),
        (PHILLY_LOG.replace('"attempts": []', '"attempts": 5'), "job 2, attempts: '0' should be a list of attempts"),
        (PHILLY_LOG.replace('"Pass"', '"Lost"'), "job 1, status: 'Lost' should be one of"),
        (
            SACCT_JSON.replace('"submission": 1735725600', '"submission": null', 1),
            "job 1, Submit: '' should be a finite",
        ),
        (HEAD.strip() + ",gpu_milli,num_ps\na,0,1,5,500,1\n", "line 2, num_ps: '1' should be 0, a job that shares"),
        (
            HEAD + "a,0,1,5\nb,2024-05-01T08:30:00Z,1,5\n",
            "line 3, submit_time_s: '2024-05-01T08:30:00Z' should be a finite",
        ),
        (HEAD + "a,2024-05-01T08:30:00Z,1,5\nb,7,1,5\n", "line 3, submit_time_s: '7' should be a date and time"),
        (
            HELIOS.replace(",end_time", ",ended", 1),
            "no known trace format; nearest is helios .*, which has end_time, too",
        ),
        (SACCT_JSON.replace('"ann"', '"a\\nb"', 1), r"job 1, User: 'a\\nb' should be text without control characters"),
        (SACCT_JSON.replace('"lab1"', '"\\u2028"', 1), "job 1, Account: .* should be text without control characters"),
        (
            HEAD.strip() + ",num_workers,gpus_per_worker\na,0,5,5,2,2\n",
            r"line 2, num_gpus: '5' should be num_workers \* gpus_per_worker = 2 \* 2 = 4",
        ),
        ("x" * 5000 + ",b\n1,2\n", "log, line 1: a cell of more than 4096 characters"),
        (SACCT_JSON.replace('"partition"', '"par\\n tition"', 1), r"the column 'par\\n tition' has control characters"),
        ("[1, 2]", "is JSON, but no job log that is read: slurm .* or philly-log"),
        ("{}", "is JSON, but no job log"),
        ('{"jobs": []}', "no job in the file"),
        ('[{"attempts": [], "jobid": 5}, 7]', "is JSON, but no job log"),
    ],
)
def test_mistakes_have_one_line(tmp_path, text, message):
    path = written(tmp_path / "log", text)
    with pytest.raises(UserError, match=message) as error:
        read_log(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_a_packed_file_that_was_cut(tmp_path):
    with pytest.raises(UserError, match="is damaged, gzip says"):
        read_log(written(tmp_path / "cut.gz", gzip.compress(HELIOS.encode())[:-20]))
