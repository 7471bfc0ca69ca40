"""Rows as records, ranked and drawn: the same from JSON lines and Parquet."""

import importlib.util
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from jaxsched.cli.main import main
from jaxsched.errors import UserError
from jaxsched.evaluation.metrics import mean_interval
from jaxsched.io.cards import digest, named_files
from jaxsched.sweeps.records import VALIDATION, doubts, figures_of, read_records, record_of, with_references
from jaxsched.sweeps.tables import curves, curves_of_runs, group_along_axis, rank_groups
from tests.support.commands import refused

ROOT = Path(__file__).parents[2]
RATIO = "philly-like at 0.9: ratio"
RATIOS = {0.9: [0.8, 0.7, 0.9], 0.95: [0.75, 0.65, 0.85], 0.99: [0.8, None, 0.8]}


def row(gamma: float, seed: int, ratio: float | None) -> dict:
    jct = 1000.0 * (ratio or 2.0)
    test = {
        "jct_mean_s": jct,
        "jct_p99_s": 3 * jct,
        "ratio": ratio,
        "best_baseline": "pack",
        "baselines_jct_s": {"pack": 1000.0},
    }
    return {
        "id": f"{gamma} {seed}",
        "point": f"gamma={gamma:g} seed={seed}",
        "group": f"gamma={gamma:g}",
        "variant": "",
        "changes": {"ppo.gamma": gamma},
        "seed": seed,
        "validation": {"best_jct_s": jct, "curve": [{"chunk": 2, "jct_s": 2 * jct}, {"chunk": 4, "jct_s": jct}]},
        "tests": {"philly-like at 0.9": test},
        "training": {"wall_s": 2.0, "cpu_s": 1.0, "chunk_wall_s": 0.5, "chunk_cpu_s": 0.25},
    }


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setattr("jaxsched.cli.main.enable_cache", lambda: None)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [row(gamma, seed, ratio) for gamma, ratios in RATIOS.items() for seed, ratio in enumerate(ratios)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_groups_are_ranked_and_compared_seed_by_seed(rows):
    best, second, last = rank_groups(read_records(rows), RATIO)
    assert (best.group, second.group, last.group) == ("gamma=0.95", "gamma=0.9", "gamma=0.99")
    assert best.mean == pytest.approx(0.75) and best.interval == mean_interval(np.array(RATIOS[0.95]))
    pairs = np.array(RATIOS[0.9]) / np.array(RATIOS[0.95]) - 1
    assert second.to_best == pytest.approx(pairs.mean()) and second.to_best_interval == pytest.approx(
        mean_interval(pairs)
    )
    assert second.to_best_interval[0] > 0 > second.mean - best.interval[1]  # pairs tell apart what intervals do not
    assert np.isnan(last.mean) and np.isnan(last.to_best)


def test_the_table_names_ranks_and_intervals(capsys, rows, tmp_path):
    main(["table", str(rows), "--markdown", str(tmp_path / "table.md")])
    lines = capsys.readouterr().out.splitlines()
    first, second, last = (line.split() for line in lines[2:5])
    assert first[:6] == ["gamma=0.95", "1", "3", "0.750", "±", "0.248"] and second[1] == "2" and "+6.7" in second
    assert last[1] == "–" and "| gamma=0.9 |" in (tmp_path / "table.md").read_text()
    main(["table", str(rows), "--by", VALIDATION])
    assert capsys.readouterr().out.splitlines()[4].split()[:2] == ["gamma=0.99", "3"]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_records_come_back_as_they_were(capsys, rows, tmp_path, suffix):
    if suffix == "parquet":
        pytest.importorskip("pyarrow", reason="needs the extra tables")
    main(["table", str(rows)])
    table = capsys.readouterr().out
    path = tmp_path / f"records.{suffix}"
    main(["table", str(rows), "--rows", str(path)])
    capsys.readouterr()
    assert read_records(path) == read_records(rows)
    main(["table", str(path)])
    assert capsys.readouterr().out == table


def test_lines_along_an_axis_and_over_training(rows):
    records = read_records(rows)
    (line,) = group_along_axis(rank_groups(records, VALIDATION), "ppo.gamma").values()
    assert [spot.x for spot in line] == [0.9, 0.95, 0.99] and line[0].mean == pytest.approx(800.0)
    drawn = curves(records)
    assert list(drawn) == ["gamma=0.9", "gamma=0.95", "gamma=0.99"]
    assert [(spot.x, spot.mean) for spot in drawn["gamma=0.9"]] == [
        (2, pytest.approx(1600.0)),
        (4, pytest.approx(800.0)),
    ]


def test_other_axes_and_variants_are_lines_of_their_own():
    records = []
    for variant, width in (("a", 16), ("a", 32), ("b", 16)):
        changes = {"network.width": width, "ppo.gamma": 0.9}
        group = f"{variant} width={width} gamma=0.9"
        records.append(record_of(row(0.9, 0, 0.5) | {"variant": variant, "changes": changes, "group": group}))
    lines = group_along_axis(rank_groups(records, RATIO), "network.width")
    assert {name: [spot.x for spot in line] for name, line in lines.items()} == {
        "a gamma=0.9": [16, 32],
        "b gamma=0.9": [16],
    }


def test_axes_that_end_alike_are_two():
    """Before: all points were one line."""
    records = []
    for jobs, length in itertools.product((0, 1), (1, 512)):
        changes = {"reward.jobs": jobs, "workload.jobs": length}
        group = f"jobs={jobs} jobs={length}"
        one = row(0.9, 0, 0.5) | {"changes": changes, "group": group, "point": group, "id": group}
        records.append(record_of(one))
    for axis, lines in (("workload.jobs", ["jobs=0", "jobs=1"]), ("reward.jobs", ["jobs=1", "jobs=512"])):
        found = group_along_axis(rank_groups(records, RATIO), axis)
        assert sorted(found) == lines and all(
            len({spot.x for spot in line}) == len(line) == 2 for line in found.values()
        )


def test_rows_of_a_sweep_that_was_changed_are_not_mixed(capsys, rows):
    """Before: seeds of one configuration were averaged with those of another."""
    with rows.open("a") as file:
        file.write(json.dumps(row(0.9, 1, 0.7) | {"id": "new"}) + "\n")
    assert "has rows of two configurations of 'gamma=0.9 seed=1'" in refused(capsys, "table", rows)


def test_what_a_row_depends_on_is_what_files_hold(tmp_path):
    """Before: with other jobs in the trace, rows of the old ones were compared with new ones."""
    trace = tmp_path / "trace.csv"
    trace.write_text("one")
    first, plain = digest([{"workload": str(trace)}]), digest(["pack", 3])
    assert digest([{"workload": str(trace)}]) == first
    trace.write_text("other")
    os.utime(trace, (1, 1))
    assert digest([{"workload": str(trace)}]) != first and digest(["pack", 3]) == plain


@pytest.mark.parametrize("more", [[], ["--x", "ppo.gamma"], ["--curves"], ["--by", VALIDATION]], ids=str)
def test_figures_are_drawn(rows, tmp_path, more):
    pytest.importorskip("matplotlib")
    main(["plot", str(rows), "--out", str(tmp_path / "figure.svg"), *more])
    assert "</svg>" in (tmp_path / "figure.svg").read_text()


def test_mistakes_are_one_line(capsys, rows, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "other.jsonl").write_text('{"chunk": 1}\n')
    assert "--by 'speed': should be one of" in refused(capsys, "table", rows, "--by", "speed")
    assert "no such file" in refused(capsys, "table", tmp_path / "none.jsonl")
    assert "has no rows" in refused(capsys, "table", tmp_path / "empty.jsonl")
    assert "is no row of a sweep" in refused(capsys, "table", tmp_path / "other.jsonl")
    assert "should be a sweep" in refused(capsys, "table", tmp_path / "rows.csv")
    assert "should end in .jsonl or .parquet" in refused(capsys, "table", rows, "--rows", tmp_path / "rows.csv")
    assert "should be an axis" in refused(capsys, "plot", rows, "--out", tmp_path / "a.svg", "--x", "gamma")
    assert "leave --x and --by out" in refused(
        capsys, "plot", rows, "--out", tmp_path / "a.svg", "--curves", "--by", "x"
    )
    assert "should end in" in refused(capsys, "plot", rows, "--out", tmp_path / "figure.txt")
    if importlib.util.find_spec("pyarrow") is None:
        assert "jaxsched[tables]" in refused(capsys, "table", rows, "--rows", tmp_path / "rows.parquet")


def with_figures(row: dict, untrained: list[float], trained: list[float], decisions: float = 2e5) -> dict:
    """The row with what is known of the policy before training and of its prior."""
    (name,) = row["tests"]
    test = {"jct_mean_s": 1.0, "jct_p99_s": 1.0, "ratio": 0.5, "jct_by_list_s": trained}
    test |= {"best_baseline": "pack", "baselines_jct_s": {"pack": 1.0}}
    before = test | {"ratio": sum(untrained), "jct_by_list_s": untrained}
    known = test | {"untrained": before, "prior": test | {"policy": "greedy-wait:sjf+spread", "ratio": 0.25}}
    validation = {"best_jct_s": 7.0, "curve": [{"chunk": 0, "jct_s": 9.0}, {"chunk": 2, "jct_s": 7.0}]}
    training = row["training"] | {"decisions": decisions}
    return row | {"tests": {name: known}, "validation": validation, "training": training}


def test_tables_have_untrained_policies_and_priors():
    """One row for all groups that begin alike; of others one for each."""
    own = [with_figures(row(gamma, seed, 0.5), [0.1, 0.2 + seed], [1.0]) for gamma in (0.9, 0.95) for seed in (0, 1)]
    groups = list(dict.fromkeys(one["group"] for one in with_references(own)))
    assert groups == ["gamma=0.9", "gamma=0.95", "untrained", "prior: greedy-wait:sjf+spread"]
    assert [one["seed"] for one in with_references(own)] == [0, 1] * 4
    records = [record_of(one) for one in with_references(own)]
    places = {place.group: place for place in rank_groups(records, RATIO)}
    np.testing.assert_allclose(places["untrained"].values, [0.3, 1.3])
    assert next(iter(places)) == "prior: greedy-wait:sjf+spread"
    assert {one[VALIDATION] for one in records if one["group"] == "untrained"} == {9.0}
    assert [spot.x for spot in curves(records)["gamma=0.9"]] == [0, 2] and "untrained" not in curves(records)
    own[2] = with_figures(row(0.95, 0, 0.5), [0.7, 0.2], [1.0])
    groups = list(dict.fromkeys(one["group"] for one in with_references(own)))
    assert groups[2:4] == ["untrained (gamma=0.9)", "untrained (gamma=0.95)"] and len(groups) == 5
    assert with_references([row(0.9, 0, 0.5)]) == [row(0.9, 0, 0.5)], "rows from before have neither"


def test_a_sweep_in_which_nothing_was_learned_says_so():
    def said(*pairs: tuple[list[float], list[float]], **more: float) -> list[str]:
        return list(doubts([with_figures(row(0.9, seed, 0.5), *pair, **more) for seed, pair in enumerate(pairs)]))

    (alike,) = said(([5.0, 7.0], [5.0, 7.0]), ([6.0, 7.0], [6.0, 7.0]))
    assert alike.startswith("gamma=0.9: philly-like at 0.9: trained and untrained decide alike")
    assert "do not tell" in said(([5.0, 7.0], [5.0, 7.1]), ([6.0, 7.0], [6.0, 6.9]))[0]
    assert not said(([5.0], [4.0]), ([6.0], [4.8]))
    (few,) = said(([5.0], [4.0]), ([6.0], [4.8]), decisions=700.0)
    assert few == "gamma=0.9: 700 decisions of a training are few to learn from"


def test_figures_have_the_ratios_first(rows):
    assert figures_of(read_records(rows))[0] == RATIO


WRONG = (None, 5, -1, True, "x", [], {}, [1], [{}], {"a": 1}, 1e300)


def spoilt(line: dict):
    """The line with each of its values, two levels down, wrong or gone."""
    for key, value in line.items():
        yield {name: one for name, one in line.items() if name != key}
        yield from ({**line, key: wrong} for wrong in WRONG)
        if isinstance(value, dict):
            yield from ({**line, key: inner} for inner in spoilt(value))


@pytest.mark.parametrize("records", [False, True])
def test_lines_with_wrong_values_are_refused_or_read(records, tmp_path, capsys):
    """By every command that reads them: one line with the file, or the right table."""
    good = [record_of(row(0.9, 1, 0.5)) if records else row(0.9, 1, 0.5)]
    path, refused_lines = tmp_path / "rows.jsonl", 0
    for wrong in [{}, *spoilt(good[0])]:
        path.write_text("".join(json.dumps(line) + "\n" for line in [*good, wrong]))
        try:
            found = read_records(path)
            rank_groups(found, figures_of(found)[0])
            curves(found)
        except UserError as error:
            refused_lines += 1
            assert str(error).startswith(
                (f"{path}, line 2: is no row of a sweep", "--curves: no chunk", f"{path}: has rows of two")
            )
    assert refused_lines > 60
    path.write_text("{}\n")
    for command in ("table", "plot", "check"):
        assert str(path) in refused(capsys, command, path)


def test_a_sweep_with_a_row_that_is_none(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text("{}\n")
    for option in ("--plan", "--table"):
        said = refused(capsys, "sweep", ROOT / "configs/sweeps/rates.yaml", "--out", tmp_path, option)
        assert said.startswith(f"{tmp_path / 'rows.jsonl'}, line 1") and "id" in said


def test_where_points_run_is_refused_where_none_does(capsys):
    """Before: accepted without effect."""
    for more in (["--on", "slurm"], ["--ask", "mem_gb=1"]):
        for option in ("--plan", "--table"):
            said = refused(capsys, "sweep", ROOT / "configs/sweeps/rates.yaml", option, *more)
            assert said == "--on, --ask: say where points run, and --plan and --table run none; leave them out"


def test_what_a_row_depends_on_is_what_folders_hold(tmp_path, monkeypatch):
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "weights.msgpack").write_bytes(b"1")
    (folder / "card.json").write_text('{"chunk": 1}')
    first = digest([str(folder)])
    (folder / "card.json").write_text('{"chunk": 1, "figures": [2]}')
    assert digest([str(folder)]) == first
    (folder / "weights.msgpack").write_bytes(b"2")
    assert digest([str(folder)]) != first
    monkeypatch.chdir(tmp_path)
    assert not named_files(["policy", "", {"law": "default"}]) and list(named_files(["./policy/../policy"]))
    (folder / "card.json").write_text("no card")
    with pytest.raises(UserError, match=r"policy: card\.json"):
        named_files([str(folder)])


def test_all_tests_together(capsys, tmp_path):
    """Interquartile means by hand, and how likely each is better than untrained."""
    own = [with_figures(row(gamma, seed, 0.5), [1.0], [1.0]) for gamma in (0.9, 0.95) for seed in range(4)]
    for place, ratio in enumerate([0.5, 0.6, 0.8, 9.0, 1.0, 1.0, 1.0, 1.0]):
        own[place]["tests"]["philly-like at 0.9"]["ratio"] = ratio
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in own))
    main(["table", str(path), "--aggregate"])
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    named = {line[0].strip(): [part.strip() for part in line[1:] if part.strip()] for line in lines}
    assert named["gamma=0.9"][2].startswith("0.700 [") and named["gamma=0.9"][3].startswith("0.75 [")
    assert named["gamma=0.95"][2] == "1.000 [1.000, 1.000]" and named["gamma=0.95"][3] == "0.50 [0.500, 0.500]"
    assert named["untrained"][-1] == "–"
    main(["table", str(path), "--aggregate", "--against", "gamma=0.9"])
    assert "better than gamma=0.9" in capsys.readouterr().out
    assert "should be one of 'prior" in refused(capsys, "table", path, "--aggregate", "--against", "x")
    assert "is for --aggregate" in refused(capsys, "table", path, "--against", "untrained")


def test_curves_of_trainings_start_untrained(tmp_path, capsys):
    run = tmp_path / "run"
    (run / "untrained").mkdir(parents=True)
    card = json.loads((ROOT / "checkpoints" / "quickstart" / "card.json").read_text()) | {"validation_jct_s": 50.0}
    (run / "untrained" / "card.json").write_text(json.dumps(card))
    lines = [{"chunk": 1, "decisions": 10}, {"chunk": 2, "decisions": 20, "validation_jct_s": 40.0}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (line,) = curves_of_runs([run]).values()
    assert [(spot.x, spot.mean) for spot in line] == [(0.0, 50.0), (30.0, 40.0)]
    if importlib.util.find_spec("matplotlib") is not None:
        main(["plot", str(run), "--out", str(tmp_path / "curve.svg")])
        assert "</svg>" in (tmp_path / "curve.svg").read_text()
        capsys.readouterr()
        assert "should be the folder of a training" in refused(capsys, "plot", tmp_path, "--out", tmp_path / "a.svg")
        assert "not both" in refused(capsys, "plot", run, tmp_path / "a.yaml", "--out", tmp_path / "a.svg")
        assert "are for sweeps" in refused(capsys, "plot", run, "--curves", "--out", tmp_path / "a.svg")
