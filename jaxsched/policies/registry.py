"""Policies by name: a hand-written one (`policies.spec`), a checkpoint's name or folder, or `FILE.py:NAME`."""

import dataclasses
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxsched import shipped
from jaxsched.border import checked, perhaps
from jaxsched.env.knowledge import HISTORY
from jaxsched.env.queues import Discipline, Order
from jaxsched.errors import UserError
from jaxsched.io.cards import what_of
from jaxsched.io.files import shorten, unreadable
from jaxsched.policies.policy import Policy, told
from jaxsched.policies.rules import Rule
from jaxsched.policies.spec import NAMES, SEARCH, PolicySpec, make_spec, parse_spec, spell

# The field's schedulers, with our placement and forwarding; differences are in docs/semantics.md, sections 8 and 9.
_TOGETHER = "backfill+consolidate+spread"
SCHEDULERS = {
    "qssf": f"pack:area+{_TOGETHER}",  # Helios (Hu et al., SC 2021)
    "tiresias-las": f"pack:tiresias+{_TOGETHER}+preempt",  # Gu et al., NSDI 2019
    "tiresias-gittins": f"pack:gittins+{_TOGETHER}+preempt",
    "themis": f"pack:themis+{_TOGETHER}+preempt+h1",  # Mahajan et al., NSDI 2020
}
QSSF = "qssf"
OF_PROFILES = "allocation"  # of jobs with profiles, whose world has policies of its own
# shipped beside checkpoints, and no policies here
FITTED_LAWS = ("interference", "placement", "step-time", OF_PROFILES)


def parse(policy: str | Path | Rule | PolicySpec | Policy) -> Policy:
    """The policy that somebody means.

    Args:
        policy: a name, as the command line has it; a checkpoint, by the name of a shipped one or its folder;
            `FILE.py:NAME`, a policy or a rule of a Python file; data; a placement rule, then FIFO without backfilling;
            or a policy, which is returned as it is.

    Raises:
        UserError: there is no such policy, or it has the name of another one. Says what would be right.
    """
    if isinstance(policy, Policy):
        return _check_name(policy)
    if isinstance(policy, PolicySpec):
        return of_spec(policy)
    if not isinstance(policy, str | Path):
        return _check_name(of_spec(make_spec(policy)))
    spec = str(policy)
    if spec in SCHEDULERS:
        return Policy(spec, parse_spec(SCHEDULERS[spec]), needs=HISTORY if spec == QSSF else None)
    if is_named(spec):
        return Policy(spec, parse_spec(spec))
    if ".py:" in spec:
        found = load_from_file(spec)
        found = _check_name(found) if isinstance(found, Policy) else of_spec(make_spec(found), spec)
        return found if found.spec else dataclasses.replace(found, act=told(found.act, f"policy {spec!r}"))
    folder = Path(spec) if os.path.isdir(spec) else shipped.find(shipped.CHECKPOINTS, spec)
    if folder is not None:
        return _from_folder(folder, spec)
    if spec.endswith(".py"):
        raise UserError(f"policy {shorten(spec)!r}: say which rule of the file, as in {shorten(spec)}:NAME")
    if "/" in spec:
        raise UserError(
            f"policy {shorten(spec)!r}: no such folder; give the folder of a checkpoint or one of {', '.join(NAMES)}"
        )
    named = (*NAMES, *SCHEDULERS, *checkpoints())
    known = ", ".join((*NAMES, f"{SEARCH}:NAME", *SCHEDULERS, *checkpoints()))
    raise UserError(
        f"unknown policy {shorten(spec)!r}{perhaps(spec, named)}: one of {known}, the folder of a checkpoint, or "
        "FILE.py:NAME"
    )


def load_from_file(spec: str) -> Any:
    """The object `NAME` of `FILE.py`, which is run as a module. UserError if there is none, or the file fails."""
    path, _, name = spec.rpartition(":")
    file = Path(path)
    try:
        is_file = file.is_file()
    except OSError as error:
        raise unreadable(path, error) from None
    if not is_file:
        raise UserError(f"policy {spec!r}: no such file {path}")
    module_name = f"jaxsched_policy_{file.stem}"
    found = importlib.util.spec_from_file_location(module_name, file)
    assert found is not None and found.loader is not None  # of a file that is there
    module = importlib.util.module_from_spec(found)
    sys.modules[module_name] = module
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UserError(f"policy {spec!r}: {file.name} fails: {type(error).__name__}: {error}") from error
    if not callable(getattr(module, name, None)):
        known = ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise UserError(f"policy {spec!r}: {file.name} has no function or Policy {name!r}; it has {known or 'none'}")
    return getattr(module, name)


