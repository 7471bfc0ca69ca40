"""A few numbers are learned from a workload, the same whether a run is stopped or not."""

import dataclasses
import json

import numpy as np
import pytest

from jaxsched.cli import main
from jaxsched.cli import train_numbers as here
from jaxsched.cli.check import what_is
from jaxsched.cli.train import Train
from jaxsched.cli.train_numbers import config_of, how_to_judge, judging
from jaxsched.errors import UserError
from jaxsched.io.cards import CARD_FILE
from jaxsched.io.json_file import read_rows
from jaxsched.learning.evolved import loop
from jaxsched.learning.evolved.config import SYNTHETIC_JOBS, EvolvedConfig, Source, scenario_of, sources_of
from jaxsched.learning.evolved.evolution import STATE_FILE, EvolvedState, read_saved_config
from jaxsched.learning.evolved.loop import METRICS_FILE, POLICY_FOLDER, Plays, draw_list, shorten, train_evolved
from jaxsched.learning.evolved.tasks import COUNT, table_of
from jaxsched.policies.evolved import LEVELS, RULES
from jaxsched.policies.registry import parse
from jaxsched.simulation.scenario import load_scenario
from jaxsched.workload.jobs import make_job_list, offered_load
from jaxsched.worlds.families import Choice
from jaxsched.worlds.world import draw_world

JOBS, GENERATIONS = 240, 12
GPUS = 16


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Who has run for an hour needs one more: `mlfq` stops it for those that come, which need two."""
    rng = np.random.default_rng(0)
    rows = zip(range(JOBS), np.sort(rng.uniform(0, 4e6, JOBS)), rng.choice([1, 8], JOBS), rng.uniform(7000, 8000, JOBS))
    path = tmp_path_factory.mktemp("trace") / "mine.csv"
    lines = ["job_id,submit_time_s,num_gpus,duration_s", *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def config(trace):
    return EvolvedConfig(
        str(trace), until=0.75, cluster="leaf-spine-2", schedulers=1, load=1.1, seed=3, generations=GENERATIONS
    )


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """A run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train_evolved(config, folder, command="as typed")
    return folder


def kept(folder):
    return [(folder / name).read_bytes() for name in (STATE_FILE, METRICS_FILE, f"{POLICY_FOLDER}/{CARD_FILE}")]


def test_what_is_learned_is_better_on_the_jobs_it_was_learned_from(config, whole):
    ((cluster, _, settings),) = sources_of(config)
    jobs = scenario_of(config, 0).jobs[0]
    policies = parse(whole / POLICY_FOLDER), parse(RULES[LEVELS])
    rngs = [np.random.default_rng((0, i, loop.JUDGING)) for i in range(8)]
    parts = [draw_list(jobs, rng, GPUS, config.load) for rng in rngs]
    jct = np.array(
        [[Plays(policy, Source(cluster, part, settings)).mean_jct_s() for part in parts] for policy in policies]
    )
    ratio = float(np.exp(np.log(jct[0] / jct[1]).mean()))
    assert ratio < 0.99
    assert ratio == pytest.approx(min(row.get("ratio_to_rule", 9.0) for row in read_rows(whole / METRICS_FILE)))
    assert what_is(whole).endswith(f"mine.csv, {GENERATIONS} of {GENERATIONS} generations")


