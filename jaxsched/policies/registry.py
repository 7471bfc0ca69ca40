"""Policies by name: `NAME[:OPTION[+OPTION...]]`, a checkpoint's name or folder, or `FILE.py:NAME`.

`search:NAME[:OPTION[+OPTION...]]+nN` compares N choices of what goes first or is held back, played under that policy.

Options: a queue order (one of `env.queues.ORDERS`), `backfill`, with it `reserve` (GPUs are kept for the first blocked
gang), a forwarding rule (`stay`, `forward`, `spread`), with the last `seek` (jobs wait where they wait least), and for
`greedy-wait` and `match` `tX`, their threshold, `pX`, their patience, `lifetime`, by which they choose among placements
also by when servers will be free again, and `observe`, by which they go by what they have seen of models that share a
GPU. `pack` alone is FIFO without backfilling,
as published; `greedy-wait` and `match` always backfill, and have `forward` unless told otherwise.
"""

import dataclasses
import functools
import os
import traceback
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from jaxsched import shipped
from jaxsched.env.knowledge import ESTIMATES, HISTORY, NOTHING
from jaxsched.env.pairs import as_seen
from jaxsched.env.queues import ORDERS, SWITCHES, Discipline, Order
from jaxsched.env.state import CHANGE, POSSIBLE, Action, Asked, EnvParams, State
from jaxsched.errors import UserError
from jaxsched.io.cards import what_of
from jaxsched.io.inputs import shortened
from jaxsched.policies.base import FORWARDS, STAY, TO_ANY, TO_IDLE, Act, Options, Policy
from jaxsched.policies.faster import quiet_intervals
from jaxsched.policies.from_file import from_file
from jaxsched.policies.greedy_wait import greedy_wait
from jaxsched.policies.heuristics import FIFO, heuristic
from jaxsched.policies.matching import WINDOW, match
from jaxsched.policies.rules import RULES, Rule
from jaxsched.policies.seek_weights import BY_HAND
from jaxsched.policies.seeking import seeking

GREEDY_WAIT, MATCH, RANDOM = "greedy-wait", "match", "random"
LOOKING = {GREEDY_WAIT: greedy_wait, MATCH: match}  # at what placements would do to the jobs that run
NAMES = (*RULES, *LOOKING)
LIFETIME, OBSERVE, SEEK = "lifetime", "observe", "seek"
# The field's schedulers, with our placement and forwarding; differences are in docs/semantics.md, sections 8 and 9.
_TOGETHER = "backfill+consolidate+spread"
SCHEDULERS = {
    "qssf": f"pack:area+{_TOGETHER}",  # Helios (Hu et al., SC 2021)
    "tiresias-las": f"pack:tiresias+{_TOGETHER}+preempt",  # Gu et al., NSDI 2019
    "tiresias-gittins": f"pack:gittins+{_TOGETHER}+preempt",
    "themis": f"pack:themis+{_TOGETHER}+preempt+h1",  # Mahajan et al., NSDI 2020
}
QSSF = "qssf"
NUMBERS = {"h": "hysteresis", "q": "quantum"}  # of a discipline
SEARCH = "search"
LENGTHS = ("sjf", "area")  # orders by which `match` goes
SEARCHED = ("fifo", "sjf", "area")  # orders whose keys do not change, so that a job can be given another
ALTERNATIVES, MOST_ALTERNATIVES = 64, 4096
NO_LIMIT = 1e9  # what no effective slowdown exceeds
_LOOKED_AT = Discipline(order="area", backfill=True, window=4)  # by greedy-wait, unless told otherwise


