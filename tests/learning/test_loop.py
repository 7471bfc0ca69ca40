"""Chunks and whole runs: what is compiled once, what is written, what goes on bit for bit after a kill."""

import dataclasses
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import jaxsched
from jaxsched.errors import UserError
from jaxsched.learning.config import QueueView, TrainConfig, describe_limits, from_dict, load_config, to_dict
from jaxsched.learning.loop import (
    COMMAND_FILE,
    METRICS_FILE,
    POLICY_FOLDER,
    STATE_FOLDER,
    TIMING_FILE,
    compare_with_start,
    programs_of,
    train,
)
from jaxsched.learning.options import StartConfig
from jaxsched.learning.ppo import without
from jaxsched.learning.state import read_saved_config, restore, save
from jaxsched.learning.untrained import UNTRAINED_FOLDER, doubts, first_weights
from jaxsched.policies.checkpoint import CARD_FILE, WEIGHTS_FILE, load_policy, read_card


def assert_bitwise(one, other) -> None:
    """Both trees have the same leaves, in every bit (a NaN equals itself, 0.0 is not -0.0)."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes(), jax.tree_util.keystr(path)


# --------------------------------------------------------------------------------------------------------------- chunks


@pytest.fixture(scope="module")
def chunks(state, step):
    """States after 0 to 4 chunks, and the metrics of each chunk."""
    states, metrics = [state], []
    for _ in range(4):
        after, row = step(states[-1])
        states.append(after)
        metrics.append({name: float(value) for name, value in row.items()})
    return states, metrics


@pytest.mark.slower
def test_chunks_after_the_first_do_not_compile_again(chunks, step):
    states, _ = chunks
    assert step.compiled() == 1
    kinds = [[(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(one)] for one in states]
    assert kinds[0] == kinds[-1]


def test_a_chunk_is_a_function_of_its_state(chunks, step):
    states, metrics = chunks
    again, row = step(states[1])
    assert_bitwise(again, states[2])
    assert {name: float(value) for name, value in row.items()} == metrics[1]


def test_metrics_are_finite_and_legal(chunks, config):
    _, metrics = chunks
    for row in metrics:
        assert all(math.isfinite(value) for value in row.values())
        assert row["illegal"] == 0 and row["return_scale"] > 0 and row["loss_gradient"] > 0
        assert 0 < row["placements"] + row["forwards"] <= row["decisions"]
        assert row["decisions"] <= config.ppo.num_envs * config.ppo.steps * config.env.schedulers


@pytest.mark.slower
def test_seeds_start_and_go_on_differently(start, step, chunks):
    states, metrics = chunks
    assert_bitwise(start(0), states[0])
    other = start(1)
    for name in ("weights", "worlds", "draws", "key_data"):
        leaves = zip(jax.tree.leaves(getattr(states[0], name)), jax.tree.leaves(getattr(other, name)), strict=True)
        assert any((a != b).any() for a, b in leaves), name
    _, row = step(other)
    assert float(row["reward"]) != metrics[0]["reward"]


def test_the_key_moves_on(chunks):
    states, _ = chunks
    assert len({np.asarray(state.key_data).tobytes() for state in states}) == len(states)


def test_a_share_of_the_environments_is_replaced_in_turn(chunks, config):
    states, _ = chunks
    count, turns = config.ppo.num_envs, []
    for before, after in itertools.pairwise(states):
        fresh = np.asarray(after.worlds.clock) == 0
        turns += np.flatnonzero(fresh).tolist()
        for name in ("strength", "pace"):
            changed = np.asarray(getattr(after.draws, name)) != np.asarray(getattr(before.draws, name))
            np.testing.assert_array_equal(changed, fresh)
        assert (np.asarray(after.draws.cluster) == np.asarray(before.draws.cluster))[~fresh].all()
        assert (np.asarray(after.worlds.clock) >= np.asarray(before.worlds.clock))[~fresh].all()
    assert len(turns) == len(states) - 1
    assert all(b == (a + 1) % count for a, b in itertools.pairwise(turns))


def test_environments_differ(state):
    arrivals = np.asarray(state.worlds.jobs.arrival)
    assert len({row.tobytes() for row in arrivals}) == len(arrivals)


def test_critic_only_chunks_leave_the_policy_heads(chunks, config, parts):
    """Only the heads: the layers that they share with the critic move, and with them what the policy does."""
    states, _ = chunks
    assert config.ppo.critic_only_chunks == 1
    before, alone, together = (parts(state.weights) for state in states[:3])
    assert_bitwise(before[0], alone[0])
    for kind in (1, 2):
        pairs = zip(jax.tree.leaves(before[kind]), jax.tree.leaves(alone[kind]), strict=True)
        assert all((a != b).any() for a, b in pairs)
    assert all((a != b).any() for a, b in zip(jax.tree.leaves(alone[0]), jax.tree.leaves(together[0]), strict=True))


# ---------------------------------------------------------------------------------------------------------- checkpoints


def test_a_saved_state_comes_back_bit_for_bit(tmp_path, chunks, config):
    states, _ = chunks
    for done in (1, 2, 3):
        save(tmp_path / "run" / STATE_FOLDER, states[done], config)
    back = restore(tmp_path / "run" / STATE_FOLDER, states[0])
    assert_bitwise(back, states[3])
    assert jax.tree.structure(back) == jax.tree.structure(states[3])
    assert read_saved_config(tmp_path / "run" / STATE_FOLDER) == config
    assert sorted(path.name for path in (tmp_path / "run" / STATE_FOLDER).iterdir() if path.is_dir()) == ["2", "3"]


def test_a_resumed_run_is_the_same_program(tmp_path, state, config):
    """Committed arrays compile to another program: bitwise equality would rest on two programs rounding alike."""
    save(tmp_path / STATE_FOLDER, state, config)
    back = restore(tmp_path / STATE_FOLDER, state)
    assert not any(leaf.committed for leaf in jax.tree.leaves(state))
    assert not any(leaf.committed for leaf in jax.tree.leaves(back))


# ----------------------------------------------------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def whole(tmp_path_factory, config):
    """A run that nobody disturbs: its folder and the rows that it reported."""
    folder, rows = tmp_path_factory.mktemp("whole") / "run", []
    returned = train(config, folder, report=rows.append, save_every=4)
    assert returned == folder / POLICY_FOLDER
    return folder, rows


def read_rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slower
def test_a_run_logs_every_chunk(whole, config):
    folder, reported = whole
    rows = read_rows(folder / METRICS_FILE)
    chunks, every = config.ppo.chunks, config.validation.every
    assert [row["chunk"] for row in rows] == list(range(1, chunks + 1))
    assert {row["chunks"] for row in rows} == {chunks}
    validated = [row["chunk"] for row in rows if "validation_jct_s" in row]
    assert validated == [done for done in range(1, chunks + 1) if done % every == 0 or done == chunks]
    times = [row["wall_s"] for row in read_rows(folder / TIMING_FILE)]
    assert len(times) == chunks and times == sorted(times)
    assert [{k: v for k, v in row.items() if k not in ("wall_s", "cpu_s")} for row in reported] == rows


def test_the_run_is_its_chunks(whole, chunks):
    folder, _ = whole
    rows = read_rows(folder / METRICS_FILE)
    for row, metrics in zip(rows, chunks[1], strict=False):
        assert {name: row[name] for name in metrics} == metrics


def test_the_policy_is_the_best_by_validation(whole, state, config, setting):
    folder, _ = whole
    rows = [row for row in read_rows(folder / METRICS_FILE) if "validation_jct_s" in row]
    best = min(rows, key=lambda row: row["validation_jct_s"])
    card = json.loads((folder / POLICY_FOLDER / CARD_FILE).read_text())
    assert card["chunk"] == best["chunk"]
    assert card["validation_jct_s"] == pytest.approx(best["validation_jct_s"], rel=1e-6)
    made_for = dataclasses.replace(config.machine, path=setting.path)
    assert card["config"] == json.loads(json.dumps(to_dict(dataclasses.replace(config, machine=made_for))))
    end = restore(folder / STATE_FOLDER, state)
    assert float(end.best_jct_s) == pytest.approx(best["validation_jct_s"], rel=1e-6)
    assert int(end.chunk) == config.ppo.chunks
    load_policy(folder / POLICY_FOLDER)


def test_the_curve_begins_with_the_untrained_policy(whole, state, config):
    folder, _ = whole
    untrained, trained = (read_card(folder / name) for name in (UNTRAINED_FOLDER, POLICY_FOLDER))
    assert untrained["chunk"] == 0 and trained["curve"][0] == [0, untrained["validation_jct_s"]]
    assert [chunk for chunk, _ in trained["curve"][1:]] == [3, 6, 8]
    jax.tree.map(np.testing.assert_array_equal, load_policy(folder / UNTRAINED_FOLDER).weights, state.weights)


def test_a_run_from_before_gets_its_untrained_policy_when_it_goes_on(whole, config, tmp_path):
    folder, _ = whole
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / UNTRAINED_FOLDER)
    train(config, tmp_path / "run", resume=True)
    for name in (WEIGHTS_FILE, CARD_FILE):
        one, other = (path / UNTRAINED_FOLDER / name for path in (tmp_path / "run", folder))
        assert one.read_bytes() == other.read_bytes()


def test_what_may_show_nothing_is_told():
    assert list(doubts([(0, 100.0), (5, 90.0)], 2e5)) == []
    assert "decides as untrained" in next(doubts([(0, 100.0), (5, 100.0), (9, 120.0)], 2e5))
    assert "untrained it was better" in next(doubts([(0, 100.0), (5, None), (9, 120.0)], 2e5))
    assert "1,234 decisions are few" in next(doubts([(0, 100.0), (5, 90.0)], 1234))
    assert list(doubts([(5, 90.0)], 2e5)) == list(doubts([(0, None), (5, 90.0)], 2e5)) == []


def test_if_no_validation_run_ends_the_last_weights_are_the_policy(tmp_path, config, setting, state):
    programs = programs_of(setting)._replace(validate=lambda weights: jnp.float32(jnp.inf))
    config = dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, chunks=2))
    programs = programs._replace(step=lambda state: (state.replace(chunk=state.chunk + 1), {}))
    policy = train(config, tmp_path / "run", programs=programs)
    card = json.loads((policy / CARD_FILE).read_text())
    assert card["validation_jct_s"] is None and card["chunk"] == 2 and card["curve"] == [[0, None], [2, None]]
    jax.tree.map(np.testing.assert_array_equal, load_policy(policy).weights, state.weights)


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(whole, config):
    folder, _ = whole
    before = (folder / METRICS_FILE).read_bytes()
    with pytest.raises(UserError, match="--resume"):
        train(config, folder)
    assert (folder / METRICS_FILE).read_bytes() == before


def test_a_run_does_not_go_on_with_another_file_of_its_name(tmp_path, state, config):
    """Before: it went on, and compared completion times of two worlds."""
    cluster = tmp_path / "mine.yaml"
    cluster.write_text("servers: [{count: 2}]\n")
    mine = dataclasses.replace(config, env=dataclasses.replace(config.env, cluster=str(cluster)))
    save(tmp_path / "run" / STATE_FOLDER, state, mine)
    assert read_saved_config(tmp_path / "run" / STATE_FOLDER) == mine
    cluster.write_text("servers: [{count: 3}]\n")
    with pytest.raises(UserError, match=r"run .*: .*mine.yaml is not what it was when the run began; start a new run$"):
        read_saved_config(tmp_path / "run" / STATE_FOLDER)


def test_what_is_left_of_another_run_is_not_taken_for_this_ones(whole, tmp_path, config, setting, state):
    """Before: a curve began with the other's untrained policy, and its figures were written over."""
    folder, _ = whole
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / STATE_FOLDER)
    for name, remove in ((POLICY_FOLDER, shutil.rmtree), (COMMAND_FILE, Path.unlink)):
        with pytest.raises(UserError, match=f"holds {name} of a run whose state is gone; choose another folder"):
            train(config, tmp_path / "run")
        remove(tmp_path / "run" / name)
    programs = programs_of(setting)._replace(validate=lambda weights: jnp.float32(1.0))
    programs = programs._replace(step=lambda state: (state.replace(chunk=state.chunk + 1), {}))
    train(
        dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, chunks=1)), tmp_path / "run", programs=programs
    )
    assert read_card(tmp_path / "run" / UNTRAINED_FOLDER)["validation_jct_s"] == 1.0


