"""Writes trace.csv and recording.jsonl of this folder anew, always the same: `python make.py`."""

import csv
import json
import random
import time
from pathlib import Path

HERE = Path(__file__).parent
MODELS = ("resnet50", "resnet18", "vgg16", "bert", "gpt2", "textcnn", "lstm_lm", "deepspeech2")
GPUS, WEIGHTS = (1, 2, 4, 8, 16), (0.55, 0.15, 0.15, 0.1, 0.05)
JOBS, GAP_S, CAP_S = 120, 240.0, 4 * 3600
START_S = 1_800_000_000.0  # of the recording, seconds since 1970


def trace() -> list[dict[str, object]]:
    """120 jobs over some eight hours: most are small and short, a few are neither."""
    draw, now, rows = random.Random(1), 0.0, []
    for number in range(JOBS):
        gpus = draw.choices(GPUS, WEIGHTS)[0]
        duration_s = min(draw.lognormvariate(7.3, 1.3), CAP_S)
        rows.append(
            {
                "job_id": f"job-{number:03d}",
                "submit_time_s": round(now),
                "num_gpus": gpus,
                "duration_s": max(round(duration_s), 60),
                "model": draw.choice(MODELS),
            }
        )
        now += draw.expovariate(1 / GAP_S)
    return rows


def recording() -> list[dict[str, object]]:
    """Two hours of four nodes with 8 GPUs: gangs of one or two pods, started first come, first served."""
    draw = random.Random(2)
    lines = [_line(START_S, "nodes", "ADDED", _node(f"node-{number}")) for number in range(4)]
    free_s = [START_S] * 4  # when a node is next free
    arrival_s = START_S
    for number in range(24):
        pods, gpus, run_s = draw.choice((1, 1, 2)), draw.choice((4, 8)), draw.uniform(300, 1500)
        bound_s = max(arrival_s, *sorted(free_s)[:pods]) + 2
        nodes = sorted(range(4), key=lambda node: free_s[node])[:pods]
        for rank, node in enumerate(nodes):
            pod = _pod(f"train-{number}-{rank}", f"train-{number}", pods, gpus, arrival_s)
            lines.append(_line(arrival_s, "pods", "ADDED", pod))
            bound = pod | {"spec": pod["spec"] | {"nodeName": f"node-{node}"}}
            lines.append(_line(bound_s, "pods", "MODIFIED", bound))
            lines.append(_line(bound_s + run_s, "pods", "DELETED", {"metadata": {"uid": pod["metadata"]["uid"]}}))
            free_s[node] = bound_s + run_s
        arrival_s += draw.expovariate(1 / 250)
    return sorted(lines, key=lambda line: line["t"])


def _line(time_s: float, kind: str, change: str, thing: dict) -> dict:
    return {"t": round(time_s, 3), "kind": kind, "type": change, "object": thing}


def _node(name: str) -> dict:
    holds = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {"nvidia.com/gpu.product": "V100"}},
        "spec": {},
        "status": {"allocatable": holds, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _pod(name: str, gang: str, size: int, gpus: int, created_s: float) -> dict:
    asks = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": str(gpus)}
    return {
        "metadata": {
            "name": name,
            "namespace": "research",
            "uid": f"uid-{name}",
            "labels": {"scheduling.x-k8s.io/pod-group": gang},
            "annotations": {"jaxsched.io/gang-size": str(size), "jaxsched.io/model": "resnet50"},
            "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created_s)),
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": [{"name": "main", "resources": {"requests": asks}}],
        },
        "status": {"phase": "Pending"},
    }


def write(folder: Path) -> None:
    """Both files."""
    rows = trace()
    with (folder / "trace.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    lines = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in recording())
    (folder / "recording.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    write(HERE)
