"""Policies on random worlds: figures by hand, files, and worlds that are played again to the bit."""

import dataclasses
import json
import math
import pickle
import shlex
import shutil

import numpy as np
import pytest

from jaxsched import shipped
from jaxsched.cli.check import what_is
from jaxsched.cli.main import main
from jaxsched.errors import UserError
from jaxsched.evaluation import world_tables
from jaxsched.evaluation.world_tables import Played, WorldResult, WorldsComparison
from jaxsched.evaluation.worlds import COMMAND, command, compare_worlds, write_worst
from jaxsched.executors import LocalExecutor
from jaxsched.io.files import locked
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse
from jaxsched.simulation.jax_program import Program
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate
from jaxsched.worlds.families import Choice
from jaxsched.worlds.world import PLAIN, draw_world
from tests.support.commands import refused

JOBS = 60


@pytest.fixture(scope="module")
def found() -> WorldsComparison:
    return compare_worlds("wide:3", ["pack", "greedy-wait"], num_jobs=JOBS)


def made(jct_s: dict[str, list[float]], unstable: bool = False) -> WorldsComparison:
    """A comparison of these mean JCTs; NaN where a policy did not finish."""
    count = len(next(iter(jct_s.values())))
    worlds = [draw_world(Choice("any"), i, jobs=2) for i in range(count)]
    rows = [
        {name: Played(times[i], not math.isnan(times[i]), unstable, 1.0) for name, times in jct_s.items()}
        for i in range(count)
    ]
    results = [WorldResult(world.name, {}, 50.0, row) for world, row in zip(worlds, rows)]
    return WorldsComparison(Choice("any", count), worlds, results, Settings(), {})


def test_figures_by_hand():
    plain = dict(zip(PLAIN, [[100.0, 100.0, 200.0], [200.0, 50.0, 100.0], [400.0, 90.0, 150.0], [300.0, 70.0, 140.0]]))
    table = made({"mine": [50.0, 100.0, math.nan], "level": [102.0, 51.0, 102.0], **plain})
    mine, level = (world_tables.summarise(table, name) for name in ("mine", "level"))
    assert mine.ratio == pytest.approx(1.0)  # of 1/2 and 2
    assert mine.worst == 2.0 and mine.near == pytest.approx(1 / 3) and mine.complete == pytest.approx(2 / 3)
    assert mine.to_bound == pytest.approx(2**0.5)
    assert level.ratio == level.worst == pytest.approx(1.02) and level.near == level.complete == 1.0
    low, high = mine.ratio_ci95
    assert math.log(high) == pytest.approx(-math.log(low)) == pytest.approx(12.7062 * math.log(2))  # t of 1 degree
    shares = world_tables.within(table, np.array([1.0, 1.02, 2.0, 2.05]))
    # The least of each world: 50 (mine), 50 (plain with reserve), 100 (the same).
    assert shares[:2] == pytest.approx(np.array([[1 / 3, 1 / 3, 2 / 3, 2 / 3], [0, 2 / 3, 2 / 3, 1]]))
    assert world_tables.worst_worlds(table, "mine") == [2, 1, 0]
    text = world_tables.report_text(table)
    assert "mine †" in text and "worst of mine: any-2 –, any-1 2.000, any-0 0.500" in text


def test_a_world_that_no_plain_rule_finishes_gives_no_ratio():
    table = made({"mine": [50.0, 100.0], **{name: [math.nan, 100.0] for name in PLAIN}})
    assert math.isnan(table.ratio[0, 0]) and table.ratio[0, 1] == 1.0
    assert "unstable under every policy" not in world_tables.report_text(table)
    growing = made({name: [1.0] for name in PLAIN}, unstable=True)
    assert "unstable under every policy" in world_tables.report_text(growing)


def test_several_lists_of_a_world_count_by_their_mean(tmp_path, capsys):
    found = compare_worlds("any:2", ["greedy-wait"], num_jobs=30, seeds=3)
    for world, result in zip(found.worlds, found.results):
        own = Settings(models=world.catalogue)
        for name, runs in simulate([parse("greedy-wait")], world.build(), world.job_lists(3), own).items():
            means = [run.jct_s.mean() for run in runs]
            assert len(set(means)) == 3 and result.played[name].jct_mean_s == pytest.approx(np.mean(means))
        assert result.about["jobs"] == 30
    assert found.complete.all() and json.loads(world_tables.dumps(found))["config"]["seeds"] == 3
    config = json.loads(world_tables.dumps(found))["config"]
    assert (config["first"], config["num_jobs"]) == (0, 30)
    assert "over 3 lists of its jobs" in repr(found)
    with pytest.raises(UserError, match="one job list"):
        write_worst(found, tmp_path / "worst")
    assert not (tmp_path / "worst").exists()
    for wrong, why in (("0", "seeds is 0"), ("9999999", "9,999,999 times, should have at most")):
        assert why in refused(capsys, "evaluate", "--worlds", "any:2", "--policies", "pack", "--seeds", wrong)


def test_plain_rules_are_always_played_and_every_job_is_accounted_for(found):
    assert found.policies == ("pack", "greedy-wait", *PLAIN)
    assert found.complete.all() and (found.jct_s > found.bound_s).all()
    plain = [found.policies.index(name) for name in PLAIN]
    assert found.ratio[plain].min(0) == pytest.approx(np.ones(3))
    report = json.loads(world_tables.dumps(found))
    assert [world["name"] for world in report["worlds"]] == ["wide-0", "wide-1", "wide-2"]
    assert report["policies"]["pack"]["within"]["1.0"] <= 1.0 and repr(found).count("worst of") == 6


