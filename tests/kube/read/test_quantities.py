from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsched.errors import UserError
from jaxsched.kube.read.objects import parse_quantity, resource_units, to_units


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", Fraction(1, 2)),
        ("1e3", Fraction(1000)),
        ("1E3", Fraction(1000)),
        ("12E", Fraction(12 * 10**18)),
        ("2Ki", Fraction(2048)),
        ("1.5Gi", Fraction(3 * 2**29)),
        ("100n", Fraction(1, 10**7)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("+3", Fraction(3)),
        ("1e-3", Fraction(1, 1000)),
        (8, Fraction(8)),
        (0.5, Fraction(1, 2)),
        ("-0", Fraction(0)),
    ],
)
def test_known_quantities(text: object, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text", ["", "m", "1 Gi", "1GiB", "0x10", "1e", "nan", "inf", "-1", "1_000", "１", None, True, [], "9" * 100]
)
def test_what_is_no_quantity_is_refused(text: object) -> None:
    with pytest.raises(UserError, match="quantity"):
        parse_quantity(text)


def test_units_are_rounded_up_and_bounded() -> None:
    assert resource_units("cpu", "100u") == 1
    assert resource_units("memory", "1500m") == 2
    with pytest.raises(UserError, match="2\\^62"):
        to_units("9E", 1000)


@given(st.text(max_size=20))
def test_any_text_is_a_number_or_refused(text: str) -> None:
    try:
        assert parse_quantity(text) >= 0
    except UserError as error:
        assert "\n" not in str(error)


@given(st.integers(0, 10**6), st.sampled_from(["", "k", "M", "Ki", "Mi"]))
def test_suffixes_scale(number: int, suffix: str) -> None:
    scale = {"": 1, "k": 1000, "M": 10**6, "Ki": 1024, "Mi": 2**20}[suffix]
    assert to_units(f"{number}{suffix}") == number * scale
