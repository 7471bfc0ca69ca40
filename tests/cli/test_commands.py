import csv
import dataclasses
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import tyro

from jaxsched.cli import quickstart
from jaxsched.cli.evaluate import Evaluate
from jaxsched.cli.main import main
from jaxsched.cli.output import Display, OverAll
from jaxsched.cli.train import Train
from jaxsched.io.cards import named_files
from jaxsched.learning.config import quickstart_config
from jaxsched.learning.draws import Draw, params_of
from jaxsched.learning.setting import make_setting
from jaxsched.simulation.settings import Settings
from tests.support.commands import refused

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setattr("jaxsched.cli.main.enable_cache", lambda: None)


TRACE = """job_id,submit_time_s,num_gpus,duration_s,model,num_ps
a,0,8,600,resnet18,0
b,30,4,300,vgg16,0
c,60,64,60,vgg16,0
d,90,2,100,textcnn,1
"""


def test_simulate_writes_every_job(tmp_path, capsys):
    (tmp_path / "trace.csv").write_text(TRACE)
    jobs, report = tmp_path / "jobs.csv", tmp_path / "out.json"
    main(
        ["simulate", "--policy", "pack", "--cluster", "leaf-spine-1", "--schedulers", "1", "--interference", "none"]
        + [
            "--workload",
            str(tmp_path / "trace.csv"),
            "--interval-s",
            "10",
            "--jobs-out",
            str(jobs),
            "--json",
            str(report),
        ]
    )
    said = capsys.readouterr()
    assert "4 arrived = 3 finished + 0 running + 0 queued + 1 rejected (1 larger than any partition)" in said.out
    assert "pack: 4/4 jobs" in said.err
    with jobs.open(newline="") as file:
        a, b, c, d = csv.DictReader(file)
    assert (a["job_id"], a["submit_s"], a["start_s"], a["status"]) == ("a", "0.0", "0.0", "finished")
    assert a["placement"] == "0:0:4+0:1:4"
    assert float(a["finish_s"]) == pytest.approx(600, rel=1e-5)  # alone, on the ideal placement
    assert float(b["start_s"]) >= float(a["finish_s"]) and b["placement"] == "0:0:4"
    assert (c["status"], c["start_s"], c["finish_s"], c["placement"]) == ("rejected", "", "", "")
    assert float(d["start_s"]) == float(b["start_s"]) and d["placement"] == "0:1:2"
    found = json.loads(report.read_text())
    assert found["jobs"] == {"arrived": 4, "finished": 3, "running": 0, "queued": 0, "rejected": 1}
    assert found["policies"]["pack"]["ratio_to_best_baseline"] == 1.0