def _from_folder(folder: Path, name: str) -> Policy:
    from jaxsched.policies import evolved, exported

    what = what_of(folder)
    if what is None and what_of(folder / "policy") is not None:
        raise UserError(f"policy {shorten(name)!r}: is the folder of a run, its policy is {folder / 'policy'}")
    if what == OF_PROFILES:
        raise UserError(f"policy {shorten(name)!r}: is for jobs with profiles; give --profiles DIR")
    if what in evolved.KINDS:
        return evolved.load_policy(folder, what, name)
    if what == exported.WHAT:
        return exported.load_exported(folder, name)
    from jaxsched.policies.checkpoint import load_policy  # the others need no neural network library

    return load_policy(folder, name)


def checkpoints() -> tuple[str, ...]:
    """Names of the checkpoints that come with the package: policies, where other folders hold fitted models."""
    return tuple(name for name in shipped.names(shipped.CHECKPOINTS) if name not in FITTED_LAWS)


def is_named(word: str) -> bool:
    """Whether a word names a hand-written policy, whatever files there are."""
    return word in SCHEDULERS or word.partition(":")[0] in (*NAMES, SEARCH)


def parse_all(policies: Sequence[str | Path | Rule | Policy]) -> list[Policy]:
    """One policy for each, in order.

    Raises:
        UserError: none is given, one is given twice, or see `parse`.
    """
    found = [parse(policy) for policy in policies]
    names = [policy.name for policy in found]
    if not found:
        raise UserError(f"policies: none is given; name at least one of {', '.join(NAMES)}, or a checkpoint's folder")
    check_once(names)
    return found


def check_once(names: Sequence[str]) -> None:
    """UserError if a policy is given twice."""
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise UserError(f"policies: {twice[0]!r} is given twice, every policy may only once")


@checked
def policy(
    rule: str | Path | Rule,
    *,
    name: str | None = None,
    queue: Discipline | None = None,
    order: Order | Discipline | None = None,
    backfill: bool | None = None,
    forward: str | None = None,
    **options: Any,
) -> Policy:
    """A policy of a placement rule and a queue, for `compare`.

    Args:
        rule: a function `(key, view, job) -> workers` of one partition, or a name. What a name alone cannot be, such as
            `pack:sjf+backfill`, a checkpoint or `FILE.py:NAME`, takes no further options here.
        name: in tables; by default as the command line spells it, or the function's.
        queue: the whole discipline, in place of its parts.
        order: a queue order's name, or a function `(state, params) -> float32[P, Q]`; the lowest comes first. None: the
            rule's own, `fifo` of most. A whole `Discipline` is taken for `queue`.
        backfill: see `Discipline`. None: as the rule does by default.
        forward: how blocked jobs go to other schedulers: `stay`, `forward` (to idle ones), `spread`. None: as the rule
            does by default.
        options: other fields of `Discipline` (`reserve`, `preempt`, `consolidate` ...) and `PolicySpec`.

    Returns:
        The policy; `compare`, `parse` and evaluations take it as they take names.

    Raises:
        UserError: something is unknown, out of range, or does not go together.
    """
    if isinstance(order, Discipline):
        order, queue = None, order if queue is None else queue
    given: dict[str, Any] = {"queue": queue, "order": order, "backfill": backfill, "forward": forward}
    given = {field: value for field, value in given.items() if value is not None} | options
    if isinstance(rule, str | Path) and str(rule) not in NAMES:
        if given:
            raise UserError(
                f"policy {shorten(str(rule))!r}: takes no {next(iter(given))!r} here; with one the rule should be a "
                f"function or one of {', '.join(NAMES)}"
            )
        found = parse(rule)
        return found if name is None else dataclasses.replace(found, name=name)
    return of_spec(make_spec(str(rule) if isinstance(rule, Path) else rule, **given), name)


def of_spec(spec: PolicySpec, name: str | None = None) -> Policy:
    """The policy that data describe, by `name`, else as the command line spells it, else by that of the function."""
    called = spec.rule if isinstance(spec.rule, str) else getattr(spec.rule, "__name__", repr(spec.rule))
    return Policy(str(name or spell(spec) or called), spec)


def _check_name(policy: Policy) -> Policy:
    """The policy, with UserError if its name is that of another one, under which it would be shown."""
    known = policy.name.partition(":")[0] in (*NAMES, SEARCH) or policy.name in (*SCHEDULERS, *checkpoints())
    if not known:
        return policy
    try:
        other = parse(policy.name)
    except UserError:
        return policy  # nobody has this name
    if not _are_same(policy, other):
        raise UserError(
            f"policy {shorten(policy.name)!r}: does something else than the policy of this name; give it another name"
        )
    return policy


def _are_same(one: Policy, other: Policy) -> bool:
    if one.act != other.act or (one.asks_at, one.requires) != (other.asks_at, other.requires):
        return False
    these, those = jax.tree.leaves(one.weights), jax.tree.leaves(other.weights)
    return len(these) == len(those) and all(np.array_equal(a, b) for a, b in zip(these, those))
