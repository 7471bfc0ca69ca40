"""Good files of every kind to start from: the real ones beside the checkout where they are, and ones made here."""

import csv
import gzip
import importlib
import importlib.util
import io
import json
import random
from pathlib import Path

from jaxsched.errors import UserError
from jaxsched.workload import datasets
from tests.fuzz.mutations import mutated

ROOT = Path(__file__).parents[2]
ROWS = 60  # of a real file, its header apart

NATIVE = (
    "job_id,submit_time_s,num_gpus,duration_s,model,num_workers,num_ps,gpus_per_worker,tenant,home,gpu_milli,"
    "allowed_gpu_types\n"
)
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
MURI = (
    "job_id,num_gpu,submit_time,iterations,model_name,duration,batch_size,interval,iteration_time,resource_time_0,"
    "resource_time_1,resource_time_2,priority\n"
)
TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
ITP = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"
SACCT = "JobID|JobName|User|Account|AllocTRES|State|Submit|Start|End|ElapsedRaw|Timelimit\n"
HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
ACME = "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
SPOT = "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type\n"
POLLUX = "name,time,application,num_replicas,batch_size\n"
OPENB = "name,cpu_milli,num_gpu,gpu_milli,gpu_spec,pod_phase,creation_time,deletion_time,scheduled_time\n"
SPECS = ("", "V100M32", "A10|T4")
NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
HOSTS = "ip,DSW,PSW,ASW\n"
GPU = "gpu_type,model_a,model_b,solo_a,solo_b,shared_a,shared_b\n"
NETWORK = "victim,victim_gpus,victim_gpus_per_node,aggressor,aggressor_gpus,aggressor_gpus_per_node,throughput_ratio\n"
PLACEMENTS = "model,placement,local_batch_size,step_time_s,sync_time_s\n"
SCALABILITY = "model,nodes,gpus,local_batch_size,step_time_s,sync_time_s\n"
MODELS = "models: [{name: mine, compute_s: 0.2, gradient_bytes: 1.0e+8}]\n"
FIGURES = {
    "jct_mean_s": 9.5,
    "jct_p99_s": 30.0,
    "ratio": 0.9,
    "best_baseline": "pack",
    "baselines_jct_s": {"pack": 10.5},
}
ROW = {
    **{"point": "gamma=0.9", "group": "gamma=0.9", "variant": "", "changes": {"ppo.gamma": 0.9}},
    "validation": {"best_jct_s": 9.0, "curve": [{"chunk": 2, "jct_s": 9.0}]},
    "tests": {"philly-like at 0.9": FIGURES},
    "training": {"wall_s": 2.0, "cpu_s": 1.0, "chunk_wall_s": 0.5, "chunk_cpu_s": 0.25},
}
CLUSTER = """servers:
  - {count: 3, groups: [4, 4], cores: 96, nic_gbits_s: 100}
  - {groups: [2], gpu_type: L40S, pcie_gbytes_s: 24.5}
topology: {kind: leaf-spine, servers_per_rack: 2, oversubscription: 4.0}
schedulers: 2
gpu_speeds: {L40S: 2}
"""