def parse(policy: str | Path | Rule | Policy) -> Policy:
    """The policy of a name, of a checkpoint, of a placement rule (FIFO, without backfilling), or itself.

    A checkpoint is the name of a shipped one or a folder. `FILE.py:NAME` is a policy or a rule of a Python file.
    UserError naming what is wrong and what would be right.
    """
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str | Path):
        return Policy(getattr(policy, "__name__", repr(policy)), heuristic(policy))
    spec = str(policy)
    if spec.partition(":")[0] in NAMES:
        return hand_written(spec, options_of(spec))
    if spec.partition(":")[0] == SEARCH:
        return _searching(spec)
    if spec in SCHEDULERS:
        found = hand_written(spec, options_of(SCHEDULERS[spec]))
        return dataclasses.replace(found, needs=HISTORY) if spec == QSSF else found
    if ".py:" in spec:
        found = from_file(spec)
        found = found if isinstance(found, Policy) else Policy(spec, heuristic(found))
        return found if found.options is not None else dataclasses.replace(found, act=_told(spec, found.act))
    folder = Path(spec) if os.path.isdir(spec) else shipped.find(shipped.CHECKPOINTS, spec)
    if folder is not None:
        return _from_folder(folder, spec)
    if spec.endswith(".py"):
        raise UserError(f"policy {shortened(spec)!r}: say which rule of the file, as in {shortened(spec)}:NAME")
    if "/" in spec:
        raise UserError(
            f"policy {shortened(spec)!r}: no such folder; give the folder of a checkpoint or one of {', '.join(NAMES)}"
        )
    known = ", ".join((*NAMES, f"{SEARCH}:NAME", *SCHEDULERS, *checkpoints()))
    raise UserError(f"unknown policy {shortened(spec)!r}: one of {known}, the folder of a checkpoint, or FILE.py:NAME")


def _told(spec: str, act: Act) -> Act:
    """`act` of a file, whose mistakes are the user's: told in one line."""

    def told(key: PRNGKeyArray, state: State, params: EnvParams, weights: PyTree) -> Action:
        try:
            return act(key, state, params, weights)
        except UserError:
            raise
        except Exception as error:
            file = os.path.abspath(spec.rpartition(":")[0])
            frames = traceback.extract_tb(error.__traceback__)
            lines = [at.lineno for at in frames if os.path.abspath(at.filename) == file]
            where = f" in line {lines[-1]}" if lines else ""
            said = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
            raise UserError(f"policy {spec!r} fails{where}: {said}") from error

    return told


def _from_folder(folder: Path, name: str) -> Policy:
    from jaxsched.policies import level_files, seek_files

    what = what_of(folder)
    if what is None and what_of(folder / "policy") is not None:
        raise UserError(f"policy {shortened(name)!r}: is the folder of a run, its policy is {folder / 'policy'}")
    for files in (level_files, seek_files):
        if what == files.WHAT:
            return files.load_policy(folder, name)
    from jaxsched.policies.checkpoint import load_policy  # the others need no neural network library

    return load_policy(folder, name)


def checkpoints() -> tuple[str, ...]:
    """Names of the checkpoints that come with the package: policies, where other folders hold fitted models."""
    return tuple(name for name in shipped.names(shipped.CHECKPOINTS) if name not in ("interference", "placement"))


def parse_all(policies: Sequence[str | Path | Rule | Policy]) -> list[Policy]:
    """One policy for each, in order. UserError if there is none, or one twice."""
    found = [parse(policy) for policy in policies]
    names = [policy.name for policy in found]
    if not found:
        raise UserError(f"policies: none is given; name at least one of {', '.join(NAMES)}, or a checkpoint's folder")
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise UserError(f"policies: {twice[0]!r} is given twice, every policy may only once")
    return found


def policy(
    rule: str | Path | Rule,
    *,
    name: str | None = None,
    order: Order | None = None,
    backfill: bool = False,
    reserve: bool = False,
    forward: str = STAY,
) -> Policy:
    """A policy of a placement rule and a queue, for `compare`.

    Args:
        rule: a function `(key, view, job) -> workers` of one partition, or a name (then all else stands in the name,
            as in `pack:sjf+backfill`, unless an `order` or a switch is given here).
        name: in tables; by default the function's, or what the arguments amount to.
        order: a queue order's name, or a function `(state, params) -> float32[P, Q]`; the lowest comes first. None: the
            rule's own, `fifo` of most.
        backfill, reserve: see `Discipline`.
        forward: how blocked jobs go to other schedulers: `stay`, `forward` (to idle ones), `spread`.

    UserError on a mistake.
    """
    if forward not in FORWARDS:
        raise UserError(f"forward: {forward!r} should be one of {', '.join(FORWARDS)}")
    queue = Discipline(order=FIFO.order if order is None else order, backfill=backfill, reserve=reserve)
    plain = order is None and queue == FIFO and forward == STAY
    if isinstance(rule, str | Path) and (plain or (not callable(order) and rule in NAMES)):
        options = [*([] if order is None else [order]), *(switch for switch in SWITCHES if getattr(queue, switch))]
        options += [] if forward == STAY else [forward]
        found = parse(rule if plain else f"{rule}:{'+'.join(options)}")
        return found if name is None else dataclasses.replace(found, name=name)
    if isinstance(rule, str | Path) and rule not in RULES:
        raise UserError(f"policy {str(rule)!r}: with an order of your own it should be one of {', '.join(RULES)}")
    called = rule if isinstance(rule, str | Path) else getattr(rule, "__name__", repr(rule))
    return Policy(str(called if name is None else name), heuristic(rule, queue, forward))  # pyright: ignore


