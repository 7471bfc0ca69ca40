"""Golden trainings: the weights of a few chunks, of a run that was stopped and went on, and of evolved policies."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from . import adapter
from .digests import digest_of_text
from .loop import Keep

ROOT = Path(__file__).resolve().parents[2]
CHUNKS, PATIENCE_S = 4, 1800.0
_SMALL = {
    "ppo": {"num_envs": 4, "steps": 16, "chunks": CHUNKS, "epochs": 1, "minibatches": 2, "critic_only_chunks": 1},
    "validation": {"every": 2, "seeds": 2, "jobs": 12},
    "workload": {"jobs": 48, "mean_duration_s": 900.0, "load": [1.0, 1.5]},
    "network": {"width": 8},
}
CONFIGS = {
    "small": {"env": {"cluster": "leaf-spine-4"}},
    "worlds": {
        "env": {
            "cluster": "leaf-spine-4", "more_clusters": ["torus2d-6"], "preemption": True, "checkpoint_s": 300.0,
            "failures": "20,1", "knows": "history",
        },
    },
}  # fmt: skip
EVOLVED = {"levels": "--learn levels", "seeking": "--learn seeking --schedulers 3 --max-forwards 4"}
_CARD = ("levels", "margin", "numbers", "ratio", "curve", "generation")


def parts() -> list[str]:
    """Names of trainings."""
    return [*CONFIGS, "small-resumed", *EVOLVED]


def play(part: str, keep: Keep | None = None) -> dict[str, str]:
    """Digests of weights and of the metrics of every chunk."""
    name, _, resumed = part.partition("-")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        if name in EVOLVED:
            return _evolved(run, EVOLVED[name].split())
        config = Path(folder) / "config.yaml"
        small = yaml.safe_load((ROOT / "configs" / "small.yaml").read_text(encoding="utf-8"))
        config.write_text(yaml.safe_dump(merged(merged(small, _SMALL), CONFIGS[name])), encoding="utf-8")
        first = _train("--config", str(config), "--out", str(run))
        if resumed:
            _stop_after_a_chunk(first, run)
            first = _train("--resume", str(run))
        assert first.wait() == 0, f"training fails: see {run}"
        return _written(run)


def merged(one: dict, other: dict) -> dict:
    """Nested mappings, the other's values before the one's."""
    return one | {k: merged(one[k], v) if isinstance(v, dict) and k in one else v for k, v in other.items()}


def _train(*words: str) -> subprocess.Popen:
    """`jaxsched train`, of the tree that this process has."""
    command = [sys.executable, "-m", "jaxsched.cli", "train", *words]
    tree = str(Path(adapter.main.__code__.co_filename).parents[2])
    environment = os.environ | {"PYTHONPATH": tree}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, cwd=tempfile.gettempdir())


def _stop_after_a_chunk(child: subprocess.Popen, run: Path) -> None:
    """Asks it to end when it has told of its first chunk: it saves what it has."""
    late, rows = time.monotonic() + PATIENCE_S, run / "metrics.jsonl"
    while child.poll() is None and not (rows.exists() and rows.stat().st_size):
        assert time.monotonic() < late, "training is too slow"
        time.sleep(0.01)
    child.terminate()
    child.wait()


def _written(run: Path) -> dict[str, str]:
    found = {"weights": digest_of_text((run / "policy" / "weights.msgpack").read_bytes())}
    for number, line in enumerate((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()):
        found[f"metrics/{number}"] = digest_of_text(json.dumps(json.loads(line), sort_keys=True))
    return found


def _evolved(run: Path, options: list[str]) -> dict[str, str]:
    words = ["--workload", str(ROOT / "examples" / "trace.csv"), "--cluster", "leaf-spine-8", "--load", "0.9"]
    assert _train(*words, *options, "--generations", "2", "--out", str(run)).wait() == 0
    (card,) = run.rglob("card.json")
    content = json.loads(card.read_text(encoding="utf-8"))
    content["curve"] = [one for one in content["curve"] if one[0] > 0]  # where learning starts was not in it
    return {name: digest_of_text(json.dumps(content[name])) for name in _CARD if name in content}
