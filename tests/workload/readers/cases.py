"""A small file of ours for every source of job logs, after its schema, and its right values, worked out by hand."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxsched.workload.traces import Log

HEAD = "job_id,submit_time_s,num_gpus,duration_s\n"  # of the native format
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


class Job(NamedTuple):
    """What a job should be read as."""

    name: str
    submit_s: float  # from the first job on, or as the file has it
    run_s: float
    gpus: int
    end: str = "completed"
    tenant: str = ""
    user: str = ""


class Case(NamedTuple):
    """A file and what should be read of it."""

    content: str
    jobs: list[Job]
    left_out: dict[str, int]  # rows by reason
    not_read: str  # columns
    file: str = "log.csv"


CASES = {
    "helios": Case(
        HELIOS,
        [
            Job("1", 0, 120, 1, "completed", "vcA", "uA"),
            Job("2", 26, 249, 4, "failed", "vcB", "uB"),
            Job("5", 147, 3600, 8, "failed", "vcC", "uD"),
        ],
        {"no GPU": 1, "cancelled after 0 s": 1},
        "cpu_num duration node_num queue",
    ),
    "acme": Case(
        KALOS,
        [Job("d1", 0, 8, 64, "failed", "Other", "u1"), Job("d3", 1664, 70, 64, "cancelled", "Pretrain", "u2")],
        {"never started": 1},
        "cpu_num duration fail_time gpu_time mem_per_pod_GB node_num queue shared_mem_per_pod stop_time",
    ),
    "slurm": Case(
        SACCT,
        [Job("4_1", 0, 90, 6, "failed", "lab2", "bob"), Job("1", 60, 7200, 2, "completed", "lab1", "alice")],
        {"a step of another job": 1, "no end": 1, "never started": 1, "no GPU": 1},
        "JobName NNodes Partition",
    ),
    "slurm as JSON": Case(
        SACCT_JSON,
        [Job("11", 0, 100, 4, "completed", "lab1", "ann"), Job("77_3", 0, 10, 2, "failed", "lab1", "ann")],
        {"no end": 1, "never started": 1},
        "partition steps",
        "log.json",
    ),
    "openb": Case(OPENB, [Job("a", 0, 3595, 1), Job("b", 20, 3600, 1, "failed")], {"no GPU": 1}, "qos"),
    "pai": Case(
        PAI,
        [Job("j2", 0, 10, 1, "failed"), Job("j4", 30, 10, 3), Job("j1", 40, 310, 3)],
        {"no GPU": 1, "no end": 1, "never started": 1},
        "gpu_type plan_cpu plan_mem task_name",
    ),
    "spot": Case(
        SPOT,
        [
            Job("239255", 0, 2764799, 1, "completed", "13"),
            Job("437260", 9589663, 41060, 16, "completed", "57"),
            Job("437261", 9589664, 100, 16, "completed", "57"),
        ],
        {"no GPU": 1},
        "cpu_request job_type",
    ),
    "tiresias": Case(TIRESIAS, [Job("0", 0, 164, 1), Job("1", 30, 1470, 8)], {}, "interval iterations"),
    "muri": Case(
        MURI,
        [Job("7", 0, 2868294, 1), Job("8", 1.5, 2.5, 4)],
        {},
        "batch_size interval iteration_time iterations priority resource_time_0 resource_time_1 resource_time_2",
    ),
    "itp": Case(ITP, [Job("a-b", 0, 1075, 1), Job("c-d", 2065, 3604, 8)], {}, "batch_size num_iteration"),
    "gavel": Case(
        GAVEL,
        [Job("2", 0, 10000, 4), Job("1", 10.5, 10000, 1)],
        {"no rate was measured for such a job": 1},
        "SLO command needs_data_dir num_steps_arg priority_weight working_directory",
        "log.trace",
    ),
    "gavel of seven columns": Case(
        GAVEL_SHORT,
        [Job("1", 7.5, 100, 1)],
        {"no rate was measured for such a job": 1},
        "command needs_data_dir num_steps_arg",
        "log.trace",
    ),
    "pollux": Case(
        POLLUX,
        [Job("bert-2", 5.661874, 1594, 12), Job("cifar10-0", 107, 910, 6)],
        {"no run time is known for the application with such GPUs and batch size": 1},
        "",
    ),
    "swf": Case(
        SWF,
        [Job("1", 0, 100, 8, "completed", "2", "3"), Job("3", 7, 50, 16, "failed", "", "4")],
        {"no run time": 1, "cancelled after 0 s": 1},
        "average_cpu_time executable partition preceding_job queue requested_memory think_time used_memory wait_time",
        "log.swf",
    ),
    "philly": Case(
        PHILLY, [Job("0", 0, 240, 2, "completed", "aaaaaa")], {"cancelled after 0 s": 1, "no GPU": 1}, "gpu_time"
    ),
    "philly-log": Case(
        PHILLY_LOG,  # 74 s and 193,182 s, the sum that ElasticFlow's table has for the job of the schema's example
        [Job("application_1_1", 0, 193256, 3, "completed", "ee9e8c", "ce2f4c")],
        {"never started": 1, "no end": 1},
        "attempts.detail.ip",
        "log.json",
    ),
    "native": Case(
        NATIVE, [Job("a", 0, 100, 1, "completed", "", "ann"), Job("b", 1800, 100, 2, "completed", "", "bob")], {}, ""
    ),
}


WITH_HEADER = sorted(name for name, case in CASES.items() if case.file == "log.csv" and name not in ("pai", "native"))


def written(path: Path, content: bytes | str) -> Path:
    """The path of a file that holds this."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_case(folder: Path, name: str) -> Path:
    """The path of a case's file."""
    return written(folder / CASES[name].file, CASES[name].content)


def assert_same_jobs(log: Log, other: Log) -> None:
    """All columns are the same."""
    for name, column in log.jobs.items():
        assert np.array_equal(column, other.jobs[name], equal_nan=column.dtype.kind == "f"), name