def hand_written(name: str, of: Options) -> Policy:
    """The policy that options describe."""
    asked: Asked = CHANGE if of.queue.timeless and of.rule != RANDOM else POSSIBLE
    if of.rule in LOOKING:  # they would rather wait than take what there is
        asked = POSSIBLE
        act = LOOKING[of.rule](of.threshold, of.patience, of.queue, of.forward, of.lifetimes)
        act = observing(act) if of.observe else act
    else:
        act = heuristic(of.rule, of.queue, of.forward)
    if of.queue.preempt:
        asked = _quiet(of.queue, of.forward)
    weights = None
    if of.seek is not None:
        asked, act, weights = POSSIBLE, seeking(act, of.queue), np.array(of.seek.numbers, np.float32)
    estimates = of.queue.needs_estimates or of.rule == GREEDY_WAIT or of.seek is not None
    needs = HISTORY if of.queue.needs_history else ESTIMATES if estimates else NOTHING
    return Policy(name, act, weights, asked=asked, options=of, needs=needs)


def observing(act: Act) -> Act:
    """What acts by the factors of pairs of models that have been seen, see `env.pairs`."""
    return lambda key, state, params, weights: act(key, state, as_seen(params, state), weights)


def _searching(spec: str) -> Policy:
    """The policy of a name that begins with `search:`. UserError naming what is wrong and what would be right."""
    name, *options = spec.partition(":")[2].replace(":", "+", 1).split("+")
    if name not in NAMES or name in (RANDOM, MATCH):
        known = ", ".join(one for one in NAMES if one not in (RANDOM, MATCH))
        raise UserError(f"policy {spec!r}: searches under one of {known}, such as {SEARCH}:{GREEDY_WAIT}:sjf+n64")
    counts = [option for option in options if option[:1] == "n" and option[1:2].isdigit()]
    rest = "+".join(option for option in options if option and option not in counts)
    rule = hand_written(spec, options_of(f"{name}:{rest}" if rest else name))
    assert rule.options is not None
    order = rule.options.queue.order
    if rule.options.seek is not None:
        raise UserError(f"policy {spec!r}: {SEEK!r} does not go with a search, whose choices are of one queue")
    if order not in SEARCHED:
        raise UserError(f"policy {spec!r}: searches in the orders {', '.join(SEARCHED)} only, not in {order}")
    of = dataclasses.replace(rule.options, search=_alternatives(spec, counts[-1]) if counts else ALTERNATIVES)

    def act(key: PRNGKeyArray, state: State, params: EnvParams, weights: PyTree) -> Action:
        raise UserError(f"policy {spec!r}: searches in whole runs of the compiled event loop only")

    return dataclasses.replace(rule, act=act, options=of, needs=ESTIMATES)


def _alternatives(spec: str, option: str) -> int:
    count = int(option[1:]) if option[1:].isdecimal() else 0
    if not 1 <= count <= MOST_ALTERNATIVES:
        raise UserError(f"policy {spec!r}: {option!r} should be nN with a number N from 1 to {MOST_ALTERNATIVES}")
    return count


@functools.cache
def _quiet(queue: Discipline, forward: str) -> Asked:
    """One function for each discipline, so that programs that take it as an argument are compiled once."""
    return functools.partial(quiet_intervals, queue, forward)