def test_resuming_a_finished_run_changes_nothing(whole, config):
    folder, _ = whole
    before = {name: (folder / name).read_bytes() for name in (METRICS_FILE, TIMING_FILE)}
    rows = []
    assert train(config, folder, resume=True, report=rows.append) == folder / POLICY_FOLDER
    assert not rows and before == {name: (folder / name).read_bytes() for name in before}


def test_resuming_nothing_is_refused_and_leaves_nothing_behind(tmp_path, config):
    run = tmp_path / "run"
    with pytest.raises(UserError, match=r"run .*: no checkpoint to resume from; start it again without --resume$"):
        train(config, run, resume=True)
    assert not run.exists()


# ----------------------------------------------------------------------------------------------------------------- kill

CHILD = """
import sys
from pathlib import Path
from jaxsched.learning.config import load_config
from jaxsched.learning.loop import train

config, run, save_every = sys.argv[1:]
train(load_config(config), Path(run), save_every=int(save_every))
"""
PATIENCE_S = 300


def train_and_kill(folder: Path, run: Path, save_every: int, rows: int) -> int:
    """Train in a process of its own, kill that as soon as `rows` chunks are logged, and say how many were."""
    environment = os.environ | {"PYTHONPATH": str(Path(jaxsched.__file__).parents[1])}
    command = [sys.executable, "-c", CHILD, str(folder / "run.yaml"), str(run), str(save_every)]
    with (folder / "output.txt").open("w") as output:
        child = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + PATIENCE_S

    def logged() -> int:
        path = run / METRICS_FILE
        return path.read_text().count("\n") if path.exists() else 0

    try:
        while logged() < rows:
            assert child.poll() is None, (folder / "output.txt").read_text()[-3000:]
            assert time.monotonic() < deadline, "the child is too slow"
            time.sleep(0.01)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert child.returncode == -signal.SIGKILL
    return logged()