class Sent(LocalExecutor):
    """As another machine: what a task gets and gives is sent."""

    def run(self, common, tasks, report=None):
        common, tasks = pickle.loads(pickle.dumps((common, tasks)))
        for number, result in super().run(common, tasks, report):
            yield number, pickle.loads(pickle.dumps(result))


def test_other_machines_find_the_same(found):
    told = []
    other = compare_worlds("wide:1", ["pack", "greedy-wait"], num_jobs=JOBS, executor=Sent(), report=told.append)
    assert np.array_equal(other.jct_s, found.jct_s[:, :1]) and {one.policy for one in told} == set(found.policies)


@pytest.mark.parametrize("family", ["any", pytest.param("llm", marks=pytest.mark.long)])
def test_worlds_of_different_sizes_share_a_jax_program_and_are_played_as_alone(monkeypatch, family):
    mine, compiled = Policy("mine", parse("pack").function), []
    monkeypatch.setattr(
        Program, "_function", lambda self, config, make=Program._function: compiled.append(config) or make(self, config)
    )
    both = compare_worlds(f"{family}:2", [mine, "pack"], num_jobs=20)
    assert both.worlds[0].schedulers == both.worlds[1].schedulers
    assert len({world.build().group_gpus.shape for world in both.worlds}) == 2 and len(compiled) == 1
    own, loop = (both.jct_s[both.policies.index(name)] for name in ("mine", "pack"))
    assert own == pytest.approx(loop, rel=1e-6)


def test_the_worst_worlds_are_played_again_to_the_bit(tmp_path, monkeypatch, capsys):
    settings = Settings(preemption=True, restart_s=30.0)
    table = compare_worlds("mixed:2", ["pack:las+backfill+preempt"], settings, first=4, num_jobs=JOBS)
    write_worst(table, tmp_path)
    assert (tmp_path / "README.md").read_text().count("mixed-5") == 5
    for i, world in enumerate(table.worlds):
        monkeypatch.chdir(tmp_path / world.name)
        words = shlex.split((tmp_path / world.name / COMMAND).read_text())
        main([*words[1:], "--json", "again.json"])
        again = json.loads((tmp_path / world.name / "again.json").read_text())
        assert [again["policies"][name]["jct_mean_s"] for name in table.policies] == table.jct_s[:, i].tolist()
        assert again["bound_s"] == table.bound_s[i]


def test_a_policy_that_cannot_play_a_world_is_named_with_the_world(capsys, tmp_path):
    jax_only = "engine compiled: cannot play 'random'"
    said = refused(capsys, "evaluate", "--worlds", "any:2", "--policies", "random", "--engine", "compiled")
    assert said.startswith("world any-0: ") and jax_only in said
    with pytest.raises(UserError, match=r"world any-0: policy 'tiresias-las'.*preemption"):
        compare_worlds("any:1", "tiresias-las", num_jobs=JOBS)
    with pytest.raises(UserError, match="models, outages"):
        compare_worlds("any:1", "pack", dataclasses.replace(Settings(), models=draw_world(Choice("any"), 0).catalogue))


def test_the_command_writes_what_it_shows(tmp_path, capsys):
    figure, page, worst = tmp_path / "profile.svg", tmp_path / "table.md", tmp_path / "worst"
    files = ["--figure", figure, "--markdown", page, "--worst", worst, "--json", tmp_path / "worlds.json"]
    main(["evaluate", "--worlds", "any:1", "--num-jobs", str(JOBS), "--policies", "pack", *map(str, files)])
    shown = capsys.readouterr().out
    assert "worst of pack: any-0" in shown and "within a factor" in page.read_text()
    assert figure.stat().st_size > 1000 and (worst / "any-0" / "cluster.yaml").exists()
    assert "is not empty" in refused(capsys, "evaluate", "--worlds", "any:1", "--worst", worst)
    with locked(tmp_path / "taken"):
        assert "is in use by" in refused(capsys, "evaluate", "--worlds", "any:1", "--worst", tmp_path / "taken")
    assert str(what_is(tmp_path / "worlds.json")).endswith("policies over 1 worlds")
    assert "a comparison over worlds, of which there is no page" in refused(capsys, "report", tmp_path / "worlds.json")


def test_a_world_is_played_again_from_its_folder_with_what_lies_elsewhere(found, tmp_path, monkeypatch):
    """Before: policies of files by their bare names, folders by paths from another folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("pack", "ck"):
        (tmp_path / name).mkdir()
    shutil.copytree(shipped.resolve(shipped.CHECKPOINTS, "interference"), tmp_path / "law")
    asked = ("mine.py:mine", "ck", "./pack", "default", "pack", "pack:sjf", "qssf")
    settings = dataclasses.replace(Settings(), interference="law")
    words = command(dataclasses.replace(found, asked=asked, settings=settings))
    named = words[words.index("--policies") + 1 :]
    assert named == [*(f"{tmp_path}/{name}" for name in ("mine.py:mine", "ck", "pack")), *asked[3:]]
    assert words[words.index("--interference") + 1] == f"{tmp_path}/law"
    assert found.asked == ("pack", "greedy-wait", *PLAIN)