def made(rng: random.Random) -> dict[str, bytes]:
    """One small file of every kind, by name; the suffix says how it is read."""

    def rows(header: str, row) -> bytes:
        return (header + "".join(row(i) for i in range(rng.randrange(1, 12)))).encode()

    def number() -> str:
        return f"{rng.random() * 10 ** rng.randrange(-2, 6):.{rng.randrange(1, 6)}g}"

    gavel = {f"('{name}', 1)": {"null": 2.0, "('A', 1)": [1.0, 0.5]} for name in "AB"}
    line = {"t": 1.5, "kind": "pods", "type": "ADDED", "object": {"metadata": {"uid": "a"}}}
    chunk = {"chunk": 1, "chunks": 9, "loss": 0.5}
    return {
        "native.csv": rows(
            NATIVE, lambda i: f"j{i},{number()},8,{number()},vgg16,4,{i % 3},2,{i % 3},{i},,{SPECS[i % 3]}\n"
        ),
        "philly-made.csv": rows(PHILLY, lambda i: f"2017-10-03 00:0{i % 10}:00,{number()},8,1,vc{i % 2}\n"),
        "muri.csv": rows(MURI, lambda i: f"{i},{i + 1},{i * 1000},10,bert,{rng.randrange(1, 10**7)},8,0,1,1,1,1,1\n"),
        **logs(rng, rows),
        "openb.csv": rows(OPENB, lambda i: f"p{i},1,{i % 2},460,{SPECS[i % 3]},Running,{i},{i + 60},{i + 1}\n"),
        "nodes.csv": rows(NODES, lambda i: f"n{i},64000,1,{(i + 1) % 3},V100\n"),
        "hosts.csv": rows(HOSTS, lambda i: f"h{i},D{i % 2},P{i % 3},S{i}\n"),
        "gpu.csv": rows(GPU, lambda i: f"v100,A (batch size {2**i}),B,{number()},2,1.5,1\n"),
        "network.csv": rows(NETWORK, lambda i: f"A,8,2,B,{i + 1},1,0.{i + 1}\n"),
        "placements.csv": rows(PLACEMENTS, lambda i: f"m,{i % 9 + 1}4,8,0.5,0.1\n"),
        "scalability.csv": rows(SCALABILITY, lambda i: f"m,{i + 1},{i + 4},8,0.5,0.1\n"),
        "cluster.yaml": CLUSTER.encode(),
        "partitions.yaml": CLUSTER.replace("schedulers: 2", "partitions: {a: 2, b: [server1], c: 1}").encode(),
        "gavel.json": json.dumps({"k80": gavel}, indent=1).encode(),
        "models.yaml": MODELS.encode(),
        "rows.jsonl": "".join(json.dumps(ROW | {"id": f"{i}", "seed": i}) + "\n" for i in range(4)).encode(),
        "baselines.jsonl": (json.dumps({"id": "a", "jct_by_list_s": {"pack": [1.5, None]}}) + "\n").encode(),
        "recording.jsonl": "".join(json.dumps(line | {"t": i}) + "\n" for i in range(5)).encode(),
        "metrics.jsonl": "".join(json.dumps(chunk | {"chunk": i}) + "\n" for i in range(5)).encode(),
    }


def logs(rng: random.Random, rows) -> dict[str, bytes]:
    """Job logs after the schemas of their publishers: see `workload.readers`."""
    states = ("COMPLETED", "FAILED", "CANCELLED by 10", "TIMEOUT", "RUNNING")

    def day(i: int, minute: int) -> str:
        return f"2024-05-0{i % 9 + 1} 10:{minute:02d}:00"

    def times(i: int) -> str:
        return f"{day(i, 0)},{day(i, i % 3)},{day(i, 30)}"

    def sacct(i: int) -> str:
        start = "None" if i == 3 else day(i, 5).replace(" ", "T")
        step = ".batch" if i == 2 else ""
        head = f"{i}{step}|j|u{i}|lab{i % 2}|cpu=8,gres/gpu={i % 4}|{states[i % 5]}"
        return f"{head}|{day(i, 0).replace(' ', 'T')}|{start}|{day(i, 9).replace(' ', 'T')}|240|01:00:00\n"

    def attempt(i: int) -> dict:
        return {"start_time": day(i, 1), "end_time": day(i, 9), "detail": [{"ip": "m1", "gpus": ["gpu0"] * (i % 3)}]}

    philly = [
        {"status": "Pass", "vc": "a", "jobid": f"j{i}", "attempts": [attempt(i)] * (i % 3), "submitted_time": day(i, 0)}
        for i in range(8)
    ]
    slurm = [
        {
            "job_id": i,
            "user": "u",
            "account": "lab",
            "state": {"current": [states[i % 4].partition(" ")[0]]},
            "time": {"submission": 10**9 + i, "start": 10**9 + 5, "end": 10**9 + 60 * (i + 1), "elapsed": 60 * i},
            "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": i}], "requested": []},
        }
        for i in range(5)
    ]
    swf = "".join(f"{i + 1} {i * 9} 3 {i * 60} {i} -1 -1 8 3600 -1 {i % 2} 1 2 -1 1 1 -1 -1\n" for i in range(6))
    job = "ResNet-18 (batch size 16)\tcd x && python3 main.py\tdir\t--steps\t1"
    return {
        "tiresias.csv": rows(TIRESIAS, lambda i: f"{i},{i + 1},{i * 30},10,vgg16,{rng.randrange(1, 10**5)},30\n"),
        "itp.csv": rows(ITP, lambda i: f"{i},{i * 100},9,inception3,{i * 100 + 90},64,{i % 4 + 1},{i + 1}\n"),
        "sacct.csv": rows(SACCT, sacct),
        "helios.csv": rows(HELIOS, lambda i: f"{i},u,vc{i % 2},{i % 3},8,1,{states[i % 5]},{times(i)},1800,{i}\n"),
        "acme.csv": rows(ACME, lambda i: f"{i},u,1,{i % 3},8,Other,{states[i % 5]},{times(i)},1800,{i},0\n"),
        "spot.csv": rows(SPOT, lambda i: f"{i},{i % 3},A10,8,{i % 3},{i + 1},{i * 50},{i * 7},HP\n"),
        "pollux.csv": rows(POLLUX, lambda i: f"cifar10-{i},{i * 60},cifar10,{4 + i % 3},2048\n"),
        "pai.csv": rows(
            "", lambda i: f"j{i // 2},worker,{i % 3 + 1}.0,Terminated,{i}.0,{i + 60}.0,600.0,29.3,50.0,T4\n"
        ),
        "workload.swf": f"; Version: 2.2\n; MaxJobs: 6\n{swf}".encode(),
        "jobs.trace": rows("", lambda i: f"{job}\t{1000 * i}\t{2 ** (i % 5)}\t1\t-1.0\t{i * 60}.0\n"),
        "cluster_job_log.json": json.dumps(philly).encode(),
        "sacct.json": json.dumps({"jobs": slurm, "meta": {}}).encode(),
    }


