"""What policies make of many worlds: figures, tables, a performance profile, JSON."""

import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

from jaxsched.evaluation.figures import performance_profile
from jaxsched.evaluation.metrics import Interval, mean_interval
from jaxsched.evaluation.tables import align, known_interval, make_plain, markdown_table, number
from jaxsched.simulation.settings import Settings
from jaxsched.worlds.families import Choice
from jaxsched.worlds.world import PLAIN, World

NEAR = 1.02  # of the best plain rule's mean JCT
WORST = 5  # worlds of each policy
FACTORS = (1.0, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0)  # of the performance profile's table


class Played(NamedTuple):
    """What came of one policy on one world."""

    jct_mean_s: float  # NaN unless all jobs are accounted for
    complete: bool  # every job has finished
    unstable: bool  # the queue grew as long as jobs arrived
    wall_s: float  # of the run


@dataclasses.dataclass(frozen=True)
class WorldResult:
    """One world and what came of every policy on it."""

    name: str
    about: dict[str, Any]  # for reports: servers, gpus, schedulers, topology, jobs, load
    bound_s: float  # no policy's mean JCT is below
    played: dict[str, Played]  # by policy


@dataclasses.dataclass(frozen=True, repr=False)
class WorldsComparison:
    """Policies on the same worlds, in the order they were named; arrays have a row per policy, a column per world."""

    choice: Choice
    worlds: list[World]
    results: list[WorldResult]
    settings: Settings
    versions: dict[str, str]
    seeds: int = 1  # job lists of each world
    asked: tuple[str, ...] = ()  # `policies` as the command line has them

    @property
    def policies(self) -> tuple[str, ...]:
        """Their names; those of the plain rules that were not asked for come last."""
        return tuple(self.results[0].played)

    @functools.cached_property
    def jct_s(self) -> Float64[np.ndarray, "policies worlds"]:
        """Mean JCT; NaN where not all jobs are accounted for."""
        return self._column("jct_mean_s")

    @property
    def complete(self) -> Bool[np.ndarray, "policies worlds"]:
        """Where every job has finished."""
        return self._column("complete").astype(bool)

    @property
    def unstable(self) -> Bool[np.ndarray, "policies worlds"]:
        """Where the policy did not keep up with the arrivals."""
        return self._column("unstable").astype(bool)

    @property
    def wall_s(self) -> Float64[np.ndarray, "policies worlds"]:
        """Seconds that the runs took."""
        return self._column("wall_s")

    @property
    def bound_s(self) -> Float64[np.ndarray, "worlds"]:
        """The lower bounds."""
        return np.array([result.bound_s for result in self.results])

    @functools.cached_property
    def ratio(self) -> Float64[np.ndarray, "policies worlds"]:
        """Mean JCT over that of the best plain rule on the same world; NaN where one of them is."""
        plain = self.jct_s[[self.policies.index(name) for name in PLAIN]]
        best = np.where(np.isnan(plain), np.inf, plain).min(0)
        return self.jct_s / np.where(np.isfinite(best), best, np.nan)

    def _column(self, name: str) -> Float64[np.ndarray, "policies worlds"]:
        return np.array(
            [[getattr(one.played[policy], name) for one in self.results] for policy in self.policies], float
        )

    def __repr__(self) -> str:
        return report_text(self)


class Summary(NamedTuple):
    """One policy over all worlds; means are geometric, over the worlds where it has a figure."""

    ratio: float  # to the best plain rule of each world
    ratio_ci95: Interval  # over worlds
    worst: float
    near: float  # share of all worlds with at most `NEAR`
    complete: float  # share of the worlds in which every job has finished
    to_bound: float
    unstable: int  # worlds
    wall_s: float  # of a run, the mean over worlds


def summarise(comparison: WorldsComparison, policy: str) -> Summary:
    """The figures of one policy. The interval is that of Student's t over the logarithms of the worlds' ratios."""
    row = comparison.policies.index(policy)
    ratios = comparison.ratio[row]
    logs = np.log(ratios[np.isfinite(ratios)])
    bounds = np.log((comparison.jct_s[row] / comparison.bound_s)[np.isfinite(comparison.jct_s[row])])
    low, high = mean_interval(logs)
    return Summary(
        ratio=_mean(logs),
        ratio_ci95=(math.exp(low), math.exp(high)),
        worst=float(np.exp(logs.max())) if len(logs) else math.nan,
        near=float((ratios <= NEAR).mean()),
        complete=float(comparison.complete[row].mean()),
        to_bound=_mean(bounds),
        unstable=int(comparison.unstable[row].sum()),
        wall_s=float(comparison.wall_s[row].mean()),
    )


def _mean(logs: Float64[np.ndarray, "n"]) -> float:
    return math.exp(float(logs.mean())) if len(logs) else math.nan


def within(comparison: WorldsComparison, factors: Float64[np.ndarray, "F"]) -> Float64[np.ndarray, "policies F"]:
    """The performance profile (Dolan & Moré, 2002): the share of worlds in which each policy is within a factor.

    The factor is of the least mean JCT that any of the compared policies has in that world. A policy that did not
    finish all jobs of a world is within no factor there.
    """
    known = np.where(np.isnan(comparison.jct_s), np.inf, comparison.jct_s)
    over = np.divide(known, known.min(0), out=np.full_like(known, np.inf), where=np.isfinite(known))
    return (over[:, :, None] <= factors).mean(1)


def worst_worlds(comparison: WorldsComparison, policy: str) -> list[int]:
    """Places of the `WORST` worlds of a policy: those that it did not finish, then those of the largest ratios."""
    ratios = comparison.ratio[comparison.policies.index(policy)]
    return np.argsort(-np.where(np.isnan(ratios), np.inf, ratios), kind="stable")[:WORST].tolist()