@pytest.mark.long
def test_a_run_that_was_killed_and_resumed_ends_like_one_that_never_was(tmp_path, whole, state, config):
    """Killed while a checkpoint is written, with a line torn in the log and a policy half written."""
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(to_dict(config)))
    assert load_config(tmp_path / "run.yaml") == config
    run, chunks = tmp_path / "killed", config.ppo.chunks

    # a row is logged right before its checkpoint, which takes far longer than to see the row
    assert 4 <= train_and_kill(tmp_path, run, save_every=1, rows=4) < chunks
    with (run / METRICS_FILE).open("a") as file:
        file.write('{"chunk": 5, "rew')
    (run / POLICY_FOLDER / f".{WEIGHTS_FILE}.half.msgpack").write_bytes(b"half")
    with pytest.raises(UserError, match="--resume"):
        train(config, run)

    rows = []
    train(read_saved_config(run / STATE_FOLDER), run, resume=True, report=rows.append, save_every=3)
    assert 1 <= len(rows) <= chunks - 3  # it did go on, and not from the start
    expected, _ = whole
    assert (run / METRICS_FILE).read_bytes() == (expected / METRICS_FILE).read_bytes()
    for name in (WEIGHTS_FILE, CARD_FILE):
        assert (run / POLICY_FOLDER / name).read_bytes() == (expected / POLICY_FOLDER / name).read_bytes()
    one, other = (restore(folder / STATE_FOLDER, state) for folder in (run, expected))
    assert int(one.chunk) == chunks
    assert_bitwise(one, other)
    assert len(read_rows(run / TIMING_FILE)) == chunks


