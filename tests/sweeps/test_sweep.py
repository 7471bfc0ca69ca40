"""Sweeps: rows like single trainings, killed and resumed, in batches, planned; checkpoints trained anew."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from jaxsched.cli.main import main
from jaxsched.errors import UserError
from jaxsched.io.json_file import append, mend, read_rows, truncate
from jaxsched.learning.config import quickstart_config
from jaxsched.learning.loop import METRICS_FILE, TIMING_FILE, train
from jaxsched.policies.checkpoint import CARD_FILE
from jaxsched.simulation.settings import Settings
from jaxsched.sweeps import run as sweep
from jaxsched.sweeps import tables
from jaxsched.sweeps.measure import prior_rule
from jaxsched.sweeps.plan import (
    SWEEPABLE,
    Sweep,
    change_config,
    load_sweep,
    replace_values,
    rows_of,
    shape_key,
    value_of,
)
from jaxsched.sweeps.run import SweepContext, folder_of, is_trained, parts_of, train_and_measure, unpack
from jaxsched.sweeps.shared_programs import SharedPrograms, sum_seconds
from tests.learning.test_shards import flags
from tests.support.cases import few

BASE = {
    "env": {"cluster": "leaf-spine-2", "running_slots": 8, "queue_slots": 16, "rounds": 4},
    "queue": {"window": 1},
    "workload": {"gpu_counts": [[1, 0.5], [4, 0.5]], "jobs": 32, "load": [1.0, 1.5], "mean_duration_s": 900.0},
    "network": {"width": 4, "kind": "flat"},  # which compiles sooner
    "ppo": {"num_envs": 2, "steps": 8, "chunks": 3, "epochs": 1, "minibatches": 1, "critic_only_chunks": 0},
    "validation": {"every": 2, "seeds": 1, "jobs": 8},
}
TESTS = {"loads": [0.9], "num_jobs": 20, "seeds": 2, "policies": ["first-fit", "pack"], "mean_duration_s": 900.0}
VARIANTS = {"plain": {}, "bold": {"ppo.learning_rate": 0.01, "reward.interference": False}}


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setattr("jaxsched.cli.main.enable_cache", lambda: None)


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Writes a sweep's file of the base above, with its own folder."""

    def run(**content):
        folder = tmp_path_factory.mktemp("sweep")
        (folder / "base.yaml").write_text(yaml.safe_dump(BASE))
        whole = {"base": "base.yaml", "out": str(folder / "out"), "evaluate": TESTS} | content
        (folder / "sweep.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))
        return folder / "sweep.yaml"

    return run


@pytest.fixture(scope="module")
def swept(write):
    """A sweep of two variants and two seeds that nobody disturbs, one point after the other."""
    plan = load_sweep(write(variants=VARIANTS, seeds=[0, 1], runs_at_once=1))
    sweep.run(plan)
    return plan, rows_of(plan)


@pytest.fixture(scope="module")
def alone(write, tmp_path_factory):
    """The last point of that sweep, with a seed and changes of its own, trained by itself: its run and its policy."""
    run = tmp_path_factory.mktemp("alone") / "run"
    config = load_sweep(write(variants={"bold": VARIANTS["bold"]}, seeds=[1])).points[0].config
    return run, train(config, run, command="jaxsched train --out first")


def metrics_of(plan: Sweep, row: dict) -> list[dict]:
    """What was logged of the run of a row."""
    return read_rows(plan.out / "points" / Path(row["folder"]).name / METRICS_FILE)


def close(one: list[dict], other: list[dict], rtol: float) -> None:
    assert [row.keys() for row in one] == [row.keys() for row in other]
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(list(a.values()), list(b.values()), rtol=rtol, atol=1e-4)


# ---------------------------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize(
    ("looks_ahead", "faster", "rule"),
    [(False, False, "greedy-wait:sjf+reserve+spread+p1"), (True, True, "greedy-wait"), (True, False, None)],
)
def test_the_rule_that_a_network_is_a_soft_form_of(looks_ahead, faster, rule):
    """A test beside the training: without it the rows leave the rule out and nobody notices."""
    plain = quickstart_config()
    network = dataclasses.replace(plain.network, looks_ahead=looks_ahead)
    config = dataclasses.replace(plain, network=network, queue=dataclasses.replace(plain.queue, faster=faster))
    assert prior_rule(config, Settings(), ["pack"]) == rule
    bare = dataclasses.replace(config, network=dataclasses.replace(network, prior=False))
    assert prior_rule(bare, Settings(), ["pack"]) is None