@pytest.mark.long
def test_evaluate_in_a_process_of_its_own(tmp_path):
    """The whole way: entry point, synthetic jobs, two seeds, JSON and Markdown, plain progress, the cache's folder."""
    command = [sys.executable, "-m", "jaxsched.cli", "evaluate", "--cluster", "leaf-spine-2", "--num-jobs", "30"]
    command += ["--seeds", "2", "--policies", "first-fit", "random", "--mean-duration-s", "600"]
    command += ["--duration-cap-s", "3000"]
    command += ["--json", str(tmp_path / "out.json"), "--markdown", str(tmp_path / "out.md")]
    environment = {"JAXSCHED_CACHE": str(tmp_path / "cache"), "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    assert "first-fit: 60/60 jobs" in done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert set(found) == {"bound_s", "jobs", "policies", "config", "versions"}
    assert found["jobs"]["arrived"] == found["jobs"]["finished"] == 60
    assert found["config"]["seeds"] == [0, 1] and found["config"]["workload"] == "philly-like"
    assert "| first-fit" in (tmp_path / "out.md").read_text()
    engines = [run["engine"] for one in found["config"]["runs"].values() for run in one["seeds"]]
    assert engines == ["compiled", "compiled", "jax", "jax"]
    assert any((tmp_path / "cache" / "xla").rglob("*-cache"))


@pytest.mark.long
def test_bench_writes_rows(tmp_path, capsys):
    report = tmp_path / "bench.json"
    main(
        ["bench", "--clusters", "leaf-spine-1", "--num-envs", "1", "--policies", "first-fit", "--simulate"]
        + ["--no-training", "--roofline", "--json", str(report)]
    )
    copy, header, shown, other = capsys.readouterr().out.splitlines()[:4]
    assert copy.startswith("a copy: ") and copy.endswith(" GB/s") and "kB/decision  of copy" in header
    assert "%" in shown and "%" not in other
    row, compiled = json.loads(report.read_text())
    assert compiled["name"] == "compiled/first-fit" and compiled["jobs_per_cpu_s"] > row["jobs_per_cpu_s"]
    assert row["name"] == "environment/first-fit" and row["num_envs"] == row["servers"] == 1
    assert row["decisions_per_s"] > 0 and row["wall_s"] >= 1.0 and row["compile_s"] > 0 and row["peak_memory_bytes"] > 0
    assert set(row) == set(compiled) == {
        "name", "num_envs", "servers", "decisions_per_s", "jobs_per_cpu_s", "wall_s", "cpu_s", "compile_s",
        "peak_memory_bytes", "device", "decision_bytes", "cluster",
    }  # fmt: skip
    assert row["cluster"] == compiled["cluster"] == "leaf-spine-1"
    assert row["decision_bytes"] > 0 and compiled["decision_bytes"] is None


def test_plain_progress_has_rate_and_time_left(capsys, monkeypatch):
    now = iter([100.0, 102.0, 110.0, 120.0])  # on the wall
    monkeypatch.setattr("jaxsched.cli.output.time.monotonic", lambda: next(now))
    with Display(["pack"], 100) as display:
        display.update("pack", 0, 0.0, over=False)
        display.update("pack", 10, 1.0, over=False)  # too soon for another line
        display.update("pack", 50, 5.0, over=False)
        display.update("pack", 100, 12.5, over=True)
    assert capsys.readouterr().err.splitlines() == [
        "pack: 0/100 jobs",
        "pack: 50/100 jobs, 10 jobs/s, about 5 s left",
        "pack: 100/100 jobs, 8 jobs/s, done in 12.5 s",
    ]


def test_what_was_compiled_before_the_first_chunk_says_nothing_of_the_pace(capsys, monkeypatch):
    monkeypatch.setattr("jaxsched.cli.output.EVERY_S", 0.0)
    with Display([], 0, "chunks") as display:
        for done, passed_s in ((1, 67.0), (3, 71.0), (5, 75.0)):
            display.more("seed 0", done, 5, passed_s)
    assert capsys.readouterr().err.splitlines() == [
        "seed 0: 1/5 chunks",
        "seed 0: 3/5 chunks, 2.0 s per chunk, about 4 s left",
        "seed 0: 5/5 chunks, 2.0 s per chunk, done in 75.0 s",
    ]


def test_runs_that_measure_are_no_chunks(capsys, monkeypatch):
    monkeypatch.setattr("jaxsched.cli.output.EVERY_S", 0.0)
    with Display([], 0, "chunks") as display:
        together = OverAll(display, 2)
        together.more("seed 0", 2, 2, 3.0)
        together.more("seed 0 on gangs", 1, 3, 4.0, "runs")
        together.more("seed 0 on gangs", 3, 3, 5.0, "runs")
    first, everything, *rest = capsys.readouterr().err.splitlines()
    assert first == "seed 0: 2/2 chunks, done in 3.0 s" and everything.startswith("all workers: 2/2 chunks")
    assert rest == ["seed 0 on gangs: 1/3 runs", "seed 0 on gangs: 3/3 runs, 2 runs/s, done in 5.0 s"]


TINY = """
env: {cluster: leaf-spine-1, schedulers: 1, running_slots: 8, queue_slots: 16, rounds: 4}
network: {width: 4}
workload: {gpu_counts: [[1, 1.0]], jobs: 32}
ppo: {num_envs: 2, steps: 8, chunks: 2, epochs: 1, minibatches: 1}
validation: {every: 1, seeds: 1, jobs: 8}
"""


@pytest.mark.long
def test_quickstart_trains_compares_and_draws(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("jaxsched.cli.quickstart.POLICIES", ("first-fit", "random"))
    monkeypatch.setattr("jaxsched.cli.quickstart.SEEDS", 1)
    monkeypatch.setattr("jaxsched.cli.quickstart.JOBS", 20)
    (tmp_path / "tiny.yaml").write_text(TINY)
    run, checkpoint = tmp_path / "run", tmp_path / "checkpoints" / "tiny"
    arguments = [
        "quickstart",
        "--config",
        str(tmp_path / "tiny.yaml"),
        "--out",
        str(run),
        "--checkpoint",
        str(checkpoint),
    ]
    main(arguments)
    said = capsys.readouterr()
    assert "What to try next" in said.out and "train: 2/2 chunks" in said.err
    assert {"learning_curve.png", "jct.png", "comparison.json", "metrics.jsonl"} <= {
        path.name for path in run.iterdir()
    }
    found = json.loads((run / "comparison.json").read_text())
    assert list(found["policies"]) == ["first-fit", "random", str(checkpoint)]
    assert found["policies"][str(checkpoint)]["jobs"]["finished"] == 20
    card = json.loads((checkpoint / "card.json").read_text())
    assert card["commands"]["train"].startswith("jaxsched quickstart --config")
    (entry,) = card["figures"]
    again = [str(checkpoint) if word == "CHECKPOINT" else word for word in shlex.split(entry["command"])[1:]]
    main([*again, "--json", str(tmp_path / "again.json")])
    then = json.loads((tmp_path / "again.json").read_text())["policies"]
    for name, jct_s in entry["jct_mean_s"].items():  # random, too: it draws by the same seed
        assert then[name.replace("CHECKPOINT", str(checkpoint))]["jct_mean_s"] == pytest.approx(jct_s), name

    (tmp_path / "tiny.yaml").write_text(TINY.replace("width: 4", "width: 8"))
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2 and "holds a run of another configuration" in capsys.readouterr().err


def test_quickstart_compares_in_the_world_of_the_training():
    plain = quickstart_config()
    assert quickstart._settings(plain) == Settings(interval_s=plain.env.interval_s)
    world = {"preemption": True, "knows": "history", "failures": "100,1", "interference": "none", "max_forwards": 20}
    config = dataclasses.replace(plain, env=dataclasses.replace(plain.env, **world))
    words = shlex.split(quickstart._evaluate(config, 0.9, "--seeds 1", "pack"))
    settings = tyro.cli(Evaluate, args=words[2:]).settings()
    assert settings == quickstart._settings(config) and settings.knows == "history" and settings.preemption


def test_options_of_train_replace_what_the_configuration_says():
    config = quickstart_config()
    assert Train().overridden(config) == config
    options = Train(cluster="leaf-spine-4", schedulers=1, load=0.9, interference="fitted", interval_s=60.0, seed=3)
    changed = options.overridden(config)
    assert changed.env == dataclasses.replace(
        config.env, cluster="leaf-spine-4", schedulers=1, interference="fitted", interval_s=60.0
    )
    assert changed.workload.load == (0.9, 0.9) and changed.seed == 3 and changed.ppo == config.ppo
    options = Train(knows="history", preemption="on", restart_s=30.0, failures="100,4", max_forwards=5)
    world = options.overridden(config).env
    said = {"knows": "history", "preemption": True, "restart_s": 30.0, "failures": "100,4", "max_forwards": 5}
    assert world == dataclasses.replace(config.env, **said)
    worlds = make_setting(changed).worlds
    one = jnp.float32(1.0)
    draw = Draw(strength=jnp.float32(2.0), pace=one, interval_factor=one, cluster=jnp.int32(0))
    stronger = params_of(worlds, draw).interference
    np.testing.assert_allclose(stronger.weights.kappa, 2 * worlds.params.interference.weights.kappa)
    np.testing.assert_array_equal(stronger.weights.power, worlds.params.interference.weights.power)


@pytest.mark.parametrize("options", [[], ["--gpu-share", "0.5", "--pair-factors", "0.7", "--pairs-known"]])
def test_the_command_of_an_evaluation_says_all_of_it_again(options):
    first = tyro.cli(Evaluate, args=["--policies", "pack", "match", "--seeds", "3", *options])
    assert tyro.cli(Evaluate, args=first.command()[2:]) == first


@pytest.mark.parametrize("name", ["quickstart", "default"])  # a network, and numbers
def test_what_a_checkpoint_began_with_must_be_there_as_it_was(capsys, tmp_path, monkeypatch, name):
    """Before: `reproduce` began with whatever had that name, or failed once it had compiled."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "checkpoints" / name, "mine")
    (tmp_path / "trace.csv").write_text("one")
    card = json.loads((tmp_path / "mine" / "card.json").read_text()) | {"files": named_files(["trace.csv"])}
    (tmp_path / "mine" / "card.json").write_text(json.dumps(card))
    main(["reproduce", "mine", "--plan"])
    capsys.readouterr()
    (tmp_path / "trace.csv").write_text("another")
    assert "was trained with trace.csv, which holds something else now" in refused(
        capsys, "reproduce", "mine", "--plan"
    )
    (tmp_path / "trace.csv").unlink()
    assert "was trained with trace.csv, which is not there" in refused(capsys, "reproduce", "mine", "--out", "new")


def test_what_was_recorded_on_a_file_is_repeated_on_that_file_only(capsys, tmp_path, monkeypatch):
    """Before: figures of other jobs were shown beside those of the card."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "checkpoints/default", "mine")
    trace = (ROOT / "examples/trace.csv").read_text()
    (tmp_path / "trace.csv").write_text(trace)
    main(["evaluate", "--cluster", "leaf-spine-8", "--workload", "trace.csv", "--policies", "mine", "--record", "mine"])
    main(["reproduce", "mine", "--plan"])
    (tmp_path / "trace.csv").write_text(trace[: trace.rindex("\n", 0, -1) + 1])
    capsys.readouterr()
    assert "was evaluated with trace.csv, which holds something else" in refused(capsys, "reproduce", "mine", "--plan")


def test_reproduce_tells_its_plan(capsys, tmp_path, monkeypatch):
    """By the card alone: nothing is trained, and no folder is made."""
    monkeypatch.chdir(tmp_path)
    main(["reproduce", "quickstart", "--plan"])
    said = capsys.readouterr().out
    card = json.loads((ROOT / "checkpoints/quickstart/card.json").read_text())
    ppo = card["config"]["ppo"]
    assert f"{ppo['chunks'] * ppo['num_envs'] * ppo['steps']:,} rounds" in said and card["limits"] in said
    assert f"{card['validation_jct_s']:,.1f} s" in said and "16 worlds of seed 0" in said
    (entry,) = card["figures"]
    assert entry["command"] in said and f"pack {entry['jct_mean_s']['pack']:,.1f} s" in said
    main(["reproduce", "default", "--plan"])
    said = capsys.readouterr().out
    assert "learns: seeking from training worlds contended:100" in said and "30 generations" in said
    assert list(tmp_path.iterdir()) == []
