"""Later gangs, drawn from those that came before."""

import numpy as np
import pytest

from jaxsched.errors import UserError
from jaxsched.kube.read.gangs import Gang, form_gangs
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.kube.whatif.forecast import forecast_starts
from jaxsched.kube.whatif.recorded import DAY_S, History, RecordedSpan, cut_into_blocks
from jaxsched.kube.whatif.rollouts import Question
from jaxsched.policies.registry import parse
from tests.kube.snapshots import gang, nodes, snapshot
from tests.kube.whatif.test_forecast import KEY, lasting, running
from tests.support.kube.objects import NOW

SETTINGS = PlanSettings(schedulers=1)
HOUR_S = 3600.0


def came(name: str, ago_s: float, size: int = 4, gpus: int = 8, seconds: float = 600.0, **more) -> Gang:
    pods = snapshot([], gang(name, size, gpus, age_s=ago_s, **lasting(seconds, **more))).pods
    return form_gangs(pods, (), frozenset(), SETTINGS, NOW)[0]


def every(gap_s: float, span_s: float, **more) -> History:
    """A gang every `gap_s`, up to now."""
    gangs = [came(f"h{number}", ago_s, **more) for number, ago_s in enumerate(np.arange(span_s, 0.0, -gap_s))]
    return cut_into_blocks([RecordedSpan(NOW - span_s, NOW, tuple(gangs))])


def test_as_many_come_as_came_and_a_longer_future_only_adds_to_a_shorter() -> None:
    rng = np.random.default_rng(0)
    agos_s = np.sort(rng.uniform(0.0, 24 * HOUR_S, 120))[::-1]
    history = cut_into_blocks(
        [RecordedSpan(NOW - 24 * HOUR_S, NOW, tuple(came(f"h{i}", ago_s) for i, ago_s in enumerate(agos_s)))]
    )
    assert history.span_s == 24 * HOUR_S and len(history.gangs) == 120
    counts = []
    for draw in range(400):
        come, at_s = history.draw(NOW, 12 * HOUR_S, (0, draw))
        counts.append(len(come))
        assert (np.diff(at_s) >= 0.0).all() and 0.0 <= min(at_s) and max(at_s) <= 12 * HOUR_S
        first, first_s = history.draw(NOW, 5.5 * HOUR_S, (0, draw))
        assert (first, first_s) == (come[: len(first)], at_s[: len(first)])
    by_hour = np.diff(history.first)
    of_mean = by_hour.std() * 12 * np.sqrt(1.0 / 12 + 1.0 / 25)  # hours drawn, and how likely each of 24 is
    assert abs(np.mean(counts) - 60.0) < 4.0 * of_mean / np.sqrt(400)
    assert 0.8 < np.std(counts) / of_mean < 1.2


def test_two_days_or_more_stand_for_the_same_time_of_day() -> None:
    """Gangs came in the first two hours of each day; from 10 h to 20 h after that nobody ever did."""
    agos_s = [day * DAY_S - minute * 60.0 for day in (3, 2, 1) for minute in range(0, 120, 10)]
    history = cut_into_blocks(
        [RecordedSpan(NOW - 3 * DAY_S, NOW, tuple(came(f"h{i}", ago_s) for i, ago_s in enumerate(agos_s)))]
    )
    hours = np.concatenate([np.array(history.draw(NOW, DAY_S, (1, draw))[1]) // HOUR_S for draw in range(50)])
    assert set(hours) <= {0.0, 1.0, 2.0, 23.0} and {0.0, 1.0} <= set(hours)
    assert set(np.array(history.draw(NOW + 12 * HOUR_S, DAY_S, (1, 0))[1]) // HOUR_S) <= {11.0, 12.0, 13.0, 14.0}


def test_a_short_history_is_cut_finer_and_an_empty_one_refused() -> None:
    history = every(600.0, 2 * HOUR_S)
    assert history.length_s == 1800.0 and len(history.begin_s) == 4
    with pytest.raises(UserError, match="--history: no gang came"):
        cut_into_blocks([])
    with pytest.raises(UserError, match="no gang came"):
        cut_into_blocks([RecordedSpan(NOW - HOUR_S, NOW, ())])


def starts(history: History | None, policy: str = "pack", held: int = 4, **more) -> tuple:
    """Of a gang of four nodes, while one holds as many of eight nodes for 600 s more, and one four of them for long."""
    pods = [
        *running("r", 1000, 400, count=held),
        *running("s", 9000, 400, first=4),
        *gang("g", 4, 8, **lasting(300, **more)),
    ]
    question = Question(draws=20, error=0.0)
    answer = forecast_starts(snapshot(nodes(8), pods), [parse(policy)], SETTINGS, question, history)[0]
    assert answer.gang.key == KEY.format("g")
    return answer.low_s, answer.median_s, answer.high_s


def test_who_comes_later_delays_only_where_the_policy_lets_it_pass() -> None:
    alone = (600.0, 600.0, 600.0)
    higher = every(900.0, 4 * HOUR_S, spec={"priority": 5})  # at 0, 900, 1800, 2700 s, and they run for 600 s
    assert starts(None) == starts(every(900.0, 4 * HOUR_S)) == alone
    assert starts(higher) == (2400.0, 2400.0, 2400.0)
    assert starts(higher, spec={"priority": 5}) == alone
    small = every(300.0, 4 * HOUR_S, size=1, seconds=4000.0)
    assert starts(small, held=2) == alone
    assert starts(small, "pack:fifo+backfill", held=2)[0] > 600.0  # they take the two nodes that are free


def test_what_may_use_other_nodes_only_is_not_in_the_way() -> None:
    higher = every(900.0, 4 * HOUR_S, spec={"priority": 5, "nodeSelector": {"pool": "other"}})
    assert starts(higher) == (600.0, 600.0, 600.0)


def test_draws_of_later_gangs_are_the_same_under_all_policies() -> None:
    higher = every(900.0, 4 * HOUR_S, spec={"priority": 5})
    assert starts(higher, "pack") == starts(higher, "first-fit")