def options_of(spec: str) -> Options:
    """What the name of a hand-written policy says. UserError naming what is wrong and what would be right."""
    name, _, rest = spec.partition(":")
    greedy, looks = name == GREEDY_WAIT, name in LOOKING
    of = Options(name, _LOOKED_AT, TO_IDLE) if looks else Options(name, FIFO)
    if name == MATCH:
        of = dataclasses.replace(of, queue=dataclasses.replace(of.queue, window=WINDOW))
    queue, seen, given = {}, {}, [option for option in rest.split("+") if option]
    for option in given:
        kind = _kind(option)
        if kind in seen:
            raise UserError(f"policy {spec!r}: {option!r} after {seen[kind]!r}: give one of the two")
        seen[kind] = option
        if option in ORDERS:
            queue["order"] = option
        elif option in SWITCHES:
            queue[option] = True
        elif option[0] in NUMBERS and option[1:2].isdigit():
            queue[NUMBERS[option[0]]] = _number(spec, option, 0.0)
        elif option in FORWARDS:
            of = dataclasses.replace(of, forward=option)
        elif option == SEEK:
            of = dataclasses.replace(of, seek=BY_HAND)
        elif looks and option == LIFETIME:
            of = dataclasses.replace(of, lifetimes=True)
        elif looks and option == OBSERVE:
            of = dataclasses.replace(of, observe=True)
        elif looks and option.startswith("t"):
            of = dataclasses.replace(of, threshold=_number(spec, option, 1.0))
        elif looks and option.startswith("p"):
            of = dataclasses.replace(of, patience=_number(spec, option, 0.0))
        else:
            known = (*ORDERS, *SWITCHES, *FORWARDS, SEEK, "hX", "qX")
            known += (LIFETIME, "tX", "pX", OBSERVE) if looks else ()
            raise UserError(f"policy {spec!r}: unknown option {option!r}: one of {', '.join(known)}")
    if name == MATCH and not queue.get("preempt") and queue.get("order", LENGTHS[0]) not in LENGTHS:
        raise UserError(
            f"policy {spec!r}: without 'preempt' it weighs jobs by length: one of the orders {', '.join(LENGTHS)}"
        )
    if name == MATCH and queue.get("preempt") and of.lifetimes:
        raise UserError(f"policy {spec!r}: 'lifetime' goes by run times, with 'preempt' all jobs count the same")
    if "reserve" in queue and (name == RANDOM or not (looks or "backfill" in queue)):
        raise UserError(f"policy {spec!r}: 'reserve' needs a queue order and 'backfill': it holds back who would pass")
    if of.seek is not None and (
        of.forward != TO_ANY or queue.get("preempt") or name == RANDOM or not (looks or "backfill" in queue)
    ):
        raise UserError(f"policy {spec!r}: {SEEK!r} needs {TO_ANY!r}, 'backfill' and an order, and no 'preempt'")
    if "hysteresis" in queue and not queue.get("preempt"):
        raise UserError(f"policy {spec!r}: {seen[NUMBERS['h']]!r} says whom a job may displace, which needs 'preempt'")
    if "quantum" in queue and queue.get("order") != "tiresias":
        raise UserError(f"policy {spec!r}: {seen[NUMBERS['q']]!r} is the threshold of the order 'tiresias'")
    if name == RANDOM and "backfill" not in queue:
        queue["backfill"] = True  # it draws among all jobs that may start
    if looks and queue.get("preempt"):
        if (of.threshold, of.patience) != (Options.threshold, Options.patience):
            raise UserError(f"policy {spec!r}: 'tX' and 'pX' say how long jobs wait, with 'preempt' they do not wait")
        of = dataclasses.replace(of, threshold=NO_LIMIT)
    if greedy and queue.get("preempt"):
        of = dataclasses.replace(of, queue=dataclasses.replace(of.queue, window=1))
    return dataclasses.replace(of, queue=dataclasses.replace(of.queue, **queue))


def _kind(option: str) -> str:
    """What an option settles: of a kind there is at most one."""
    if option in ORDERS:
        return "order"
    if option in FORWARDS:
        return "forward"
    number = option[1:2].isdigit() and option[0] in (*NUMBERS, "t", "p")
    return NUMBERS.get(option[0], option[0]) if number else option


def _number(spec: str, option: str, lowest: float) -> float:
    try:
        value = float(option[1:])
    except ValueError:
        value = float("nan")
    if not lowest <= value < (1e12 if option[0] in NUMBERS else 1e5):
        raise UserError(f"policy {spec!r}: {option!r} should be {option[0]}X with a number X of at least {lowest:g}")
    return value