@pytest.mark.long
def test_rows_say_what_was_run_and_what_came_out(swept):
    plan, rows = swept
    assert [row["point"] for row in rows] == ["plain seed=0", "plain seed=1", "bold seed=0", "bold seed=1"]
    assert [row["seed"] for row in rows] == [0, 1, 0, 1] and len({row["id"] for row in rows}) == 4
    (baselines,) = read_rows(plan.out / "baselines.jsonl")  # one test, whatever was trained
    assert baselines["test"]["seed"] == plan.tests.seed and baselines["test"]["load"] == 0.9
    for row in rows:
        (test,) = row["tests"].values()
        assert list(row["tests"]) == ["philly-like at 0.9"]
        rules = test["baselines_jct_s"]
        assert set(rules) == {"first-fit", "pack"} and test["best_baseline"] == min(rules, key=rules.get)
        assert test["jct_mean_s"] == pytest.approx(np.mean(test["jct_by_list_s"])) and len(test["jct_by_list_s"]) == 2
        ratios = np.array(test["jct_by_list_s"]) / baselines["jct_by_list_s"][test["best_baseline"]]
        assert test["ratio"] == pytest.approx(ratios.mean())
        assert [one["chunk"] for one in row["validation"]["curve"]] == [0, 2, 3]
        assert row["validation"]["best_jct_s"] == min(one["jct_s"] for one in row["validation"]["curve"][1:])
        prior, untrained = test["prior"], test["untrained"]
        assert prior["policy"] == "greedy-wait:sjf+reserve+spread+p1" and prior["ratio"] > 0 and untrained["ratio"] > 0
        assert prior["best_baseline"] in rules, "the prior's rule is none of those to compare with"
        assert row["training"]["cpu_s"] > 0 and row["training"]["runs_at_once"] == 1
        assert {"jaxsched", "jax", "python", "device"} <= set(row["versions"])
    assert len({metrics_of(plan, row)[-1]["reward"] for row in rows}) > 1


@pytest.mark.long
def test_a_point_is_a_single_training(swept, alone):
    plan, rows = swept
    assert rows[-1]["point"] == "bold seed=1"
    close(metrics_of(plan, rows[-1]), read_rows(alone[0] / METRICS_FILE), 1e-3)


@pytest.mark.long
def test_a_worker_that_does_not_see_the_folder_sends_its_files(swept, write):
    plan, rows = swept
    own = load_sweep(write(variants=VARIANTS, seeds=[0, 1], runs_at_once=1))
    part = parts_of(plan.points, 1)[3]  # all share a program, which is still there
    came = train_and_measure(SweepContext(own, "of another machine"), part, lambda told: None)
    assert not own.out.exists()
    unpack(own, came.files)
    (row,) = came.rows
    assert row["point"] == "bold seed=1" and is_trained(own, plan.points[3])
    close(read_rows(folder_of(own, plan.points[3]) / METRICS_FILE), metrics_of(plan, rows[3]), 0.0)
    (test,), (whole,) = row["tests"].values(), rows[3]["tests"].values()
    assert test["jct_by_list_s"] == whole["jct_by_list_s"]


class Killed(Exception):
    pass


