"""Metrics reach TensorBoard and W&B as they are, and only where they are asked for."""

import struct
import time

import jax
import jax.numpy as jnp
import pytest

from jaxsched.errors import UserError
from jaxsched.learning import trackers
from jaxsched.learning.trackers import check_trackers, open_trackers

ROWS = [
    {"chunk": 1, "chunks": 2, "loss": 0.5, "validation_jct_s": float("nan")},
    {"chunk": 2, "chunks": 2, "loss": 0.25, "validation_jct_s": 90.0},
]


def test_what_is_not_known_or_not_there_is_refused_at_once(monkeypatch):
    with pytest.raises(UserError, match="--track: 'mlflow' should be one of tensorboard, wandb"):
        check_trackers(("mlflow",))
    monkeypatch.setitem(trackers.TRACKERS, "wandb", (None, "no_such_package"))
    with pytest.raises(UserError, match="needs no_such_package; install the extra"):
        check_trackers(("wandb",))


def test_without_trackers_nothing_is_written(tmp_path):
    with open_trackers((), tmp_path, {}) as track:
        track(ROWS[0])
    assert list(tmp_path.iterdir()) == []


def test_a_profile_is_of_three_chunks_after_the_first(tmp_path):
    chunk = jax.jit(lambda x: jnp.sin(x @ x))
    with open_trackers((), tmp_path, {}, tmp_path / "profile") as track:
        for number in range(1, 7):
            chunk(jnp.ones((64, 64))).block_until_ready()
            track({"chunk": number, "chunks": 6})
    (file,) = tmp_path.rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(file)).planes
    names = [event.name for plane in planes for line in plane.lines for event in line.events]
    assert sum("sine" in name and not name.startswith("end") for name in names) == trackers.PROFILED == 3


def records(path) -> list[bytes]:
    """The records of a TFRecord file: length, checksum, content, checksum."""
    data, found = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        found.append(data[12 : 12 + size])
        data = data[16 + size :]
    return found


def test_tensorboard_holds_every_figure_by_chunk(tmp_path):
    protocol = pytest.importorskip("tensorboardX.proto.event_pb2", reason="needs the extra track")
    with open_trackers(("tensorboard",), tmp_path, {}) as track:
        assert list(tmp_path.iterdir()) == []  # nothing before the first row
        for row in ROWS:
            track(row)
    (path,) = (tmp_path / "tensorboard").iterdir()
    events = [protocol.Event.FromString(record) for record in records(path)]
    seen = {(event.step, value.tag): value.simple_value for event in events for value in event.summary.value}
    assert {key: value for key, value in seen.items() if key[1] != "chunk"} == {
        (1, "loss"): 0.5,
        (2, "loss"): 0.25,
        (2, "validation_jct_s"): 90.0,
    }


@pytest.mark.long
def test_wandb_writes_an_offline_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs the extra track")
    for name, value in {
        "WANDB_SILENT": "true",
        "WANDB_CACHE_DIR": str(tmp_path),
        "WANDB_CONFIG_DIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with open_trackers(("wandb",), tmp_path / "mine", {"seed": 1}) as track:
        for row in ROWS:
            track(row)
    (run,) = (tmp_path / "mine" / "wandb").glob("offline-run-*")
    (log,) = run.glob("*.wandb")
    deadline = time.monotonic() + 20
    while b"validation_jct_s" not in (text := log.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.1)  # a process of its own writes it
    assert b"loss" in text and b"0.25" in text and b"validation_jct_s" in text