@pytest.mark.parametrize("instant", ["report", "save"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(config, whole, tmp_path, monkeypatch, instant):
    """Between two generations, and when a row is written whose state is not."""

    class Killed(BaseException):
        pass

    real = {"report": None, "save": loop.save}

    def until_the_third(*args):
        if args[0]["generation"] == 3 if instant == "report" else args[1].search.generation == 3:
            raise Killed
        if instant == "save":
            real["save"](*args)

    if instant == "save":
        monkeypatch.setattr(loop, "save", until_the_third)
    with pytest.raises(Killed):
        train_evolved(
            config, tmp_path / "run", command="as typed", report=until_the_third if instant == "report" else None
        )
    monkeypatch.undo()
    with pytest.raises(UserError, match="holds a run of another configuration"):
        train_evolved(dataclasses.replace(config, seed=9), tmp_path / "run", resume=True)
    train_evolved(config, tmp_path / "run", resume=True)
    assert kept(tmp_path / "run") == kept(whole)


def test_a_run_does_not_go_on_on_another_cluster(config, tmp_path):
    """Before: only the jobs were looked at."""
    cluster = tmp_path / "mine.yaml"
    cluster.write_text("servers: [{count: 2, groups: [4, 4], nic_gbits_s: 25}]\n")
    mine = dataclasses.replace(config, cluster=str(cluster), load=None, generations=1)
    train_evolved(mine, tmp_path / "run")
    cluster.write_text(cluster.read_text().replace("25", "10"))
    with pytest.raises(UserError, match=r"its cluster .*mine.yaml or its law are not what they were when it began"):
        train_evolved(mine, tmp_path / "run", resume=True)


def test_a_run_does_not_go_on_with_other_jobs(config, whole, trace):
    text = trace.read_text()
    try:
        trace.write_text(text.replace(",8,", ",4,", 1))
        with pytest.raises(UserError, match="its cluster leaf-spine-2 or its law are not what"):
            train_evolved(config, whole, resume=True)
    finally:
        trace.write_text(text)
    with pytest.raises(UserError, match="already holds a run"):
        train_evolved(config, whole)


def test_numbers_stand_for_levels():
    levels = np.array(table_of(np.zeros(COUNT)).levels)
    assert (levels == levels[0]).all() and set(levels[0]) == {100 * i for i in range(8)}
    longer, wider, steeper = np.zeros((3, COUNT))
    longer[4], wider[21 + 2], steeper[29 + 2] = 1.0, 1.0, 1.0
    changed = [np.array(table_of(numbers).levels) - levels for numbers in (longer, wider, steeper)]
    assert (changed[0][:, 4] == 100).all() and changed[0].sum() == 800
    assert (changed[1][2] == 100).all() and changed[1].sum() == 2100
    assert changed[2][2].tolist() == [20 * (i - 10) for i in range(21)]
    numbers = np.zeros(COUNT)
    numbers[-1] = 0.25
    assert table_of(numbers).margin == 25 and table_of(-numbers).margin == 0


def test_lists_are_drawn_from_stretches_of_the_past(config):
    jobs = sources_of(config)[0].jobs
    one, other = (draw_list(jobs, np.random.default_rng(seed), GPUS, 1.0) for seed in (0, 1))
    assert len(jobs) == 180 and set(one.job_id) <= set(jobs.job_id) and set(one.job_id) != set(other.job_id)
    assert (np.diff(one.submit_s) >= 0).all() and one.submit_s[0] == 0
    assert all(0.9 <= offered_load(jobs, GPUS) <= 1.1 for jobs in (one, other))
    own = draw_list(jobs, np.random.default_rng(0), GPUS, None)
    assert set(np.diff(own.submit_s)) & set(np.diff(jobs.submit_s))


def test_a_list_is_drawn_where_most_stretches_have_no_jobs():
    jobs = make_job_list(submit_s=[0.0, 0.0, 1e6], duration_s=[10.0] * 3, workers=[1] * 3)
    for seed in range(40):
        assert draw_list(jobs, np.random.default_rng(seed), GPUS, 1.0).submit_s[-1] > 0


def test_jobs_that_come_at_once_are_refused(tmp_path):
    path = tmp_path / "once.csv"
    path.write_text("".join(["job_id,submit_time_s,num_gpus,duration_s\n", *(f"{i},7,1,10\n" for i in range(30))]))
    with pytest.raises(UserError, match="all jobs are submitted at once"):
        sources_of(EvolvedConfig(str(path)))


def test_the_world_that_is_asked_for_is_the_one_to_learn_and_to_be_judged_in(trace, tmp_path):
    costs = {"max_forwards": 5, "restart_s": 30.0, "checkpoint_s": 600.0}
    config = config_of(Train(workload=str(trace), out=tmp_path, load=0.9, until=0.5, **costs))
    settings = sources_of(config)[0].settings
    assert {name: getattr(settings, name) for name in costs} == costs
    judged = judging(config, tmp_path / "policy")
    for option in ("--max-forwards 5", "--restart-s 30", "--checkpoint-s 600", "--load 0.9", "--since 0.5"):
        assert option in judged
    assert "--interval-s" not in judged
    assert how_to_judge(config) == "judge it by others"
    whole = config_of(Train(workload=str(trace), out=tmp_path, load=0.9))
    assert "knows all jobs" in how_to_judge(whole)


def test_options_of_networks_are_refused_when_it_goes_on(tmp_path):
    """Before: they were accepted, and nothing came of them."""
    (tmp_path / STATE_FILE).touch()
    with pytest.raises(UserError, match=r"--resume .* takes no --profile, --track, --debug-checks: what is learned is"):
        Train(resume=tmp_path, track=("tensorboard",), debug_checks=True, profile=tmp_path / "p").run()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--until", "0"], "--until: 0 should be a share of the jobs, above 0 and at most 1"),
        (["--until", "1.5"], "--until: 1.5 should be a share"),
        (["--until", "nan"], "--until: nan should be a share"),
        (["--until", "0.05"], "12 jobs to learn from, should be 20 or more"),
        (["--knows", "history"], "--knows: 'history' should be nothing"),
        (["--preemption", "off"], "--preemption: 'off' should be on"),
        (["--learn", "widths"], "--learn: 'widths' should be one of levels, seeking"),
        (["--learn", "seeking", "--preemption", "on"], "--preemption: 'on' should be off"),
        (["--learn", "seeking", "--knows", "nothing"], "--knows: 'nothing' should be runtimes"),
        (["--learn", "seeking", "--restart-s", "30"], "--restart-s: says what stopping jobs costs"),
        (["--config", "configs/quickstart.yaml"], "--workload and --worlds take no --config"),
        (["--shards", "2", "--debug-checks"], "--workload and --worlds take no --shards, --debug-checks"),
        (["--generations", "0"], "--generations: 0 should be from 1"),
        (["--workload", "gone.csv"], "gone.csv: no such file"),
        (["--workload", "distributed", "--until", "0.5"], "are for traces, 'distributed' is synthetic"),
    ],
)
def test_mistakes_are_said_in_a_line(trace, tmp_path, capsys, options, said):
    with pytest.raises(SystemExit) as stopped:
        main.main(["train", "--workload", str(trace), "--out", str(tmp_path / "run"), *options])
    assert stopped.value.code == 2 and not (tmp_path / "run").exists()
    assert said in capsys.readouterr().err