@pytest.mark.long
@pytest.mark.parametrize(("at_once", "rtol"), few([(1, 0.0)], [(1, 0.0), (2, 1e-3)]))
def test_a_killed_sweep_goes_on_and_ends_like_one_that_was_not(swept, write, at_once, rtol):
    whole, rows = swept
    plan = load_sweep(write(variants=VARIANTS, seeds=[0, 1], runs_at_once=at_once))
    steps, runs = [], []

    def note(name: str, done: int, total: int, passed_s: float, unit: str = "chunks") -> None:
        (steps if unit == "chunks" else runs).append((name, done))

    def kill(*told: Any) -> None:
        note(*told)
        if len(steps) == 5:  # in the second run, or in the second two
            raise Killed

    with pytest.raises(Killed):
        sweep.run(plan, kill)
    assert len(rows_of(plan)) == at_once
    with (plan.out / "rows.jsonl").open("a") as file:
        file.write('{"id": "tor')
    assert len(rows_of(plan)) == at_once
    first = steps[0][0]
    steps.clear()
    runs.clear()
    sweep.run(plan, note)
    measured = 4 // at_once - 1  # parts, each by itself
    policies = 2 * at_once  # each as it was untrained, too
    assert [done for _, done in runs] == [*range(1, policies * plan.tests.seeds + 1)] * measured
    assert first not in [name for name, _ in steps] and len(steps) == 3 * (4 // at_once - 1)
    again = rows_of(plan)
    assert [row["point"] for row in again] == [row["point"] for row in rows]
    for one, other in zip(again, rows, strict=True):
        assert one["training"]["runs_at_once"] == at_once
        close(metrics_of(plan, one), metrics_of(whole, other), rtol)
        np.testing.assert_allclose(one["validation"]["best_jct_s"], other["validation"]["best_jct_s"], rtol=rtol)
    steps = []
    sweep.run(plan, lambda *about: steps.append(about))
    assert not steps  # nothing is left to do


ON_TWO_DEVICES = """
import sys
import jax
from jaxsched.simulation.settings import Settings
from jaxsched.sweeps import run as sweep
from jaxsched.sweeps.shared_programs import SharedPrograms
from jaxsched.sweeps.plan import load_sweep

plan = load_sweep(sys.argv[1])
sweep.run(plan)
state = SharedPrograms([point.config for point in plan.points]).of_batch(range(4)).initial()
print({len({shard.device for shard in leaf.addressable_shards}) for leaf in jax.tree.leaves(state)})
"""


@pytest.mark.long
def test_runs_at_once_are_shared_out_among_devices(swept, write):
    whole, rows = swept
    path = write(variants=VARIANTS, seeds=[0, 1], runs_at_once=4)
    command = [sys.executable, "-c", ON_TWO_DEVICES, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"XLA_FLAGS": flags(2)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "{2}"
    plan = load_sweep(path)
    for one, other in zip(rows_of(plan), rows, strict=True):
        assert one["training"]["runs_at_once"] == 4
        close(metrics_of(plan, one), metrics_of(whole, other), 1e-3)


@pytest.mark.long
def test_rows_have_the_names_that_the_file_has_now(swept):
    plan, _ = swept
    other = {"plain": "bold", "bold": "plain"}
    points = [dataclasses.replace(point, variant=other[point.variant]) for point in plan.points]
    swapped = rows_of(dataclasses.replace(plan, points=tuple(points)))
    assert [row["group"] for row in swapped] == ["bold", "bold", "plain", "plain"]


@pytest.mark.long
def test_the_table_has_a_line_per_group(swept, capsys, tmp_path):
    plan, rows = swept
    main(["sweep", str(plan.path), "--table", "--markdown", str(tmp_path / "table.md")])
    said = capsys.readouterr().out
    assert "4 of 4 points are finished" in said
    lines = [line for line in said.splitlines() if line.startswith(("plain ", "bold "))]
    assert len(lines) == 2 and all(" 2 " in line and "±" in line for line in lines)
    own = np.array([row["validation"]["best_jct_s"] for row in rows[:2]])
    assert f"{own.mean():,.0f} ± {12.7062 * own.std(ddof=1) / math.sqrt(2):,.0f}" in lines[0]
    assert "| plain" in (tmp_path / "table.md").read_text()
    one_missing = [
        row | {"tests": {name: test | {"ratio": None} for name, test in row["tests"].items()}} for row in rows
    ]
    assert all("–" in line for line in tables.seeds_cells(one_missing)[1][0][4:5])


# ----------------------------------------------------------------------------------------------------------- reproduce


@pytest.mark.long
def test_a_checkpoint_is_reproduced_by_its_card(alone, tmp_path, capsys):
    _, policy = alone
    card = json.loads((policy / CARD_FILE).read_text())
    assert card["commands"] == {"train": "jaxsched train --out first"} and card["limits"].startswith("Trained on leaf")
    assert (
        [chunk for chunk, _ in card["curve"]] == [0, 2, 3]
        and card["max_forwards"] == 2
        and card["sizes"] == [2, 1, 2, 1]
    )
    evaluate = ["evaluate", "--policies", "first-fit", str(policy), "--cluster", "leaf-spine-2", "--seeds", "1"]
    main([*evaluate, "--num-jobs", "20", "--interval-s", "300", "--record", str(policy)])
    card = json.loads((policy / CARD_FILE).read_text())
    (entry,) = card["figures"]
    assert set(entry["jct_mean_s"]) == {"first-fit", "CHECKPOINT"} and str(policy) not in entry["command"]
    card["versions"]["jax"] = "0.0.1"
    (policy / CARD_FILE).write_text(json.dumps(card))
    capsys.readouterr()
    main(["reproduce", str(policy), "--out", str(tmp_path / "again")])
    said = capsys.readouterr().out
    assert "jax 0.0.1 then" in said
    lines = [line for line in said.splitlines() if line.endswith("1.0000")]
    assert [line.split()[0] for line in lines] == ["validation", "first-fit", str(policy)]


# --------------------------------------------------------------------------------------------------- plan and programs


@pytest.mark.slow
def test_a_plan_has_one_program_per_shape_and_its_memory(write, capsys):
    path = write(
        variants={"plain": {}, "deep": {"network.kind": "graph"}}, axes={"ppo.gamma": [0.9, 0.95]}, seeds=[0, 1, 2]
    )
    main(["sweep", str(path), "--plan", "--memory"])
    first, second = capsys.readouterr().out.splitlines()
    assert "6 points (0 finished) of plain gamma=0.9, plain gamma=0.95, differing in ppo.gamma" in first
    assert "deep gamma=0.9" in second and "MiB" in first and "one after the other" in first
    assert not (path.parent / "out").exists()


@pytest.mark.slow
def test_sweepable_numbers_are_of_the_config_and_share_a_program(write):
    base = load_sweep(write()).points[0].config
    for name in SWEEPABLE:
        value_of(base, name)
    moved = replace_values(
        base, {"seed": 5, "env.interval_s": 60.0, "reward.potential": 0.0, "workload.pace": (0.5, 2.0)}
    )
    assert moved.seed == 5 and moved.workload.pace == (0.5, 2.0) and moved.env.cluster == base.env.cluster
    assert shape_key(moved) == shape_key(base)
    for name, value in {"ppo.steps": 16, "network.prior": False, "env.rounds": 3, "ppo.restart_share": 0.5}.items():
        assert shape_key(replace_values(base, {name: value})) != shape_key(base)
    double = replace_values(base, {"ppo.steps": 2 * base.ppo.steps})
    one, two = (SharedPrograms([config]).memory_bytes() for config in (base, double))
    assert one < two < 2 * one


# ------------------------------------------------------------------------------------------------------------- mistakes

MISTAKES = [  # content of the file, what the message must say
    ({"bse": 1}, ["'bse'", "base"]),
    ({"base": "nowhere.yaml"}, ["nowhere.yaml"]),
    ({"out": ""}, ["out is missing"]),
    ({"axes": {"ppo.gama": [0.9]}}, ["axes", "ppo.gama", "no such key"]),
    ({"axes": {"gamma": [0.9]}}, ["axes", "unknown key 'gamma'"]),
    ({"axes": {"ppo.gamma": 0.9}}, ["axes", "ppo.gamma", "list"]),
    ({"axes": {"ppo.gamma": []}}, ["axes", "ppo.gamma", "list"]),
    ({"axes": {"ppo.gamma": [1.5]}}, ["axes", "ppo: gamma"]),
    ({"axes": {"env.cluster": ["leaf-spine-2", "nix-8"]}}, ["sweep.yaml", "nix-8"]),
    ({"axes": {"env.interference": ["none", "nix"]}}, ["unknown interference model 'nix'"]),
    ({"axes": {"workload.trace_gpu": ["T4", "Z9"]}}, ["sweep.yaml", "unknown GPU type 'Z9'"]),
    ({"evaluate": {"cluster": "nix-8"}}, ["sweep.yaml", "nix-8"]),
    ({"variants": ["a"]}, ["variants", "mapping"]),
    ({"variants": {"a": {"network.kind": "square"}}}, ["variants: a", "network: kind", "flat"]),
    ({"seeds": [0, 0]}, ["seed=0", "twice"]),
    ({"seeds": []}, ["seeds"]),
    ({"seeds": [-1]}, ["seeds"]),
    ({"runs_at_once": -1}, ["runs_at_once"]),
    ({"evaluate": {"loads": [0.0]}}, ["evaluate", "loads"]),
    ({"evaluate": {"policies": ["pak"]}}, ["pak"]),
    ({"evaluate": {"policies": ["pack:gittins"]}}, ["evaluate", "'pack:gittins'", "knows = history"]),
    ({"evaluate": {"policies": ["themis"]}}, ["evaluate", "'themis'", "preemption on"]),
    ({"evaluate": {"lods": [0.5]}}, ["evaluate", "'lods'", "'loads'"]),
    (dict(variants={"a": {}, "b": {"ppo.steps": 8}}), ("'a seed=0' and 'b seed=0' are the same run",)),
    (
        dict(axes={"ppo.gamma": [0.9, 0.8]}, variants={"a": {}, "b": {"ppo.gamma": 0.7}}),
        ("variants: b: ppo.gamma: is set by the axes, too",),
    ),
    (dict(axes={"seed": [1, 2]}), ("axes: seed: seeds are listed under `seeds`",)),
    (dict(variants={"a": {"seed": 3}}), ("variants: a: seed: is set by `seeds`, too",)),
    (dict(evaluate=TESTS | {"workload": "distribted"}), ("evaluate: workload: unknown 'distribted'",)),
    (dict(evaluate=TESTS | {"workload": "x" * 999}), ("evaluate: workload: unknown 'xxx",)),
]


@pytest.mark.parametrize(("content", "words"), MISTAKES, ids=[str(content) for content, _ in MISTAKES])
def test_a_mistake_is_told_by_name(write, capsys, content, words):
    with pytest.raises(SystemExit) as end:
        main(["sweep", str(write(**content)), "--plan"])
    message = capsys.readouterr().err
    assert end.value.code == 2 and message.count("\n") == 1
    assert all(word in message for word in words), message


def test_dotted_keys_are_checked_like_a_config(write):
    base = load_sweep(write()).points[0].config
    assert change_config(base, {"workload.load": [0.7, 0.8], "env.interval_s": 60}, "x").workload.load == (0.7, 0.8)
    with pytest.raises(UserError, match=r"^x: ppo: steps: 'many'"):
        change_config(base, {"ppo.steps": "many"}, "x")


def test_rows_survive_half_a_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    mend(path)
    assert read_rows(path) == []
    append(path, {"a": 1})
    append(path, {"a": 2})
    with path.open("a") as file:
        file.write('{"a"')
    assert read_rows(path) == [{"a": 1}, {"a": 2}]
    mend(path)
    append(path, {"a": 3})
    assert read_rows(path) == [{"a": 1}, {"a": 2}, {"a": 3}]
    truncate(path, 1)
    assert read_rows(path) == [{"a": 1}]


def test_seconds_are_summed_over_the_processes_of_a_run(tmp_path):
    for seconds in (5.0, 7.0, 3.0, 4.0):  # the second process began anew
        append(tmp_path / TIMING_FILE, {"wall_s": seconds, "cpu_s": 2 * seconds})
    assert sum_seconds(tmp_path) == {"wall_s": 11.0, "cpu_s": 22.0, "chunk_wall_s": 2.5, "chunk_cpu_s": 5.0}
