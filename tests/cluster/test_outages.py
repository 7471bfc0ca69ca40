import numpy as np
import pytest

from jaxsched.cluster.outages import draw_outages, parse_rates, read_outages
from jaxsched.errors import UserError

HEADER = "server,from_s,to_s\n"
RATES = parse_rates("100,4")


def test_means_are_those_asked_for():
    found = draw_outages(50, RATES, 5000 * 3600.0, seed=1)
    assert np.mean(found.to_s - found.from_s) / 3600 == pytest.approx(4, rel=0.06)
    assert len(found) == pytest.approx(50 * 5000 / 104, rel=0.06)
    for server in range(50):
        mine = found.server == server
        assert (found.from_s[mine][1:] > found.to_s[mine][:-1]).all()


def test_outages_of_a_server_depend_on_nothing_but_its_number_and_the_seed():
    few, many = draw_outages(2, RATES, 1e6, seed=3), draw_outages(5, RATES, 4e6, seed=3)
    for server in range(2):
        mine = few.from_s[few.server == server]
        assert len(mine) > 1
        np.testing.assert_array_equal(mine, many.from_s[many.server == server][: len(mine)])
    other = draw_outages(2, RATES, 1e6, seed=4)
    assert other.from_s[0] != few.from_s[0]


@pytest.mark.parametrize(
    "text", ["", "100", "100,0", "0,4", "-1,4", "100,nan", "100,inf", "a,b", "1,2,3", "1_0,4", "\u0661,4"]
)
def test_rates_that_are_none(text):
    with pytest.raises(UserError, match="failures: "):
        parse_rates(text)


def test_too_many_are_refused():
    with pytest.raises(UserError, match="at most 1,000,000"):
        draw_outages(1000, parse_rates("0.1,0.1"), 1e9, 0)


def test_a_file(tmp_path):
    path = tmp_path / "o.csv"
    path.write_text(HEADER + "b,10,20\na,0,5.5\n")
    found = read_outages(path, ("a", "b"))
    assert found.server.tolist() == [1, 0] and found.from_s.tolist() == [10, 0] and found.to_s.tolist() == [20, 5.5]
    assert repr(found) == "2 outages of 2 servers"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("server,from_s\na,1\n", "line 1, the columns|line 1: the columns"),
        (HEADER + "a,1,2\nc,1,2\n", "line 3, server: 'c' should be a server"),
        (HEADER + "a,5,5\n", "line 2, to_s: '5' should be after from_s, 5"),
        (HEADER + "a,-1,5\n", "line 2, from_s"),
        (HEADER + "a,1,nan\n", "line 2, to_s"),
        (HEADER + "a,1,1_0\n", "line 2, to_s"),
        (HEADER + "a,\u0661,5\n", "line 2, from_s"),
    ],
)
def test_mistakes_in_a_file(tmp_path, text, wanted):
    path = tmp_path / "o.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=wanted):
        read_outages(path, ("a", "b"))