@pytest.fixture(scope="module")
def gangs(tmp_path_factory):
    """So many gangs that queues are long, on four schedulers of two servers."""
    jobs = load_scenario("leaf-spine-8", "distributed", schedulers=4, num_jobs=300, load=1.2, seeds=1).jobs[0]
    rows = zip(range(300), jobs.submit_s, jobs.num_gpus, jobs.duration_s)
    lines = ["job_id,submit_time_s,num_gpus,duration_s", *(",".join(map(str, row)) for row in rows)]
    path = tmp_path_factory.mktemp("gangs") / "gangs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def seeking(gangs, **changes):
    options = dict(learn="seeking", cluster="leaf-spine-8", schedulers=4, max_forwards=20, generations=3) | changes
    return EvolvedConfig(str(gangs), **options)


@pytest.mark.slow
def test_where_jobs_wait_is_learned_and_played(gangs, tmp_path):
    config = seeking(gangs)
    folder = train_evolved(config, tmp_path / "run", command="as typed")
    rows = read_rows(tmp_path / "run" / METRICS_FILE)
    assert len(rows) == 3 and rows[-1]["best_ratio"] < 1.0  # by the wait alone already
    assert what_is(folder) == "a policy that seeks" and "learns seeking from" in str(what_is(tmp_path / "run"))
    (source,) = sources_of(config)
    learned, rule = (Plays(parse(policy), source).mean_jct_s() for policy in (folder, config.rule))
    assert learned < 0.99 * rule
    assert not parse(folder).is_rule and parse(config.rule + ":seek").is_rule


@pytest.mark.slow
def test_a_run_that_learns_where_jobs_wait_goes_on_bit_for_bit(gangs, tmp_path, monkeypatch):
    config = seeking(gangs)
    train_evolved(config, tmp_path / "whole", command="as typed")

    def once(*args):
        real(*args)
        if args[1].search.generation == 2:
            raise InterruptedError

    real = loop.save
    monkeypatch.setattr(loop, "save", once)
    with pytest.raises(UserError, match="go on with --resume"):
        train_evolved(config, tmp_path / "run", command="as typed")
    monkeypatch.undo()
    train_evolved(config, tmp_path / "run", resume=True)
    assert kept(tmp_path / "run") == kept(tmp_path / "whole")


def drawn(setting, number):
    return loop._draw_source(setting, np.random.default_rng(number), number)


def test_synthetic_jobs_are_new_in_every_list():
    config = seeking("distributed", cluster="leaf-spine-8", load=0.9)
    setting = loop.Setting(config, sources_of(config))
    one, other = (loop._draw_source(setting, np.random.default_rng(seed), 0).jobs for seed in (0, 1))
    assert len(one) == len(other) == SYNTHETIC_JOBS and not np.allclose(one.duration_s, other.duration_s)
    assert all(0.81 <= offered_load(jobs, 64) <= 0.99 for jobs in (one, other))


