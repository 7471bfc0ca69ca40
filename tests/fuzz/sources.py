"""Good files of every kind to start from: the real ones beside the checkout where they are, and ones made here."""

import json
import random
from pathlib import Path

from jaxsched.errors import UserError
from jaxsched.workload import datasets

ROOT = Path(__file__).parents[2]
ROWS = 60  # of a real file, its header apart

NATIVE = "job_id,submit_time_s,num_gpus,duration_s,model,num_workers,num_ps,gpus_per_worker,tenant,home,gpu_milli\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
MURI = "job_id,num_gpu,submit_time,iterations,model_name,duration\n"
OPENB = "name,cpu_milli,num_gpu,gpu_milli,gpu_spec,pod_phase,creation_time,deletion_time,scheduled_time\n"
NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
HOSTS = "ip,DSW,PSW,ASW\n"
GPU = "gpu_type,model_a,model_b,solo_a,solo_b,shared_a,shared_b\n"
NETWORK = "victim,victim_gpus,victim_gpus_per_node,aggressor,aggressor_gpus,aggressor_gpus_per_node,throughput_ratio\n"
PLACEMENTS = "model,placement,local_batch_size,step_time_s,sync_time_s\n"
SCALABILITY = "model,nodes,gpus,local_batch_size,step_time_s,sync_time_s\n"
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
        "native.csv": rows(NATIVE, lambda i: f"j{i},{number()},8,{number()},vgg16,4,{i % 3},2,{i % 3},{i},\n"),
        "philly-made.csv": rows(PHILLY, lambda i: f"2017-10-03 00:0{i % 10}:00,{number()},8,1,vc{i % 2}\n"),
        "muri.csv": rows(MURI, lambda i: f"{i},{i + 1},{i * 1000},10,bert,{rng.randrange(1, 10**7)}\n"),
        "openb.csv": rows(OPENB, lambda i: f"p{i},1,{i % 2},460,,Running,{i},{i + 60},{i + 1}\n"),
        "nodes.csv": rows(NODES, lambda i: f"n{i},64000,1,{(i + 1) % 3},V100\n"),
        "hosts.csv": rows(HOSTS, lambda i: f"h{i},D{i % 2},P{i % 3},S{i}\n"),
        "gpu.csv": rows(GPU, lambda i: f"v100,A (batch size {2**i}),B,{number()},2,1.5,1\n"),
        "network.csv": rows(NETWORK, lambda i: f"A,8,2,B,{i + 1},1,0.{i + 1}\n"),
        "placements.csv": rows(PLACEMENTS, lambda i: f"m,{i % 9 + 1}4,8,0.5,0.1\n"),
        "scalability.csv": rows(SCALABILITY, lambda i: f"m,{i + 1},{i + 4},8,0.5,0.1\n"),
        "cluster.yaml": CLUSTER.encode(),
        "gavel.json": json.dumps({"k80": gavel}, indent=1).encode(),
        "recording.jsonl": "".join(json.dumps(line | {"t": i}) + "\n" for i in range(5)).encode(),
        "metrics.jsonl": "".join(json.dumps(chunk | {"chunk": i}) + "\n" for i in range(5)).encode(),
    }


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
