"""Golden runs of the event loop."""

import functools
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from . import adapter, digests, specs
from .worlds import WORLDS, World, cluster_of, jobs_of

PER_SPEC = 2  # worlds in which each policy plays, of those in which it may
Keep = Callable[[str, dict[str, np.ndarray]], None]  # of a run's name and its arrays


@functools.cache
def plan() -> dict[str, list[str]]:
    """The policies that play in each world."""
    played: dict[str, list[str]] = {name: [] for name in WORLDS}
    for number, spec in enumerate([*specs.plain(), *specs.stopping(), *specs.searching()]):
        where = [name for name, world in WORLDS.items() if specs.fits(spec, world)]
        for place in range(min(PER_SPEC, len(where))):
            played[where[(number * 7 + place * 5) % len(where)]].append(spec)
    for name, world in WORLDS.items():
        played[name] += [spec for spec in specs.EVERYWHERE if specs.fits(spec, world)]
    return {name: list(dict.fromkeys(found)) for name, found in played.items()}


def play(name: str, policies: Iterable[str], keep: Keep | None = None) -> dict[str, str]:
    """The digests of these policies' runs in a world, by their names."""
    world, found = WORLDS[name], {}
    cluster, jobs, settings = cluster_of(world.cluster), jobs_of(world), world.all_settings(engine="compiled")
    with tempfile.TemporaryDirectory() as folder:
        for spec in policies:
            arrays = digests.arrays_of(_run(spec, world, cluster, jobs, settings, Path(folder)))
            found[spec] = digests.digest(arrays)
            if keep is not None:
                keep(f"{name}/{spec}", arrays)
    return found


def _run(spec: str, world: World, cluster, jobs, settings, folder: Path):
    levels = specs.write_levels(folder, int(spec[-1])) if spec.startswith("levels") else spec
    policy = adapter.parse(str(levels))
    (outcomes,) = adapter.simulate([policy], cluster, [jobs], settings).values()
    return outcomes[0]


def by_rule(found: dict[str, str]) -> dict[str, str]:
    """Packed for a file: the digests of a rule's policies in one line, in the order of `plan`."""
    packed: dict[str, list[str]] = {}
    for spec, digest in found.items():
        packed.setdefault(rule_of(spec), []).append(digest)
    return {rule: " ".join(row) for rule, row in packed.items()}


def rule_of(spec: str) -> str:
    """Of a policy's name."""
    return spec.split(":")[0]


def unpacked(policies: list[str], packed: dict[str, str]) -> dict[str, str]:
    """What `by_rule` packed."""
    rows = {rule: iter(row.split()) for rule, row in packed.items()}
    return {spec: next(rows[rule_of(spec)]) for spec in policies}