def table(comparison: WorldsComparison) -> tuple[list[str], list[list[str]]]:
    """Column names, and one line of text per policy, the least ratio first."""
    names = ["policy", "to best plain", "95% interval", "worst", f"<= {NEAR}", "all jobs", "to bound"]
    names += ["unstable", "s/run"]
    found = {name: summarise(comparison, name) for name in comparison.policies}
    order = sorted(found, key=lambda name: (math.isnan(found[name].ratio), found[name].ratio))

    def line(name: str, one: Summary) -> list[str]:
        low, high = one.ratio_ci95
        return [
            name + (" *" if name in PLAIN else "") + (" †" if one.complete < 1 else ""),
            number(one.ratio, 3),
            "–" if math.isnan(low) else f"{low:.3f} to {high:.3f}",
            number(one.worst, 3),
            f"{one.near:.0%}",
            f"{one.complete:.0%}",
            number(one.to_bound, 3),
            str(one.unstable),
            number(one.wall_s, 2),
        ]

    return names, [line(name, found[name]) for name in order]


def profile(comparison: WorldsComparison) -> tuple[list[str], list[list[str]]]:
    """The performance profile as a table, whoever is best most often first."""
    shares = within(comparison, np.array(FACTORS) * (1 + 1e-9))
    order = np.argsort(-shares.mean(1), kind="stable")
    names = ["within a factor of the best", *(f"{factor:g}" for factor in FACTORS)]
    return names, [[comparison.policies[i], *(f"{share:.0%}" for share in shares[i])] for i in order]


def draw_profile(comparison: WorldsComparison, path: str | Path) -> None:
    """The performance profile as a picture, up to the factor that the last policy needs, at most 10."""
    known = np.where(np.isnan(comparison.jct_s), np.inf, comparison.jct_s)
    over = known[np.isfinite(known)] / np.broadcast_to(known.min(0), known.shape)[np.isfinite(known)]
    factors = np.geomspace(1.0, min(max(float(over.max(initial=1.0)), 1.1), 10.0), 400)
    shares = within(comparison, factors * (1 + 1e-9))
    performance_profile(dict(zip(comparison.policies, shares)), factors, path)


def legend(comparison: WorldsComparison) -> list[str]:
    """What the figures mean, where policies are worst, and which worlds say little."""
    worlds = [world.name for world in comparison.worlds]
    lines = [
        f"{comparison.choice.spelt}: {worlds[0]} to {worlds[-1]}; * plain rules; to best plain: geometric mean"
        " over worlds of mean JCT over that of the best of these",
        f"<= {NEAR}: share of worlds; all jobs: share of worlds in which every job has finished; unstable: worlds",
    ]
    if comparison.seeds > 1:
        lines.append(
            f"means of each world are over {comparison.seeds} lists of its jobs, and so is what is best there; "
            "unstable: on any of them"
        )
    if not comparison.complete.all():
        lines.append("† worlds without all jobs finished are not in its means, and within no factor of the best")
    names = [worlds[place] for place in np.flatnonzero(comparison.unstable.all(0)).tolist()]
    if names:
        lines.append(f"unstable under every policy, so that means grow with the list: {', '.join(names)}")
    lines += [f"worst of {policy}: {worst_text(comparison, policy)}" for policy in comparison.policies]
    return lines


def worst_text(comparison: WorldsComparison, policy: str) -> str:
    """The names and ratios of a policy's worst worlds."""
    row = comparison.policies.index(policy)

    def shown(world: int) -> str:
        mark = " (unstable)" if comparison.unstable[row, world] else ""
        return f"{comparison.worlds[world].name} {number(float(comparison.ratio[row, world]), 3)}{mark}"

    return ", ".join(map(shown, worst_worlds(comparison, policy)))


def report_text(comparison: WorldsComparison) -> str:
    """Both tables and the legend."""
    return "\n".join([align(*table(comparison)), "", align(*profile(comparison)), "", *legend(comparison)])


def report_markdown(comparison: WorldsComparison) -> str:
    """The same for a page."""
    return markdown_table(*table(comparison), []) + "\n" + markdown_table(*profile(comparison), legend(comparison))


def to_json(comparison: WorldsComparison) -> dict[str, Any]:
    """Plain values: figures by policy, and every world with each policy's mean JCT; None where there is no figure."""
    shares = within(comparison, np.array(FACTORS) * (1 + 1e-9))
    policies = {}
    for i, name in enumerate(comparison.policies):
        one = summarise(comparison, name)
        policies[name] = {
            **one._asdict(),
            "ratio_ci95": known_interval(one.ratio_ci95),
            "plain": name in PLAIN,
            "within": dict(zip(map(str, FACTORS), shares[i].tolist())),
            "worst_worlds": [comparison.worlds[place].name for place in worst_worlds(comparison, name)],
        }
    worlds = [
        {
            "name": result.name,
            **result.about,
            "bound_s": result.bound_s,
            "policies": {name: one._asdict() for name, one in result.played.items()},
        }
        for result in comparison.results
    ]
    config = {
        "worlds": comparison.choice.spelt,
        "first": int(comparison.worlds[0].name.rpartition("-")[2]),
        "num_jobs": max(len(world.jobs) for world in comparison.worlds),
        "seeds": comparison.seeds,
        **comparison.settings.described(),
    }
    return make_plain({"policies": policies, "worlds": worlds, "config": config, "versions": comparison.versions})


def dumps(comparison: WorldsComparison) -> str:
    """`to_json` as text."""
    return json.dumps(to_json(comparison), indent=2, allow_nan=False) + "\n"
