"""Options: each stands once, checks itself, and is on the command line with its help."""

import dataclasses
import typing

import pytest
import tyro

from jaxsched.cli.evaluate import Evaluate
from jaxsched.cli.simulate import Simulate
from jaxsched.errors import UserError
from jaxsched.options import ClusterOptions, EvaluatedWorld, JobOptions, RunOptions, World, describe, list_names
from jaxsched.simulation.settings import Settings
from jaxsched.workload.load import WorkloadOptions

CLASSES = (ClusterOptions, JobOptions, EvaluatedWorld, RunOptions)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("command", [Evaluate, Simulate])
def test_every_option_is_on_the_command_line_with_its_help(kind, command):
    hints = typing.get_type_hints(command, include_extras=True)
    for name, known in describe(kind).items():
        (argument,) = [part for part in hints[name].__metadata__ if getattr(part, "help", None)]
        assert argument.help == known.help and known.help.endswith(".")


def test_the_command_line_has_the_defaults_of_the_classes():
    given = tyro.cli(Evaluate, args=[])
    for kind in CLASSES[:2]:
        assert kind.taken_from(given) == kind()
    assert given.settings() == Settings()


def test_every_option_is_a_setting_or_makes_jobs():
    assert {*list_names(EvaluatedWorld), *list_names(RunOptions)} <= set(list_names(Settings))
    assert set(list_names(JobOptions)) <= set(list_names(WorkloadOptions))


@pytest.mark.parametrize(
    ("kind", "wrong", "said"),
    [
        (World, {"interval_s": None}, "interval_s: None should be from 1e-06"),
        (World, {"interval_s": True}, "interval_s: True should be from"),
        (World, {"interval_s": float("nan")}, "interval_s: nan"),
        (World, {"rounds": 2.5}, "rounds: 2.5 should be at least 1"),
        (World, {"preemption": "on"}, "preemption: 'on' should be True or False"),
        (World, {"preemption": True, "restart_s": -1.0}, "restart_s: -1.0 should be a number of seconds from 0"),
        (World, {"knows": None}, "knows: None should be one of runtimes"),
        (World, {"min_run_s": 5.0}, "min_run_s: says when"),
        (World, {"restart_s": 5.0}, "restart_s, checkpoint_s: say what"),
        (EvaluatedWorld, {"failures": "9,1", "outages": "x.csv"}, "failures, outages: "),
        (EvaluatedWorld, {"pairs_known": True}, "pairs_known: "),
        (JobOptions, {"since": 0.5, "until": 0.4}, "since, until: 0.5, 0.4"),
        (JobOptions, {"load": "high"}, "load: 'high' should be a number"),
        (ClusterOptions, {"cluster": None}, "cluster: None should be a name, a file or a cluster"),
        (RunOptions, {"horizon_s": 0.0}, "horizon_s: 0.0 should be a finite number of seconds > 0"),
    ],
)
def test_a_wrong_value_is_refused_where_the_object_is_made(kind, wrong, said):
    with pytest.raises(UserError, match=said):
        kind(**wrong)


def test_who_gives_another_default_keeps_check_and_help():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Mine(World):
        interval_s: float = 300.0

    assert Mine().interval_s == 300.0 and describe(Mine)["interval_s"] == describe(World)["interval_s"]
    with pytest.raises(UserError, match=r"interval_s: 0\.0"):
        Mine(interval_s=0.0)
    assert Settings.taken_from(Mine(), seed=3) == Settings(interval_s=300.0, seed=3)
