"""Tables of levels on disk: what is written is played, and what is wrong in a card is said."""

import json

import numpy as np
import pytest

from jaxsched.cli.check import what_is
from jaxsched.cli.evaluate import Evaluate
from jaxsched.env.knowledge import NOTHING
from jaxsched.env.levels import LevelTable
from jaxsched.errors import UserError
from jaxsched.io.cards import CARD_FILE
from jaxsched.policies.evolved import LEVELS, RULES, policy_of, save
from jaxsched.policies.registry import parse

# What `mlfq` does, were its queues a little longer.
QUEUES = LevelTable(tuple((0,) * 7 + tuple(np.repeat(range(1, 8), 2).tolist()) for _ in range(8)))


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / "policy", QUEUES, {"limits": "none"})
    return tmp_path / "policy"


def test_a_folder_is_the_policy_of_its_table(folder):
    policy = parse(folder)
    assert policy.spec == policy_of(QUEUES, RULES[LEVELS], "any").spec
    assert policy.requires == NOTHING and policy.name == str(folder)
    assert what_is(folder) == "a table of levels, a policy"


def test_a_folder_is_played_beside_rules(folder):
    rules = ("pack:mlfq+backfill+consolidate+preempt+spread", str(folder), "pack:backfill+consolidate+spread")
    options = dict(policies=rules, cluster="leaf-spine-2", num_jobs=150, seeds=1, load=1.2, workload="distributed")
    rows = Evaluate(**options, preemption="on", knows="nothing").compared().rows
    assert [row.baseline for row in rows] == [True, False, True]
    mlfq, learned, fifo = (row.figures.jct_mean_s for row in rows)
    assert abs(learned / mlfq - 1) < abs(fifo / mlfq - 1) / 2
    assert rows[1].figures.stops_mean > 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"levels": [[1] * 21] * 7}, "levels"),
        ({"levels": [[1] * 20] * 8}, "levels"),
        ({"levels": [[0.5] * 21] * 8}, "levels.0.0: 0.5 should be of type int"),
        ({"levels": [[100_001] * 21] * 8}, "levels.0.0: 100001 should be of type int <= 100000"),
        ({"margin": -1}, "margin: -1 should be of type int >= 0"),
        ({"width": 4}, "width"),
        ({"what": "weights"}, "is of 'weights', should be of 'checkpoint'"),
    ],
)
def test_what_is_wrong_in_a_card_is_said(folder, change, said):
    card = json.loads((folder / CARD_FILE).read_text())
    (folder / CARD_FILE).write_text(json.dumps(card | change))
    with pytest.raises(UserError, match=r"card\.json") as error:
        parse(folder)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("table", [((0,) * 21,) * 7, ((0,) * 22,) * 8, ((-100_001,) * 21,) * 8])
def test_a_table_of_another_shape_or_range_is_refused(table):
    with pytest.raises(UserError, match="levels: should be"):
        LevelTable(table)