def test_all_times_of_a_list_are_shorter_by_one_factor():
    jobs = load_scenario("leaf-spine-2", "distributed", num_jobs=50, seeds=1).jobs[0]
    shorter = shorten(jobs, np.random.default_rng(0))
    factor = shorter.duration_s / jobs.duration_s
    assert 0.125 <= factor[0] < 1 and np.allclose(factor, factor[0])
    assert np.allclose(shorter.submit_s, factor[0] * jobs.submit_s)
    assert np.allclose(shorter.estimate_s, factor[0] * jobs.estimate_s)
    assert offered_load(shorter, GPUS) == pytest.approx(offered_load(jobs, GPUS))


def test_every_other_list_has_the_usual_forwards(gangs):
    config = seeking(gangs)
    setting = loop.Setting(config, sources_of(config))
    assert [drawn(setting, number).settings.max_forwards for number in range(4)] == [20, 2, 20, 2]
    for config in (seeking(gangs, max_forwards=1), EvolvedConfig(str(gangs), cluster="leaf-spine-2", max_forwards=20)):
        setting = loop.Setting(config, sources_of(config))
        assert len({drawn(setting, number).settings.max_forwards for number in range(4)}) == 1


def test_two_of_four_lists_have_wrong_estimates_where_jobs_wait_by_them(gangs):
    for config, off in ((seeking(gangs), [False, False, True, True]), (EvolvedConfig(str(gangs)), [False] * 4)):
        setting = loop.Setting(config, sources_of(config))
        lists = [drawn(setting, number).jobs for number in range(4)]
        assert [bool((jobs.estimate_ratio != 1).any()) for jobs in lists] == off
        sigmas = [np.log(jobs.estimate_ratio).std() for jobs in lists if (jobs.estimate_ratio != 1).any()]
        assert all(0.2 < sigma < 1.7 for sigma in sigmas) and len(set(sigmas)) == len(sigmas)


def test_worlds_to_learn_from_are_training_worlds_with_several_schedulers():
    config = EvolvedConfig(worlds=("task-tiny:3", "any:8:training"), learn="seeking", max_forwards=20)
    sources = sources_of(config)
    several = [draw_world(Choice("any", training=True), number) for number in range(8)]
    several = [world for world in several if world.schedulers > 1]
    assert len(sources) == 3 + len(several) and 0 < len(several) < 8
    for source, world in zip(sources[3:], several):
        np.testing.assert_array_equal(source.jobs.submit_s, world.jobs.submit_s)
        assert source.settings.models == world.catalogue and source.settings.max_forwards == 20
    setting = loop.Setting(config, sources)
    lists = [drawn(setting, number) for number in range(24)]
    assert len({id(source.cluster) for source in lists}) > 3, "of all worlds"
    for source in lists:
        (world,) = [one for one in sources if one.cluster is source.cluster]
        factor = np.sort(source.jobs.duration_s) / np.sort(world.jobs.duration_s)
        assert np.allclose(factor, factor[0]), "the world's own jobs"
        assert (source.jobs.duration_s / factor[0] != world.jobs.duration_s).any(), "in another order"


