"""Policies on random worlds: the one function behind `jaxsched evaluate --worlds`, and what became of each world."""

import dataclasses
import functools
import math
import os
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from jaxsched.border import checked
from jaxsched.cluster.hardware import total_gpus
from jaxsched.errors import UserError
from jaxsched.evaluation.compare import compare
from jaxsched.evaluation.world_tables import Played, WorldResult, WorldsComparison, worst_text, worst_worlds
from jaxsched.executors import Executor, LocalExecutor, Task, Tell
from jaxsched.io.files import write_text
from jaxsched.io.schema import check_whole
from jaxsched.machine import versions
from jaxsched.options import JAX, MOST_JOBS, EvaluatedWorld, RunOptions, describe, list_names
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import is_named, parse, parse_all
from jaxsched.policies.rules import Rule
from jaxsched.simulation.engine import Report
from jaxsched.simulation.jax_run import JaxEngine, Sizes, common_sizes
from jaxsched.simulation.settings import PlayedWorld, Settings
from jaxsched.simulation.simulate import prepare_players, simulate
from jaxsched.workload.jobs import offered_load
from jaxsched.worlds.families import FAMILIES, Choice, parse_worlds
from jaxsched.worlds.world import CLUSTER, MODELS, PLAIN, TRACE, World, draw_world

FILES = ("interference", "outages")  # settings that may say where something is
COMMAND, README = "command.txt", "README.md"  # of the worst worlds
ONE_LIST = "worst: the folder of a world holds one job list; leave out seeds, or this"
Named = str | Path | Rule | Policy
Drawn = Callable[[int, int], None]  # how many worlds are drawn, and how many there will be


@checked
def compare_worlds(
    worlds: str | Choice,
    policies: str | Sequence[Named],
    settings: Settings | None = None,
    *,
    first: int = 0,
    num_jobs: int | None = None,
    seeds: int = 1,
    report: Report | None = None,
    drawn: Drawn | None = None,
    executor: Executor | None = None,
) -> WorldsComparison:
    """Run every policy, and the plain rules, on random worlds. Print the result to see tables.

    Args:
        worlds: NAME[:COUNT[:training]], see `worlds.families`; test worlds unless it says otherwise.
        policies: as in `compare`. Other machines need names.
        settings: what all policies play under; its models are the worlds' own. None: the defaults.
        first: number of the first world; the others follow.
        num_jobs: of each world; None: as many as the family says.
        seeds: job lists of each world, see `World.job_lists`; all figures are then over all of them.
        report: called with the progress of a run; `seed` is the world's place.
        drawn: called as worlds are drawn.
        executor: who plays the worlds, a task each; None: this process.

    Raises:
        UserError: on an unknown family or policy, or a policy that cannot play one of the worlds, which is named.
    """
    choice = parse_worlds(worlds) if isinstance(worlds, str) else worlds
    settings = settings or Settings()
    if settings.models is not None or settings.outages is not None:
        raise UserError("compare_worlds: models, outages: worlds have models and servers of their own; leave these out")
    asked = [policies] if isinstance(policies, str) else list(policies)
    policies = parse_all(asked)
    plain = [name for name in PLAIN if name not in {policy.name for policy in policies}]
    made = _draw_all(choice, first, num_jobs, check_whole(seeds, "worlds", "seeds", 1, MOST_JOBS), drawn)
    _check(made, policies, "", settings)
    _check(made, [parse(name) for name in plain], ", where the plain rules are always played", settings)
    tasks = [Task(f"world {world.name}", play_world, world) for world in made]
    tell = (
        None
        if report is None
        else lambda i, progress: report(dataclasses.replace(progress, seed=i * seeds + progress.seed))
    )
    results: dict[int, WorldResult] = {}
    common = Common((*asked, *plain), settings, _sizes(made, policies, settings), seeds)
    for number, result in (executor or LocalExecutor()).run(common, tasks, tell):
        results[number] = result
    words = [str(one) if isinstance(one, str | Path) else own.name for one, own in zip(asked, policies, strict=True)]
    found = [results[i] for i in range(len(made))]
    return WorldsComparison(choice, made, found, settings, versions(), seeds, (*words, *plain))


def _draw_all(choice: Choice, first: int, num_jobs: int | None, seeds: int, drawn: Drawn | None) -> list[World]:
    if num_jobs is not None and num_jobs < 2:
        raise UserError(f"num_jobs: {num_jobs} should be at least 2, so that a world has a load")
    jobs = FAMILIES[choice.family].jobs if num_jobs is None else num_jobs
    if choice.worlds * jobs * seeds > MOST_JOBS:
        each = f"{jobs:,} jobs each" + (f", {seeds:,} times," if seeds > 1 else "")
        raise UserError(f"worlds: {choice.worlds:,} with {each} should have at most {MOST_JOBS:,} in all")
    if first < 0:
        raise UserError(f"first: {first} should be the number of a world, 0 or more")
    found = []
    for number in range(first, first + choice.worlds):
        found.append(draw_world(choice, number, num_jobs))
        if drawn is not None:
            drawn(len(found), choice.worlds)
    return found


def _check(worlds: Sequence[World], policies: Sequence[Policy], what: str, settings: Settings) -> None:
    """UserError if one of the policies cannot play a world: before the long run, and not in silence."""
    for world in worlds:
        try:
            own = dataclasses.replace(settings, models=world.catalogue)
            prepare_players(policies, world.build(), [world.jobs], own)
        except UserError as error:
            raise UserError(f"world {world.name}{what}: {error}") from None