# ------------------------------------------------------------------------------------------------------ begun elsewhere


def test_a_run_begins_with_the_weights_of_a_checkpoint(whole, config, setting, state):
    """In a program, as a run reads them: the parts that are drawn anew are there, and not taken."""
    folder, _ = whole
    trained = load_policy(folder / POLICY_FOLDER).weights
    begin = str(folder / POLICY_FOLDER), ("critic",)
    taken = jax.jit(lambda drawn: first_weights(*begin, setting.network, drawn))(state.weights)
    jax.tree.map(np.testing.assert_array_equal, taken, trained)
    assert first_weights("", (), setting.network, state.weights) is state.weights
    tuned = dataclasses.replace(config, start=StartConfig(checkpoint=begin[0]))
    assert not [*compare_with_start(config)] and not [*compare_with_start(tuned)]
    world = dataclasses.replace(config.env, max_forwards=3)
    (said,) = compare_with_start(dataclasses.replace(tuned, env=world, queue=QueueView(order="fifo")))
    assert "order fifo, not sjf" in said and "max_forwards 3, not 2" in said
    with pytest.raises(UserError, match=r"freeze: 'critik' should be one of .*critic"):
        first_weights("", ("critik",), setting.network, state.weights)
    other = setting.network.clone(width=16)
    with pytest.raises(UserError, match="its network has width 8, should have width 16"):
        first_weights(*begin, other, state.weights)
    with pytest.raises(UserError, match=r"no file card.json"):
        first_weights(str(folder), (), setting.network, state.weights)
    told = dataclasses.replace(config, start=StartConfig(*begin))
    assert from_dict(TrainConfig, json.loads(json.dumps(to_dict(told)))) == told
    assert "Begun with the weights of" in describe_limits(told) and "but for critic" in describe_limits(told)


def test_what_is_frozen_has_no_gradient(state):
    ones = jax.tree.map(jnp.ones_like, state.weights)
    for name, part in without(ones, ("critic", "value"))["params"].items():
        assert all((leaf == 0).all() == (name in ("critic", "value")) for leaf in jax.tree.leaves(part)), name
    assert without(ones, ()) is ones
