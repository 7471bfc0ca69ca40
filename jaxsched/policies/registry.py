"""Policies by name: `NAME[:OPTION[+OPTION...]]`, or the path of a checkpoint.

Options: a queue order (`fifo`, `sjf`, `area`, `las`), `backfill`, with it `reserve` (GPUs are kept for the first
blocked gang), a forwarding rule (`stay`, `forward`, `spread`), and for `greedy-wait` `tX`, its threshold, `pX`, its
patience, and `lifetime`, by which it chooses among placements also by when servers will be free again. `pack` alone is
FIFO without backfilling, as published; `greedy-wait` always backfills, and has `forward` unless told otherwise.
"""

import dataclasses

from jaxsched.env.queues import ORDERS
from jaxsched.env.state import CHANGE, POSSIBLE, EnvConfig
from jaxsched.errors import UserError
from jaxsched.policies.base import FORWARDS, STAY, TO_IDLE, Policy
from jaxsched.policies.greedy_wait import greedy_wait
from jaxsched.policies.heuristics import heuristic
from jaxsched.policies.rules import RULES

GREEDY_WAIT = "greedy-wait"
NAMES = (*RULES, GREEDY_WAIT)
LIFETIME = "lifetime"
DEFAULT_THRESHOLD, DEFAULT_PATIENCE = 1.0, 1.0
_SWITCHES = ("backfill", "reserve", *FORWARDS)


@dataclasses.dataclass(frozen=True)
class Spec:
    """A hand-written policy's name and options; the last three are of `greedy-wait`."""

    name: str
    order: str
    backfill: bool
    forward: str
    reserve: bool
    threshold: float
    patience: float
    lifetimes: bool


def _number(spec: str, option: str, lowest: float) -> float:
    try:
        value = float(option[1:])
    except ValueError:
        value = float("nan")
    if not lowest <= value < 1e5:
        raise UserError(f"policy {spec!r}: {option!r} should be {option[0]}X with a number X of at least {lowest:g}")
    return value


def parse(spec: str) -> Spec:
    """What `spec` says; raises UserError naming what is wrong and what would be right."""
    name, _, rest = spec.partition(":")
    if name not in NAMES:
        raise UserError(f"unknown policy {spec!r}: one of {', '.join(NAMES)}, or the folder of a checkpoint")
    options = [option for option in rest.split("+") if option]
    greedy = name == GREEDY_WAIT
    order, backfill, forward = "area" if greedy else "fifo", greedy, TO_IDLE if greedy else STAY
    threshold, patience, lifetimes, reserve = DEFAULT_THRESHOLD, DEFAULT_PATIENCE, False, False
    for option in options:
        if option in ORDERS:
            order = option
        elif option == "backfill":
            backfill = True
        elif option == "reserve":
            reserve = True
        elif option in FORWARDS:
            forward = option
        elif greedy and option == LIFETIME:
            lifetimes = True
        elif greedy and option.startswith("t"):
            threshold = _number(spec, option, 1.0)
        elif greedy and option.startswith("p"):
            patience = _number(spec, option, 0.0)
        else:
            known = (*ORDERS, *_SWITCHES, *((LIFETIME, "tX", "pX") if greedy else ()))
            raise UserError(f"policy {spec!r}: unknown option {option!r}: one of {', '.join(known)}")
    if reserve and (name == "random" or not backfill):
        raise UserError(f"policy {spec!r}: 'reserve' needs a queue order and 'backfill': it holds back who would pass")
    return Spec(name, order, backfill, forward, reserve, threshold, patience, lifetimes)


def hand_written(spec: str, config: EnvConfig) -> Policy:
    """The hand-written policy that `spec` names; raises UserError naming what is wrong and what would be right."""
    of = parse(spec)
    if of.name == GREEDY_WAIT:
        act = greedy_wait(config, of.threshold, of.patience, of.order, of.forward, of.lifetimes, of.reserve)
        return Policy(spec, act, POSSIBLE)
    timeless = of.name != "random" and of.order != "las" and not of.reserve
    act = heuristic(config, of.name, of.order, of.backfill, of.forward, of.reserve)
    return Policy(spec, act, CHANGE if timeless else POSSIBLE)