ARROW = importlib.util.find_spec("pyarrow") is not None


def packed(rng: random.Random, name: str, content: bytes) -> tuple[str, bytes, int | None]:
    """A log as it may come: an ending, packed content, now and then damaged, and its rows if it is a whole Parquet."""
    kinds = ["gzip", *(["zstd", "parquet"] if ARROW else [])]
    kind = rng.choice(kinds if name.endswith(".csv") else kinds[:2])
    rows = None
    if kind == "parquet":
        table = as_parquet(rng, content)
        if table is None:  # it is no table any more
            kind = "zstd"
        else:
            content, rows = table
    if kind == "gzip":
        content = gzip.compress(content, 1)
    elif kind == "zstd":
        content = importlib.import_module("pyarrow").compress(content, "zstd", asbytes=True)
    if rng.random() < 0.3:
        return ENDINGS[kind], mutated(rng, content), None
    return ENDINGS[kind], content, rows


ENDINGS = {"gzip": ".gz", "zstd": ".zst", "parquet": ".parquet"}


def as_parquet(rng: random.Random, content: bytes) -> tuple[bytes, int] | None:
    """A CSV file as Parquet, with types as they are guessed or as text, and how many rows it has."""
    arrow, file = importlib.import_module("pyarrow"), io.BytesIO()
    try:
        lines = [line for line in content.decode().splitlines() if line.strip()]
        if rng.random() < 0.5:
            table = importlib.import_module("pyarrow.csv").read_csv(io.BytesIO("\n".join(lines).encode()))
        else:
            header, *rows = csv.reader(lines)
            table = arrow.table({name: [row[i] for row in rows] for i, name in enumerate(header)})
    except (arrow.ArrowException, ValueError, IndexError, csv.Error):
        return None
    importlib.import_module("pyarrow.parquet").write_table(table, file)
    return file.getvalue(), table.num_rows


def shipped() -> dict[str, bytes]:
    """The configurations and cards that come with the project."""
    configs = [*(ROOT / "configs").glob("*.yaml"), *(ROOT / "configs" / "sweeps").glob("*.yaml")]
    cards = (ROOT / "checkpoints").glob("*/card.json")
    return {str(path.relative_to(ROOT)): path.read_bytes() for path in (*configs, *cards)}


def real(rng: random.Random) -> dict[str, bytes]:
    """Header and some rows in a run of each real file that is on this machine."""
    found = {}
    for name in datasets.DATASETS:
        try:
            lines = datasets.find(name).read_bytes().splitlines(keepends=True)
        except UserError:
            continue
        start = rng.randrange(1, max(2, len(lines) - ROWS))
        found[f"{name}.csv"] = b"".join([lines[0], *lines[start : start + ROWS]])
    return found