def test_where_jobs_wait_is_learned_from_worlds(tmp_path, capsys):
    run = tmp_path / "run"
    options = ["--worlds", "task-tiny:2:training", "--learn", "seeking", "--generations", "1", "--max-forwards", "5"]
    options += ["--load", "1.1"]
    main.main(["train", *options, "--out", str(run)])
    said = capsys.readouterr().out
    assert f"jaxsched evaluate --worlds task-tiny:2 --max-forwards 5 --policies greedy-wait {run}/policy" in said
    card = json.loads((run / POLICY_FOLDER / CARD_FILE).read_text())
    assert card["learned_from"]["jobs"] == 120 and card["config"]["worlds"] == ["task-tiny:2:training"]
    assert card["commands"]["train"] == f"jaxsched train {' '.join(options)} --out {run}"
    assert (
        "Learned from training worlds task-tiny:2:training at 1.1 times their load, jobs are not stopped"
        in card["limits"]
    )
    assert what_is(run) == "a run that learns seeking from training worlds task-tiny:2:training, 1 of 1 generations"
    assert read_saved_config(run) == EvolvedConfig(
        worlds=("task-tiny:2:training",), learn="seeking", max_forwards=5, load=1.1, generations=1
    )
    main.main(["reproduce", str(run / POLICY_FOLDER), "--out", str(tmp_path / "again")])
    assert "what is learned is the same" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--worlds", "any:2", "--workload", "distributed", "--learn", "seeking"],
            "--workload, --worlds: one of them should be given",
        ),
        (["--worlds", "any:2"], "--worlds: is to learn seeking; levels are learned from --workload"),
        (["--worlds", "any:2", "--learn", "network"], "and no --generations or --worlds"),
        (["--worlds", "any:2", "--learn", "seeking", "--until", "0.9"], "--worlds takes no --until: each world"),
        (["--worlds", "llm:2", "--learn", "seeking"], "--worlds llm:2: have one scheduler each, should be several"),
        (["--worlds", "task-tiny:1", "--learn", "seeking", "--max-forwards", "0"], "--max-forwards 0: should be more"),
        (["--worlds", "any:2", "--learn", "seeking", "--load", "0"], "--load: 0 should be a number above 0"),
        (["--worlds", "any:2", "--learn", "seeking", "--gpu-speeds", "A100=2"], "take no --gpu-speeds"),
        (["--learn", "seeking"], "--learn: says how to learn from --workload FILE or --worlds, which are not given"),
        (["--worlds", "such:2", "--learn", "seeking"], "unknown family 'such'"),
        (["--worlds", "any:0", "--learn", "seeking"], "'0' should be a number of worlds from 1"),
    ],
)
def test_bad_worlds_to_learn_from(tmp_path, capsys, options, message):
    with pytest.raises(SystemExit) as end:
        main.main(["train", *options, "--out", str(tmp_path / "run")])
    assert end.value.code == 2 and message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_no_option_of_train_is_ignored_where_numbers_are_learned():
    read = {*here.ONLY_HERE, *here.SCENARIO, *here.COSTS, "seed", "out", "resume", "preemption", "knows"}
    assert {field.name for field in dataclasses.fields(Train)} == read | set(here.NOT_HERE)


@pytest.mark.slow
def test_what_was_learned_is_learned_anew_by_its_card(gangs, tmp_path, capsys):
    folder = train_evolved(seeking(gangs, generations=1), tmp_path / "run", command="as typed")
    options = ["--cluster", "leaf-spine-4", "--num-jobs", "40", "--seeds", "2", "--policies", "pack", str(folder)]
    main.main(["evaluate", *options, "--record", str(folder)])
    capsys.readouterr()
    main.main(["reproduce", str(folder), "--out", str(tmp_path / "again")])
    said = capsys.readouterr().out
    assert "what is learned is the same" in said and said.count(" 1.0000") == 2


@pytest.mark.parametrize(("option", "value"), [("--schedulers", "1"), ("--max-forwards", "0")])
def test_where_jobs_wait_needs_several_schedulers_that_forward(gangs, tmp_path, capsys, option, value):
    options = ["--workload", str(gangs), "--learn", "seeking", "--cluster", "leaf-spine-2", "--schedulers", "2"]
    with pytest.raises(SystemExit) as end:
        main.main(["train", *options, "--out", str(tmp_path / "run"), option, value])
    assert end.value.code == 2 and f"{option} {value}: should be more" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_that_finds_nothing_better_says_so(gangs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(loop, "costs", lambda plays, policies, _: np.ones((len(plays), len(policies))))
    options = ["--workload", str(gangs), "--learn", "seeking", "--cluster", "leaf-spine-2", "--schedulers", "2"]
    main.main(["train", *options, "--generations", "1", "--out", str(tmp_path / "run")])
    assert "nothing better than where learning starts" in capsys.readouterr().out


def test_all_trainings_are_judged_by_the_same_lists(config):
    """Whatever their seed."""
    judged = [_judges(dataclasses.replace(config, seed=seed)) for seed in (3, 4)]
    np.testing.assert_array_equal(*judged)
    assert (_judges(dataclasses.replace(config, validation_seed=3)) != judged[0]).any()


def _judges(config):
    setting = loop._setting(config, sources_of(config))
    return np.array([jct_s for _, jct_s in setting.judges])


def test_a_run_from_before_is_refused(whole, tmp_path):
    """Its numbers may have been part of another rule."""
    content = json.loads((whole / STATE_FILE).read_text()) | {"schema": 1}
    (tmp_path / STATE_FILE).write_text(json.dumps(content))
    with pytest.raises(UserError, match="schema 1, this version reads schema 3"):
        read_saved_config(tmp_path)


def test_the_curve_begins_where_learning_does(config, whole):
    card = json.loads((whole / POLICY_FOLDER / CARD_FILE).read_text())
    setting = loop._setting(config, sources_of(config))
    begun = EvolvedState(loop.evolution.begin(config.task.begin), config.task.begin)
    assert card["curve"][0] == [0, pytest.approx(loop._judge(setting, begun)[1])]
    assert [number for number, _ in card["curve"]] == [0, 5, 10, 12]