class Common(NamedTuple):
    """What all worlds share. Policies may be names, which other machines make anew."""

    policies: tuple[Named, ...]
    settings: Settings
    sizes: dict[int, Sizes]  # of worlds with as many schedulers, which share the programs of JAX
    seeds: int = 1  # job lists of each world


def _sizes(worlds: Sequence[World], policies: Sequence[Policy], settings: Settings) -> dict[int, Sizes]:
    """What worlds are padded to, by their schedulers; nothing where JAX plays no policy, or each world alone."""
    if all(policy.spec is not None for policy in policies) and settings.engine != JAX:
        return {}
    found: dict[int, list[PlayedWorld]] = {}
    for world in worlds:
        own = dataclasses.replace(settings, models=world.catalogue)
        found.setdefault(world.schedulers, []).append(PlayedWorld(world.build(), [world.jobs], own))
    sizes = {schedulers: common_sizes(alike) for schedulers, alike in found.items() if len(alike) > 1}
    return {schedulers: one for schedulers, one in sizes.items() if one is not None}


@functools.lru_cache(maxsize=8)
def _engine(sizes: Sizes | None) -> JaxEngine | None:
    """The engine of all worlds that this process plays in these sizes."""
    return None if sizes is None else JaxEngine(sizes)


@functools.lru_cache(maxsize=1)
def _parsed(names: tuple[str, ...]) -> list[Policy]:
    """Policies read once: programs are theirs."""
    return parse_all(list(names))


def play_world(common: Common, world: World, tell: Tell) -> WorldResult:
    """The work of a task: every policy on one world. UserError names the world."""
    cluster, settings = world.build(), dataclasses.replace(common.settings, models=world.catalogue)
    try:
        names = common.policies
        policies = _parsed(names) if all(isinstance(name, str) for name in names) else parse_all(list(names))
        engine = _engine(common.sizes.get(world.schedulers))
        lists, play = world.job_lists(common.seeds), partial(simulate, jax_engine=engine)
        found = compare(cluster, lists, policies, settings, report=tell, play=play)
    except UserError as error:
        raise UserError(f"world {world.name}: {error}") from None
    jobs, played = common.seeds * len(world.jobs), {}
    for row in found.rows:
        complete = row.jobs.finished == jobs
        jct_s = row.figures.jct_mean_s if complete else math.nan
        unstable = any(note.startswith("unstable") for note in row.notes)
        wall_s = sum(outcome.stats.wall_s for outcome in row.outcomes) / common.seeds
        played[row.name] = Played(jct_s, complete, unstable, wall_s)
    gpus = total_gpus(cluster)
    about = {
        "servers": sum(count for count, _ in world.servers),
        "gpus": gpus,
        "schedulers": world.schedulers,
        "topology": world.topology["kind"],
        "jobs": len(world.jobs),
        "load": offered_load(world.jobs, gpus),
    }
    return WorldResult(world.name, about, found.bound_s, played)


def write_worst(comparison: WorldsComparison, folder: str | Path) -> None:
    """Writes the worst worlds of every policy, a folder each with the command that plays it again, and a list."""
    if comparison.seeds > 1:
        raise UserError(ONE_LIST)
    folder = Path(folder)
    lines = [f"# The worst worlds of each policy, of {comparison.choice.spelt}", ""]
    lines += [f"In the folder of a world: `sh {COMMAND}` plays it again.", ""]
    places = set()
    for policy in comparison.policies:
        places |= set(worst_worlds(comparison, policy))
        lines.append(f"- {policy}: {worst_text(comparison, policy)}")
    for place in sorted(places):
        world = comparison.worlds[place]
        own = folder / world.name
        own.mkdir(parents=True, exist_ok=True)
        world.write(own)
        write_text(own / COMMAND, shlex.join(command(comparison)) + "\n")
    write_text(folder / README, "\n".join(lines) + "\n")


def command(comparison: WorldsComparison) -> list[str]:
    """What plays a world of the comparison again, in its folder."""
    files = ["--cluster", CLUSTER, "--workload", TRACE, "--models", MODELS]
    policies = [word if is_named(word) else _from_anywhere(word) for word in comparison.asked or comparison.policies]
    return ["jaxsched", "evaluate", *files, *options_of(comparison.settings, _from_anywhere), "--policies", *policies]


def _from_anywhere(word: str) -> str:
    """The word, from any folder if it says where something is: a path, or FILE.py:NAME."""
    return os.path.abspath(word) if os.path.exists(word.partition(".py:")[0]) or ".py:" in word else word


def options_of(settings: Settings, of_file: Callable[[str], str] = str) -> list[str]:
    """Settings that are not the defaults, as the command line has them; what may be a file as `of_file` says."""
    words = ["--seed", str(settings.seed)] if settings.seed else []
    names = dict.fromkeys(name for kind in (EvaluatedWorld, RunOptions) for name in list_names(kind))
    known, usual = describe(Settings), Settings()
    for name in names:
        value = getattr(settings, name)
        if name not in known or value == getattr(usual, name):
            continue
        spelt = {said: word for word, said in (known[name].values.words or {}).items()}
        words.append(f"--{name.replace('_', '-')}")
        if name in FILES:
            words.append(of_file(str(value)))
        elif value is not True or spelt:
            short = f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else value
            words.append(str(spelt.get(value, short)))
    return words
