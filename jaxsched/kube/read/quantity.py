"""Kubernetes quantities: `500m`, `1e3`, `16Gi` (apimachinery, `pkg/api/resource/quantity.go`)."""

import re
from fractions import Fraction

from jaxsched.errors import UserError

_QUANTITY = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)(?:([eE][+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)
_SCALE = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
_SCALE |= {name: Fraction(1000) ** (power + 1) for power, name in enumerate("kMGTPE")}
_SCALE |= {f"{name}i": Fraction(1024) ** (power + 1) for power, name in enumerate("KMGTPE")}
LARGEST = 2**62  # units or milli-units; above it the ledger's int64 sums could overflow


def parse_quantity(value: object) -> Fraction:
    """The exact value of a quantity, at least 0. UserError with the text for anything else."""
    text = str(value).strip() if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""
    match = _QUANTITY.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        raise UserError(
            f"quantity {str(value)[:64]!r}: should be a number with an optional suffix, e.g. 500m, 1e3, 16Gi"
        )
    sign, digits, exponent, suffix = match.groups()
    number = Fraction(digits) * (Fraction(10) ** int(exponent[1:]) if exponent else _SCALE[suffix or ""])
    if sign == "-" and number:
        raise UserError(f"quantity {text!r}: is negative, should be at least 0")
    return number


def to_units(value: object, per_unit: int = 1) -> int:
    """A quantity in whole units (`per_unit` = 1000: milli-units), rounded up. UserError if it is malformed or huge."""
    number = parse_quantity(value) * per_unit
    units = -(-number.numerator // number.denominator)
    if units > LARGEST:
        raise UserError(f"quantity {value!r}: is more than 2^62 {'milli-' if per_unit == 1000 else ''}units")
    return units


def resource_units(name: str, value: object) -> int:
    """How the ledger counts a resource: CPU in milli-cores, everything else in whole units, rounded up."""
    return to_units(value, 1000 if name == "cpu" else 1)
