"""Numbers by which jobs are sent to other partitions, on disk and by name."""

import dataclasses
import json

import numpy as np
import pytest

from jaxsched.cli.check import what_is
from jaxsched.cli.evaluate import Evaluate
from jaxsched.env.knowledge import ESTIMATES
from jaxsched.errors import UserError
from jaxsched.io.cards import CARD_FILE
from jaxsched.policies.evolved import RULES, SEEKING, policy_of, save
from jaxsched.policies.registry import parse
from jaxsched.policies.spec import BY_HAND, SeekWeights
from jaxsched.semantics import SEEK_INPUTS as COUNT
from tests.oracle import seeking

PLAYED = RULES[SEEKING]
DRAWN = SeekWeights(tuple(np.random.default_rng(0).normal(size=COUNT).astype(np.float32).tolist()))


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / "policy", DRAWN, {"limits": "none"})
    return tmp_path / "policy"


def test_a_folder_is_the_policy_of_its_numbers(folder):
    policy = parse(folder)
    assert policy.spec.seek == DRAWN and policy.spec == policy_of(DRAWN, PLAYED, "any").spec
    assert policy.requires == ESTIMATES and policy.name == str(folder)
    assert not policy.is_rule and policy_of(BY_HAND, PLAYED, "any").is_rule
    assert what_is(folder) == "a policy that seeks"


def test_cards_from_before_rules_stood_in_them_are_refused(folder):
    """They were part of another rule."""
    path = folder / CARD_FILE
    card = json.loads(path.read_text())
    assert card.pop("rule") == PLAYED
    path.write_text(json.dumps(card))
    with pytest.raises(UserError, match="missing required field `rule`"):
        parse(folder)


@pytest.mark.parametrize("rule", ["nonsense", "pack:sjf", "greedy-wait:p-1"])
def test_a_wrong_rule_of_a_card_is_told_with_its_folder(folder, rule):
    path = folder / CARD_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rule": rule}))
    with pytest.raises(UserError, match=rf"^seeking {folder}: {CARD_FILE}: rule: "):
        parse(folder)


def test_by_hand_is_an_option_of_rules():
    rule, plain = parse(f"{PLAYED}:seek"), parse(PLAYED)
    assert rule.spec == dataclasses.replace(plain.spec, seek=BY_HAND) and plain.spec.seek is None
    assert rule.is_rule and parse("pack:fifo+backfill+spread+seek").requires == ESTIMATES
    assert BY_HAND.numbers == seeking.BY_HAND


def test_folder_and_rule_are_played_beside_what_does_not_seek(folder):
    options = dict(cluster="leaf-spine-4", schedulers=4, num_jobs=200, seeds=1, load=1.2, workload="distributed")
    rows = Evaluate(**options, policies=(PLAYED, f"{PLAYED}:seek", str(folder))).compared().rows
    assert [row.baseline for row in rows] == [True, True, False]
    assert len({row.figures.jct_mean_s for row in rows}) == 3


@pytest.mark.parametrize(
    "spec",
    [
        "pack:sjf+backfill+seek",
        "pack:sjf+spread+seek",
        "greedy-wait:forward+seek",
        "random:spread+seek",
        "pack:mlfq+backfill+preempt+spread+seek",
    ],
)
def test_seek_needs_spread_and_backfill(spec):
    with pytest.raises(UserError, match="'seek' needs 'spread', 'backfill' and an order, and no 'preempt'"):
        parse(spec)


def test_a_search_does_not_seek():
    with pytest.raises(UserError, match="'seek' does not go with a search"):
        parse("search:greedy-wait:sjf+spread+seek+n4")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"numbers": [0.0] * (COUNT - 1)}, "numbers"),
        ({"numbers": [0.0] * (COUNT + 1)}, "numbers"),
        ({"numbers": [1e5] * COUNT}, "numbers.0: 100000"),
        ({"numbers": ["1"] * COUNT}, "numbers.0"),
        ({"width": 4}, "width"),
    ],
)
def test_what_is_wrong_in_a_card_is_said(folder, change, said):
    card = json.loads((folder / CARD_FILE).read_text())
    (folder / CARD_FILE).write_text(json.dumps(card | change))
    with pytest.raises(UserError, match=r"card\.json") as error:
        parse(folder)
    assert said in str(error.value)


@pytest.mark.parametrize("numbers", [(0.0,) * (COUNT - 1), (float("nan"),) * COUNT, (2e4,) * COUNT])
def test_numbers_out_of_range_are_refused(numbers):
    with pytest.raises(UserError, match="seek: "):
        SeekWeights(numbers)
