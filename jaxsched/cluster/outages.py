"""When servers are out: drawn from rates, or read from a file (docs/semantics.md, section 11).

The file is CSV: `server,from_s,to_s`, the server by its name in the inventory (`server0`, `server1`, ... where it names
none), seconds from the start of the simulation.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64

from jaxsched.errors import UserError
from jaxsched.io.csv_file import read_table
from jaxsched.io.files import plain_number, shorten

COLUMNS = ("server", "from_s", "to_s")
MOST = 1_000_000  # outages in all
LONGEST_S = 1e12
SHORTEST_H, LONGEST_H = 1e-6, 1e9  # of the means of rates
_STREAM = 22  # sets these draws apart from others with the same seed
_AT_ONCE = 64  # draws


@dataclasses.dataclass(frozen=True, eq=False)
class Outages:
    """Servers that are out from one time to another."""

    server: Int64[np.ndarray, "O"]  # row of the inventory
    from_s: Float64[np.ndarray, "O"]
    to_s: Float64[np.ndarray, "O"]

    def __len__(self) -> int:
        return len(self.server)

    def __repr__(self) -> str:
        return f"{len(self):,} outages of {len(np.unique(self.server)):,} servers"


@dataclasses.dataclass(frozen=True)
class Rates:
    """Of servers that fail by themselves: mean hours up and mean hours out, both exponential."""

    mtbf_h: float
    mttr_h: float


def parse_rates(text: str) -> Rates:
    """The rates of `MTBF_H,MTTR_H`. UserError unless these are two positive numbers."""
    found = [plain_number(part.strip()) for part in text.split(",")]
    if len(found) != 2 or any(map(math.isnan, found)):
        raise UserError(
            f"failures: {shorten(text)!r} should be MTBF,MTTR: mean hours up and mean hours out, such as 1000,4"
        )
    mtbf_h, mttr_h = found
    for name, value in (("mean hours up", mtbf_h), ("mean hours out", mttr_h)):
        if not SHORTEST_H <= value <= LONGEST_H:
            raise UserError(
                f"failures: the {name} of a server are {value:g}, should be from {SHORTEST_H:g} to {LONGEST_H:g}"
            )
    return Rates(mtbf_h, mttr_h)


def draw_outages(servers: int, rates: Rates, span_s: float, seed: int) -> Outages:
    """The outages of each of so many servers that begin within `span_s`.

    Those of a server depend on the seed and on its number only: neither on the other servers nor on the span. UserError
    if there would be more than `MOST`.
    """
    expected = servers * span_s / 3600 / (rates.mtbf_h + rates.mttr_h)
    if expected > MOST:
        raise UserError(
            f"failures: {rates.mtbf_h:g},{rates.mttr_h:g} would give about {expected:,.0f} outages in {span_s:,.0f} s, "
            f"at most {MOST:,} are simulated; take longer times, or end the run with horizon_s"
        )
    found = [_of_server(np.random.default_rng((_STREAM, seed, row)), rates, span_s) for row in range(servers)]
    rows = np.repeat(np.arange(servers), [len(times) for times in found])
    times = np.concatenate([np.zeros((0, 2)), *found])
    return Outages(rows, times[:, 0], times[:, 1])


def _of_server(rng: np.random.Generator, rates: Rates, span_s: float) -> Float64[np.ndarray, "O 2"]:
    """From and to, in turn."""
    times, last_s = np.zeros((0, 2)), 0.0
    while last_s <= span_s:
        steps = rng.standard_exponential((_AT_ONCE, 2)) * (np.array([rates.mtbf_h, rates.mttr_h]) * 3600)
        new = last_s + np.cumsum(steps).reshape(-1, 2)
        times, last_s = np.concatenate([times, new]), float(new[-1, 1])
    return times[times[:, 0] <= span_s]


def read_outages(path: str | Path, names: Sequence[str]) -> Outages:
    """The outages of a file, of servers with these names. UserError with file, line and field on a mistake."""
    table = read_table(path)
    if set(table.header) != set(COLUMNS):
        found = shorten(",".join(table.header), 200)
        raise UserError(f"{path}, line 1: the columns {found!r} should be {','.join(COLUMNS)}")
    if len(table.rows) > MOST:
        raise UserError(f"{path}: {len(table.rows):,} outages, at most {MOST:,} are simulated")
    number = {name: row for row, name in enumerate(names)}
    server, spans = [], []
    for line, cells in table.rows:
        row = {name: cell.strip() for name, cell in zip(table.header, cells)}
        where = f"{path}, line {line}"
        if row["server"] not in number:
            raise UserError(
                f"{where}, server: {shorten(row['server'])!r} should be a server of the cluster, such as {names[0]!r}"
            )
        from_s, to_s = (_seconds(where, field, row[field]) for field in COLUMNS[1:])
        if to_s <= from_s:
            raise UserError(f"{where}, to_s: {row['to_s']!r} should be after from_s, {row['from_s']}")
        server.append(number[row["server"]])
        spans.append((from_s, to_s))
    times = np.array(spans, np.float64).reshape(-1, 2)
    return Outages(np.array(server, np.int64), times[:, 0], times[:, 1])


def _seconds(where: str, field: str, text: str) -> float:
    """A number of seconds."""
    value = plain_number(text)
    if not 0.0 <= value <= LONGEST_S:
        raise UserError(f"{where}, {field}: {shorten(text)!r} should be a number of seconds from 0 to {LONGEST_S:g}")
    return value
