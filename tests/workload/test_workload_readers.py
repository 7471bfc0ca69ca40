"""Every source of job logs: a small file of ours after its published schema, its right values worked out by hand, an
unknown column that is named, rows that are no jobs, and mistakes that are listed."""

import gzip
import importlib.util
import io
import json
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from jaxsched.errors import Mistakes, NotRead, UserError
from jaxsched.workload.jobs import ENDS
from jaxsched.workload.readers.pollux import RUN_S
from jaxsched.workload.readers.summary import details, headline, understood
from jaxsched.workload.traces import FORMATS, fill_in, read_log, read_trace, write_log, write_native

HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1,uA,vcA,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:11,2020-06-09 18:43:11,120,10
2,uB,vcB,4,16,1,TIMEOUT,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
3,uC,vcC,16,64,2,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:41:40,2020-06-09 18:41:40,0,12
4,uC,vcC,0,8,1,TIMEOUT,2020-06-09 18:42:28,2020-06-09 18:42:28,2020-06-09 19:42:28,3600,0
5,uD,vcC,8,64,1,NODE_FAIL,2020-06-09 18:43:28,2020-06-09 18:43:28,2020-06-09 19:43:28,3600,0
"""
KALOS = """job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,\
end_time,fail_time,stop_time,duration,queue,gpu_time
d1,u1,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,\
2023-05-17 11:01:16+00:00,2023-05-17 11:01:16+00:00,,18,10.0,1152.0
d2,u1,2,16,256,1000,100.0,Pretrain,CANCELLED,2023-05-17 19:28:42+08:00,,2023-05-17 11:30:04+00:00,,,0,6,0.0
d3,u2,8,64,960,1000,100.0,Pretrain,CANCELLED,2023-05-17 19:28:42+08:00,2023-05-17 11:28:54+00:00,\
2023-05-17 11:30:04+00:00,,2023-05-17 11:30:04+00:00,82,12.0,5248.0
"""
SACCT = """JobID|JobName|User|Account|Partition|ReqTRES|AllocTRES|State|Submit|Start|End|ElapsedRaw|Timelimit|NNodes
1|a,"x|alice|lab1|gpu|cpu=8,gres/gpu=2|cpu=8,gres/gpu=2,node=1|COMPLETED|2025-01-01T10:00:00|2025-01-01T10:05:00|\
2025-01-01T12:05:00|7200|1-00:00:00|1
1.batch|batch|||||cpu=8,gres/gpu=2|COMPLETED|2025-01-01T10:05:00|2025-01-01T10:05:00|2025-01-01T12:05:00|7200||1
2_7|b|bob|lab2|gpu|gres/gpu:a100=8,node=2||CANCELLED by 1000|2025-01-01T10:01:00|None|2025-01-01T10:03:00|0|UNLIMITED|2
3|c|bob|lab2|gpu|gres/gpu=16|gres/gpu=16|RUNNING|2025-01-01T10:01:00|2025-01-01T10:02:00|Unknown|90000|02:00:00|2
4_1|d|bob|lab2|gpu|cpu=4|gres/gpu:a100=4,gres/gpu:v100=2|OUT_OF_MEMORY|2025-01-01T09:59:00|2025-01-01T10:02:00|\
2025-01-01T10:03:30|90|30:00|2
5|e|eve|lab1|cpu|cpu=4|cpu=4|COMPLETED|2025-01-01T10:01:00|2025-01-01T10:02:00|2025-01-01T10:03:00|60|30:00|1
"""
OPENB = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
a,4000,16384,1,1000,V100M32,LS,Succeeded,0,3600,5
b,4000,16384,1,500,A10|T4,BE,Failed,20,3620,20
c,4000,16384,0,0,,LS,Succeeded,20,3620,20
"""
PAI = """j1,worker,2.0,Terminated,100.0,400.0,600.0,29.3,100.0,V100
j1,chief,1.0,Terminated,90.0,390.0,600.0,29.3,100.0,V100
j1,ps,1.0,Terminated,80.0,400.0,600.0,29.3,,
j2,tensorflow,1.0,Failed,50.0,60.0,600.0,29.3,25.0,T4
j3,tensorflow,1.0,Running,70.0,,600.0,29.3,50.0,MISC
j4,worker,3.0,Terminated,80.0,90.0,600.0,29.3,50.0,MISC
j5,worker,1.0,Waiting,,,600.0,29.3,100.0,MISC
"""
SPOT = """job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type
239255,13,A10,20,1,1,0,2764799,HP
437260,57,A100-SXM4-80GB,15,1,16,9589663,41060,Spot
437261,57,A100-SXM4-80GB,15,8,2,9589664,100,HP
437262,57,A100-SXM4-80GB,15,0,2,9589665,100,HP
"""
TIRESIAS = """job_id,num_gpu,submit_time,iterations,model_name,duration,interval
0,1,0,606,vgg19,164,30
1,8,30,133,alexnet,1470,23
"""
MURI = """job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,\
resource_time_0,resource_time_1,resource_time_2,priority
7,1,0,10,dqn,128,2868294000,0,490,446,8,0,1
8,4,1500,10,shufflenet_v2_x1_0,128,2500,0,886,703,62,17,0
"""
ITP = """job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration
a-b,3715485,3249,deepspeech2,3716178,32,1,1075
c-d,3717550,48266,inception3,3720405,64,8,3604
"""
GAVEL = """ResNet-18 (batch size 32)\tcd x && python3 main.py\tdir\t--num_steps\t1\t299472\t1\t1\t-1.000000\t10.5
ResNet-50 (batch size 64)\tcd x && python3 main.py\tdir\t--num_steps\t1\t94519.5\t4\t1\t-1.000000\t0.0
Transformer (batch size 64)\tcd x\tdir\t-step\t1\t100\t3\t1\t-1.000000\t20.0
"""
GAVEL_SHORT = """LM (batch size 5)\tcd x && python main.py\t--steps\t0\t10916.7\t7.5\t1
Recommendation\tcd x\t-n\t0\t100\t8.0\t1
"""
POLLUX = """name,time,application,num_replicas,batch_size
cifar10-0,107,cifar10,6,2048
gpt-1,110,gpt_pmp,6,320
bert-2,5.661874,bert,12,384
"""
SWF = """; Version: 2.2
;  MaxProcs: 128
1 0 10 100 8 -1 -1 8 600 -1 1 3 2 -1 1 1 -1 -1
2 5 -1 -1 -1 -1 -1 8 600 -1 5 3 2 -1 1 1 -1 -1
3 7 1 50 -1 -1 -1 16 -1 -1 0 4 -1 -1 1 1 -1 -1
4 9 1 0 4 -1 -1 16 -1 -1 5 4 -1 -1 1 1 -1 -1
"""
PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster,status
2017-10-07 01:11:39,240,2,480,aaaaaa,Pass
2017-10-07 02:11:39,0,1,0,aaaaaa,Killed
2017-10-07 03:11:39,500,0,0,bbbbbb,Failed
"""
NATIVE = """job_id;submit_time_s;num_gpus;duration_s;user;estimate_s
a;2024-05-01T10:00:00+02:00;1;100;ann;300
b;2024-05-01T08:30:00Z;2;100;bob;
"""
MACHINES = [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0"]}]
PHILLY_LOG = json.dumps(
    [
        {
            "status": "Pass",
            "vc": "ee9e8c",
            "jobid": "application_1_1",
            "attempts": [
                {"start_time": "2017-10-07 01:12:09", "end_time": "2017-10-07 01:13:23", "detail": MACHINES[:1]},
                {"start_time": "2017-10-07 01:13:30", "end_time": "2017-10-09 06:53:12", "detail": MACHINES},
            ],
            "submitted_time": "2017-10-07 01:11:39",
            "user": "ce2f4c",
        },
        {"status": "Killed", "vc": "a", "jobid": "2", "attempts": [], "submitted_time": "2017-10-07 01:11:39"},
        {
            "status": "Failed",
            "vc": "a",
            "jobid": "3",
            "attempts": [{"start_time": "2017-10-07 01:12:09", "end_time": None, "detail": MACHINES}],
            "submitted_time": "2017-10-07 01:11:39",
        },
    ]
)


def slurm_job(number: int, state, start: int, end: int, gres: list, **more) -> dict:
    """A job as `sacct --json` has it."""
    time = {"submission": 1735725600, "start": start, "end": end, "elapsed": end - start if end else 90}
    time["limit"] = {"set": True, "infinite": False, "number": 60}
    tres = {"allocated": [{"type": "cpu", "name": "", "id": 1, "count": 8}, *gres], "requested": []}
    job = {"job_id": number, "account": "lab1", "user": "ann", "state": {"current": state}, "time": time, "tres": tres}
    return job | {"partition": "gpu", "steps": []} | more


GPUS = {"type": "gres", "name": "gpu", "id": 1001, "count": 4}
TASK = {"job_id": 77, "task_id": {"set": True, "infinite": False, "number": 3}}
SACCT_JSON = json.dumps(
    {
        "meta": {},
        "jobs": [
            slurm_job(11, ["COMPLETED"], 1735725660, 1735725760, [GPUS]),
            slurm_job(12, "FAILED", 1735725660, 1735725670, [GPUS | {"name": "gpu:a100", "count": 2}], array=TASK),
            slurm_job(13, ["RUNNING"], 1735725660, 0, [GPUS]),
            slurm_job(14, ["CANCELLED"], 0, 1735725660, [GPUS]),
        ],
        "errors": [],
    }
)

# name: (file's name, content, jobs (name, submit s, run time s, GPUs, end, tenant, user), rows left out, not read)
CASES = {
    "helios": (
        "log.csv",
        HELIOS,
        [
            ("1", 0, 120, 1, "completed", "vcA", "uA"),
            ("2", 26, 249, 4, "failed", "vcB", "uB"),
            ("5", 147, 3600, 8, "failed", "vcC", "uD"),
        ],
        {"no GPU": 1, "cancelled after 0 s": 1},
        {"cpu_num", "node_num", "duration", "queue"},
    ),
    "acme": (
        "log.csv",
        KALOS,
        [("d1", 0, 8, 64, "failed", "Other", "u1"), ("d3", 1664, 70, 64, "cancelled", "Pretrain", "u2")],
        {"never started": 1},
        {"node_num", "cpu_num", "mem_per_pod_GB", "shared_mem_per_pod", "fail_time", "stop_time", "duration", "queue"}
        | {"gpu_time"},
    ),
    "slurm": (
        "log.csv",
        SACCT,
        [("4_1", 0, 90, 6, "failed", "lab2", "bob"), ("1", 60, 7200, 2, "completed", "lab1", "alice")],
        {"a step of another job": 1, "no end": 1, "never started": 1, "no GPU": 1},
        {"JobName", "Partition", "NNodes"},
    ),
    "slurm as JSON": (
        "log.json",
        SACCT_JSON,
        [("11", 0, 100, 4, "completed", "lab1", "ann"), ("77_3", 0, 10, 2, "failed", "lab1", "ann")],
        {"no end": 1, "never started": 1},
        {"partition", "steps"},
    ),
    "openb": (
        "log.csv",
        OPENB,
        [("a", 0, 3595, 1, "completed", "", ""), ("b", 20, 3600, 1, "failed", "", "")],
        {"no GPU": 1},
        {"cpu_milli", "memory_mib", "gpu_spec", "qos"},
    ),
    "pai": (
        "log.csv",
        PAI,
        [
            ("j2", 0, 10, 1, "failed", "", ""),
            ("j4", 30, 10, 3, "completed", "", ""),
            ("j1", 40, 310, 3, "completed", "", ""),
        ],
        {"no GPU": 1, "no end": 1, "never started": 1},
        {"task_name", "plan_cpu", "plan_mem", "gpu_type"},
    ),
    "spot": (
        "log.csv",
        SPOT,
        [
            ("239255", 0, 2764799, 1, "completed", "13", ""),
            ("437260", 9589663, 41060, 16, "completed", "57", ""),
            ("437261", 9589664, 100, 16, "completed", "57", ""),
        ],
        {"no GPU": 1},
        {"gpu_model", "cpu_request", "job_type"},
    ),
    "tiresias": (
        "log.csv",
        TIRESIAS,
        [("0", 0, 164, 1, "completed", "", ""), ("1", 30, 1470, 8, "completed", "", "")],
        {},
        {"iterations", "interval"},
    ),
    "muri": (
        "log.csv",
        MURI,
        [("7", 0, 2868294, 1, "completed", "", ""), ("8", 1.5, 2.5, 4, "completed", "", "")],
        {},
        {"iterations", "batch_size", "interval", "iteration_time", "resource_time_0", "resource_time_1"}
        | {"resource_time_2", "priority"},
    ),
    "itp": (
        "log.csv",
        ITP,
        [("a-b", 0, 1075, 1, "completed", "", ""), ("c-d", 2065, 3604, 8, "completed", "", "")],
        {},
        {"num_iteration", "deadline", "batch_size"},
    ),
    "gavel": (
        "log.trace",
        GAVEL,
        [("2", 0, 10000, 4, "completed", "", ""), ("1", 10.5, 10000, 1, "completed", "", "")],
        {"no rate was measured for such a job": 1},
        {"command", "working_directory", "num_steps_arg", "needs_data_dir", "priority_weight", "SLO"},
    ),
    "gavel of seven columns": (
        "log.trace",
        GAVEL_SHORT,
        [("1", 7.5, 100, 1, "completed", "", "")],
        {"no rate was measured for such a job": 1},
        {"command", "num_steps_arg", "needs_data_dir"},
    ),
    "pollux": (
        "log.csv",
        POLLUX,
        [("bert-2", 5.661874, 1594, 12, "completed", "", ""), ("cifar10-0", 107, 910, 6, "completed", "", "")],
        {"no run time is known for the application with such GPUs and batch size": 1},
        set(),
    ),
    "swf": (
        "log.swf",
        SWF,
        [("1", 0, 100, 8, "completed", "2", "3"), ("3", 7, 50, 16, "failed", "", "4")],
        {"no run time": 1, "cancelled after 0 s": 1},
        {"wait_time", "average_cpu_time", "used_memory", "requested_memory", "executable", "queue", "partition"}
        | {"preceding_job", "think_time"},
    ),
    "philly": (
        "log.csv",
        PHILLY,
        [("0", 0, 240, 2, "completed", "aaaaaa", "")],
        {"cancelled after 0 s": 1, "no GPU": 1},
        {"gpu_time"},
    ),
    "philly-log": (
        "log.json",
        PHILLY_LOG,  # 74 s and 193,182 s, the sum that ElasticFlow's table has for the job of the schema's example
        [("application_1_1", 0, 193256, 3, "completed", "ee9e8c", "ce2f4c")],
        {"never started": 1, "no end": 1},
        {"attempts.detail.ip"},
    ),
    "native": (
        "log.csv",
        NATIVE,
        [("a", 0, 100, 1, "completed", "", "ann"), ("b", 1800, 100, 2, "completed", "", "bob")],
        {},
        set(),
    ),
}
WITH_HEADER = sorted(name for name, case in CASES.items() if case[0] == "log.csv" and name not in ("pai", "native"))


@pytest.fixture
def case(request, tmp_path):
    path = tmp_path / CASES[request.param][0]
    path.write_text(CASES[request.param][1])
    return request.param.partition(" ")[0], path, *CASES[request.param][2:]


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_right_values(case):
    name, path, jobs, left_out, unread = case
    log = read_log(path)
    assert log.source.name == name and log.skipped == left_out and set(log.unread) == unread
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotRead)
        found, skipped = read_trace(path)
    assert skipped == left_out
    ends = [ENDS[code] for code in found.ended]
    rows = zip(found.job_id, found.submit_s, found.duration_s, found.num_gpus, ends, log.jobs["tenant"], found.user)
    for row, right in zip(rows, jobs, strict=True):
        assert row[0] == right[0] and row[3:] == right[3:]
        assert row[1:3] == pytest.approx(right[1:3], rel=1e-6)


def test_every_source_has_a_case():
    assert {source.name for source in FORMATS} == {name.partition(" ")[0] for name in CASES}


def test_schemas_do_not_contradict_themselves():
    for source in FORMATS:
        used = (*source.needs, *source.uses)
        assert len(set(used)) == len(used) and set(used).isdisjoint(source.passes), source.name
        assert source.about and (source.needs or source.bare or source.rows)


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_unread_columns_are_said_once(case):
    _, path, _, _, unread = case
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read_trace(path)
    told = [str(one.message) for one in caught if one.category is NotRead]
    log = read_log(path)
    if not unread and not log.notes and np.isnan(log.jobs["estimate_s"]).all():
        assert told == []
        return
    assert len(told) == 1 and told[0].startswith(str(path)) and "\n" not in told[0]
    assert all(column in told[0] for column in unread)


@pytest.mark.parametrize("name", WITH_HEADER)
def test_an_unknown_column_is_named(name, tmp_path):
    lines = CASES[name][1].splitlines()
    mark = "|" if name == "slurm" else ","
    path = tmp_path / "log.csv"
    path.write_text("".join(f"{line}{mark}{'nodes_2' if i == 0 else i}\n" for i, line in enumerate(lines)))
    if name in ("tiresias", "muri"):  # now either may be meant
        with pytest.raises(UserError, match=r"--format tiresias .* or --format muri"):
            read_log(path)
        log = read_log(path, format=name)
    else:
        log = read_log(path)
    assert log.source.name == name and "nodes_2" in log.unread
    told = details(understood(log, fill_in(log)))
    assert [line for line in told if line.startswith("  not read") and "nodes_2" in line]


@pytest.mark.parametrize("name", ["slurm as JSON", "philly-log"])
def test_an_unknown_key_is_named(name, tmp_path):
    value = json.loads(CASES[name][1])
    (value["jobs"] if isinstance(value, dict) else value)[0]["weather"] = "fine"
    path = tmp_path / "log.json"
    path.write_text(json.dumps(value))
    assert "weather" in read_log(path).unread


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_what_import_writes_reads_the_same(case, tmp_path):
    log = read_log(case[1])
    write_log(tmp_path / "trace.csv", log)
    again = read_log(tmp_path / "trace.csv")
    assert again.source.name == "native" and again.skipped == {}
    for name, column in log.jobs.items():
        other = again.jobs[name]
        if name == "submit_s":
            column = column - column[0] if log.dated or log.source.from_start else column
        if name in ("workers", "gpus_per_worker"):
            continue
        assert np.array_equal(other, column, equal_nan=column.dtype.kind == "f"), name
    assert np.array_equal(again.jobs["workers"] * again.jobs["gpus_per_worker"], log.jobs["workers"])


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_strict_refuses_rows_that_are_no_jobs(case):
    _, path, _, left_out, _ = case
    if not left_out:
        return
    with pytest.raises(UserError, match=r"(line|job|row) [0-9]+, [\w.]+: .* should be") as error:
        read_log(path, strict=True)
    assert sum(left_out.values()) == (int(str(error.value).split()[1]) if isinstance(error.value, Mistakes) else 1)


def test_estimates_and_shares(tmp_path):
    for name, content in {"n.csv": NATIVE, "s.swf": SWF, "l.csv": SACCT, "p.csv": PAI, "o.csv": OPENB}.items():
        (tmp_path / name).write_text(content)
    jobs = read_trace(tmp_path / "n.csv")[0]
    assert jobs.estimate_s.tolist() == [300, 100] and jobs.estimate_ratio.tolist() == [3, 1]
    assert fill_in(read_log(tmp_path / "s.swf")).estimate_s.tolist() == [600, 50]
    assert fill_in(read_log(tmp_path / "l.csv")).estimate_s.tolist() == [1800, 86400]
    assert fill_in(read_log(tmp_path / "p.csv")).milli.tolist() == [250, 1000, 1000]
    assert fill_in(read_log(tmp_path / "o.csv")).milli.tolist() == [1000, 500]
    write_native(tmp_path / "again.csv", jobs)
    assert read_trace(tmp_path / "again.csv")[0].estimate_s.tolist() == [300, 100]


def test_what_is_understood_is_said(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(SACCT)
    log = read_log(path)
    found = understood(log, fill_in(log), 16)
    assert headline(found).startswith("a trace, format slurm, of 2 jobs, 1 row left out (a step of another job), ")
    text = "\n".join(details(found))
    assert "not read  JobName, Partition, NNodes" in text and "UTC where they name no zone" in text
    assert "2025-01-01 09:59:00 UTC to 2025-01-01 10:00:00 UTC, 60 s" in text
    assert "4.2 GPU hours" in text and "widest gang 6 GPUs" in text and "1 completed, 1 failed" in text
    assert "2 (lab1 96%, lab2 4% of the GPU time); 2 users" in text and "what users asked for, of 2 jobs" in text
    # 2 * 7200 + 6 * 90 GPU seconds in 60 s
    assert found["gpus_busy"] == 249 and found["offered_load"] == 249 / 16 and "load 15.6 on 16 GPUs" in text
    json.dumps(found, allow_nan=False)


def test_formats_that_look_alike_are_asked_for(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("job_id,num_gpu,submit_time,model_name,duration\n1,1,1000,vgg16,5000\n")
    with pytest.raises(UserError, match=r"tiresias and muri; say which, with --format tiresias .* or --format"):
        read_log(path)
    assert read_log(path, format="muri").jobs["duration_s"].tolist() == [5]
    assert read_log(path, format="tiresias").jobs["duration_s"].tolist() == [5000]
    with pytest.raises(UserError, match="line 1: has no column JobID, Submit, State as Slurm's sacct has them"):
        read_log(path, format="slurm")
    with pytest.raises(UserError, match="line 1: is no line of cells as the Standard Workload Format has them"):
        read_log(path, format="swf")
    with pytest.raises(UserError, match="--format: unknown 'murj', should be one of native, slurm"):
        read_log(path, format="murj")


HEAD = "job_id,submit_time_s,num_gpus,duration_s\n"


def test_the_first_ten_mistakes_are_listed(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(HEAD + "a,0,1,5\nb,x,1,5\nc,0,1.5,nan5\nd,0\n" + "".join(f"e{i},0,-1,5\n" for i in range(20)))
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
        ("[1, 2]", "is JSON, but no job log that is read: slurm .* or philly-log"),
        ("{}", "is JSON, but no job log"),
        ('{"jobs": []}', "no job in the file"),
        ('[{"attempts": [], "jobid": 5}, 7]', "is JSON, but no job log"),
    ],
)
def test_mistakes_have_one_line(tmp_path, text, message):
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_log(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_packed_files_separators_and_standard_input(tmp_path, monkeypatch):
    right = read_log(_written(tmp_path / "log.csv", HELIOS.encode())).jobs
    for name, content in {
        "log.csv.gz": gzip.compress(HELIOS.encode()),
        "tabs.tsv": HELIOS.replace(",", "\t").encode(),
        "semicolons.csv": HELIOS.replace(",", ";").encode(),
        "windows.csv": b"\xef\xbb\xbf" + HELIOS.replace("\n", "\r\n").encode(),
        "quotes.csv": HELIOS.replace("uA", '"uA"').encode(),
    }.items():
        jobs = read_log(_written(tmp_path / name, content)).jobs
        assert all(np.array_equal(jobs[field], right[field], equal_nan=field == "estimate_s") for field in right), name
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(HELIOS.encode()))))
    assert read_log("-").jobs["job_id"].tolist() == right["job_id"].tolist()
    with pytest.raises(UserError, match="is damaged, gzip says"):
        read_log(_written(tmp_path / "cut.gz", gzip.compress(HELIOS.encode())[:-20]))


def test_bars_at_the_end_of_lines(tmp_path):
    """`sacct -p`, and names with quotes, which mean nothing there."""
    text = "".join(f"{line}|\n" for line in SACCT.splitlines())
    assert read_log(_written(tmp_path / "log.csv", text.encode())).jobs["job_id"].tolist() == ["4_1", "1"]


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="pyarrow is there")
def test_what_needs_pyarrow_says_so(tmp_path):
    for content, what in ((b"PAR1abc", "Parquet"), (b"\x28\xb5\x2f\xfdabc", "zstd")):
        with pytest.raises(UserError, match=rf"log: {what} needs pyarrow; install the extra, pip install"):
            read_log(_written(tmp_path / "log", content))


def test_parquet_and_zstd(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra `tables`")
    from pyarrow import csv, parquet

    table = csv.read_csv(io.BytesIO(HELIOS.encode()))  # with dates and numbers of its own types
    parquet.write_table(table, tmp_path / "log.parquet")
    with pyarrow.CompressedOutputStream(str(tmp_path / "log.csv.zst"), "zstd") as file:
        file.write(HELIOS.encode())
    right = read_log(_written(tmp_path / "log.csv", HELIOS.encode())).jobs
    for name in ("log.parquet", "log.csv.zst"):
        jobs = read_log(tmp_path / name).jobs
        assert all(np.array_equal(jobs[field], right[field], equal_nan=field == "estimate_s") for field in right), name
    for content, wrong in ((b"PAR1abc", "is not a Parquet file"), (b"\x28\xb5\x2f\xfdabc", "is damaged, zstd says")):
        with pytest.raises(UserError, match=wrong):
            read_log(_written(tmp_path / "log", content))


def test_pieces_do_not_matter(tmp_path, monkeypatch):
    """A log that is read in pieces of three rows is the same as one that is read at once."""
    from jaxsched.workload.readers import table

    for name, (_, content, *_) in CASES.items():
        right = read_log(_written(tmp_path / "log", content.encode()))
        monkeypatch.setattr(table, "PIECE", 3)
        log = read_log(tmp_path / "log")
        monkeypatch.undo()
        assert (log.skipped, log.notes, log.unread) == (right.skipped, right.notes, right.unread), name
        for field, column in log.jobs.items():
            assert column.tolist() == right.jobs[field].tolist() or field == "estimate_s", (name, field)


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


# The inputs that failed: right values worked out by hand; (jobs, GPUs, run times, submit times, rows left out).
SHARED = Path(os.environ.get("JAXSCHED_CASES", Path(__file__).parents[3] / "shared/cases")) / "logs"
FAILED = {
    "acme_trace_seren.csv": (["5000001", "5000002"], [8, 8], [117, 2693], [0, 336], 1),
    "cluster_job_log.json": (["application_1500000000001_10001"], [2], [74 + 20382], [0], 2),
    "helios_cluster_log.csv": (["100001", "100002", "100005"], [1, 4, 8], [36848, 249, 3600], [0, 26, 147], 2),
    "n_iso.csv": (["a", "b"], [1, 1], [100, 100], [0, 1800], 0),
    "n_zero_cancel.csv": (["b"], [1], [100], [5], 1),
    "n_zero_gpu.csv": (["b"], [1], [100], [5], 1),
    "native.csv.gz": (["a"], [1], [100], [0], 0),
    "openb_cpu.csv": (["pod-a", "pod-b"], [1, 1], [3600, 3600], [0, 0], 0),
    "openb_gpu_spec.csv": (["pod-a", "pod-b", "pod-c"], [1, 1, 1], [3600] * 3, [0, 10, 20], 0),
    "philly_raw_like.csv": (["0"], [2], [240], [0], 2),
    "sacct.csv": (["1001"], [2], [7200], [0], 3),
    "tiresias_known_models.csv": (["0", "1", "2"], [1, 8, 2], [164, 1470, 12700], [0, 30, 53], 0),
}


@pytest.mark.parametrize("name", FAILED)
def test_inputs_that_failed(name):
    if not (SHARED / name).is_file():
        pytest.skip("needs ../shared/cases (or JAXSCHED_CASES)")
    log = read_log(SHARED / name)
    jobs = fill_in(log)
    names, gpus, run_s, submit_s, left_out = FAILED[name]
    assert jobs.job_id.tolist() == names and jobs.num_gpus.tolist() == gpus
    assert jobs.duration_s.tolist() == run_s and jobs.submit_s.tolist() == submit_s
    assert sum(log.skipped.values()) == left_out


def counted(path: Path) -> int:
    return len(path.read_text().strip().splitlines()) - 1


def test_real_itp_and_pollux():
    """As many jobs as the files have lines; unknown models and applications are said."""
    data = Path(os.environ.get("JAXSCHED_DATA", Path(__file__).parents[3] / "shared/data")) / "adaptive"
    if not data.is_dir():
        pytest.skip("needs ../shared/data")
    for path in sorted((data / "itp").glob("*.csv")):
        log = read_log(path)
        assert log.source.name == "itp" and len(log.jobs["job_id"]) == counted(path) and log.skipped == {}
        assert all("inception3" in note for note in log.notes)
    for path in sorted([*data.glob("pollux/workloads-*/*.csv"), *data.glob("sia/workloads/*/*.csv")]):
        log = read_log(path)
        assert log.source.name == "pollux" and len(log.jobs["job_id"]) + sum(log.skipped.values()) == counted(path)
        assert sum(log.skipped.values()) == path.read_text().count(",gpt_pmp,")


def test_pollux_run_times_are_those_it_published():
    """Tiresias' completion times at load 0.5 are never shorter than the run time, but for gangs of 8; some equal it."""
    data = Path(os.environ.get("JAXSCHED_DATA", Path(__file__).parents[3] / "shared/data")) / "adaptive/pollux"
    if not data.is_dir():
        pytest.skip("needs ../shared/data")
    import csv

    asked = {}
    for number in (1, 2, 3, 4):
        with (data / f"workloads-0.5/workload-{number}.csv").open() as file:
            for row in csv.DictReader(file):
                kind = (row["application"], int(row["num_replicas"]), int(row["batch_size"]))
                asked[f"workload-{number}", row["name"]] = kind
    least: dict = {}
    with (data / "results_per_job.csv").open() as file:
        for row in csv.DictReader(file):
            if row["run"] == "tiresias-0.5":
                app, gpus, batch = asked[row["workload"], row["job"]]
                more = float(row["jct_s"]) - RUN_S[app][gpus, batch]
                least[app, gpus] = min(more, least.get((app, gpus), 1e9))
    assert len(least) > 8
    assert all(30 <= more <= 64 for (_, gpus), more in least.items() if gpus != 8)


def test_dates_of_every_usual_form(tmp_path):
    moments = ["2024-05-01T10:00:00+02:00", "2024-05-01T08:00Z", "2024-05-01 08:00", "2024-05-01T08:00:00.250+0000"]
    rows = "".join(f"{i},{moment},1,5\n" for i, moment in enumerate(moments))
    log = read_log(_written(tmp_path / "log.csv", (HEAD + rows).encode()))
    assert log.dated and (log.jobs["submit_s"] - 1714550400).tolist() == [0, 0, 0, 0.25]
