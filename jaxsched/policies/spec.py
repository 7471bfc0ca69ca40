"""What a hand-written policy is, as data; and how the command line spells it: `NAME[:OPTION[+OPTION...]]`.

Options: a queue order (one of `env.queues.ORDERS`), `backfill`, with it `reserve` (GPUs are kept for the first blocked
gang), a forwarding rule (`stay`, `forward`, `spread`), with the last `seek` (jobs wait where they wait least), and for
`greedy-wait` and `match` `tX`, their threshold, `pX`, their patience, `lifetime`, by which they choose among placements
also by when servers will be free again, and `observe`, by which they go by what they have seen of models that share a
GPU. `pack` alone is FIFO without backfilling, as published; `greedy-wait` and `match` always backfill, and have
`forward` unless told otherwise. Without `tX` and `pX` `greedy-wait` looks ahead; then it has `sjf`, `spread`, `reserve`
and `lifetime` unless told otherwise. `search:NAME[:OPTION...]+nN` compares N choices of what goes first or is held
back.
"""

import dataclasses
import math
from typing import Any

from jaxsched.border import checked
from jaxsched.env.knowledge import ESTIMATES, HISTORY, NOTHING
from jaxsched.env.levels import LevelTable
from jaxsched.env.queues import ORDERS, SWITCHES, Discipline, has_levels
from jaxsched.env.state import ALWAYS, CHANGE, POSSIBLE, Asked
from jaxsched.errors import UserError
from jaxsched.io.files import shorten
from jaxsched.policies.rules import RULES, Rule
from jaxsched.semantics import SEEK_INPUTS

STAY, TO_IDLE, TO_ANY = FORWARDS = ("stay", "forward", "spread")
GREEDY_WAIT, MATCH, RANDOM = "greedy-wait", "match", "random"
WAITING = (GREEDY_WAIT, MATCH)  # they look at what placements would do to running jobs, and may wait for better ones
NAMES = (*RULES, *WAITING)
LONGEST_NAME = 300  # characters of a policy
SEARCH = "search"
LENGTHS = ("sjf", "area")  # orders by which `match` goes
_SEARCHING = tuple(name for name in NAMES if name not in (RANDOM, MATCH))
_SEARCH_UNDER = f"searches under one of {', '.join(_SEARCHING)}, such as {SEARCH}:{GREEDY_WAIT}:sjf+n64"
SEARCHED = ("fifo", "sjf", "area")  # orders whose keys do not change, so that a job can be given another
ALTERNATIVES, MOST_ALTERNATIVES = 64, 4096
NO_LIMIT = 1e9  # what no effective slowdown exceeds
MATCH_WINDOW = 16  # jobs that `match` looks at

FIFO = Discipline()
_LOOKED_AT = Discipline(order="area", backfill=True, window=4)  # by rules that wait, unless told otherwise
# By greedy-wait, if it looks ahead.
_AHEAD = Discipline(order="sjf", backfill=True, reserve=True, faster=True, window=4)
_FLAGS = {"lifetime": "lifetimes", "observe": "observe"}  # of the rules that look, as spelled
_NUMBERS = {"h": "hysteresis", "q": "quantum", "t": "threshold", "p": "patience"}  # X of tX is a number
_QUEUE = tuple(field.name for field in dataclasses.fields(Discipline))
LARGEST_SEEK = 1e4  # of numbers of seeking, so that indices stay far within the grid on which they are compared


@dataclasses.dataclass(frozen=True)
class SeekWeights:
    """Numbers of the index by which schedulers compare partitions for a job (docs/semantics.md, section 7, "Seeking").

    One for each input, as the page has them. UserError if they are too many or too few, or out of range.
    """

    numbers: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check count and range."""
        if len(self.numbers) != SEEK_INPUTS:
            raise UserError(f"seek: {len(self.numbers)} numbers, should be {SEEK_INPUTS}")
        if not all(math.isfinite(number) and abs(number) <= LARGEST_SEEK for number in self.numbers):
            raise UserError(f"seek: should be numbers from -{LARGEST_SEEK:g} to {LARGEST_SEEK:g}")


BY_HAND = SeekWeights((-1.0, -0.3, 0.2, 1.0))


@checked
@dataclasses.dataclass(frozen=True)
class PolicySpec:
    """A hand-written policy: where jobs are placed, which comes first, how they are forwarded, when they rather wait.

    `make_spec` fills in what a rule has by default, `spell` and `parse_spec` are its names on the command line.

    Raises:
        UserError: a part is out of range, or does not go with the others. Says what would.
    """

    rule: str | Rule  # one of `NAMES`, or a function `(key, view, job) -> workers` of one partition
    queue: Discipline = FIFO
    forward: str = STAY  # one of `FORWARDS`
    threshold: float = 1.0  # of the rules that wait: the effective slowdown that they accept, at least 1
    patience: float = 1.0  # of these: job-seconds that they accept to lose, over the wait until something can change
    ahead: bool = False  # greedy-wait: it waits by what it can have when, and not by these two numbers
    lifetimes: bool = False  # of these: also choose by when servers will be wholly free
    observe: bool = False  # of these: go by what pairs of models on one GPU have been seen to do to each other
    seek: SeekWeights | None = None  # by which a job is sent where it waits least
    search: int = 0  # choices that are compared at a boundary, docs/semantics.md, section 7; 0: the rule is followed

    def __post_init__(self) -> None:
        """Check that the parts go together."""
        for wrong, message in _mistakes(self):
            if wrong:
                raise UserError(message)

    @property
    def asked(self) -> Asked:
        """The boundaries at which it must be asked."""
        if callable(self.rule) or callable(self.queue.order) or self.queue.preempt:
            return ALWAYS
        still = self.queue.timeless and self.rule not in (RANDOM, *WAITING) and self.seek is None
        return CHANGE if still else POSSIBLE

    @property
    def needs(self) -> str:
        """What it must know of run times, one of `env.knowledge.KNOWLEDGE`."""
        estimates = self.queue.needs_estimates or self.rule == GREEDY_WAIT or self.seek is not None or self.search > 0
        return HISTORY if self.queue.needs_history else ESTIMATES if estimates else NOTHING

    @property
    def beyond_jax(self) -> str | None:
        """What of it only the event loop plays, in words; None if JAX plays it, too."""
        queue = self.queue
        parts = {
            "a search": self.search > 0,
            "'preempt'": queue.preempt,
            "'seek'": self.seek is not None,
            "a table of levels": isinstance(queue.order, LevelTable),
            f"the order {queue.order!r}": has_levels(queue.order),
        }
        return next((words for words, asked in parts.items() if asked), None)

    @property
    def learned(self) -> bool:
        """Some of its numbers were learned, or are while it is played."""
        return self.observe or isinstance(self.queue.order, LevelTable) or self.seek not in (None, BY_HAND)


def _mistakes(of: PolicySpec) -> list[tuple[bool, str]]:
    """What could be wrong, and in which words."""
    queue, waits, named = of.queue, of.rule in WAITING, isinstance(of.rule, str)
    passed = queue.backfill and of.rule != RANDOM
    waiting = (of.threshold, of.patience) != (PolicySpec.threshold, PolicySpec.patience)
    limit = of.threshold == NO_LIMIT and of.patience == PolicySpec.patience
    beyond = of.beyond_jax
    return [
        (named and of.rule not in NAMES, f"rule: {shorten(repr(of.rule))} should be one of {', '.join(NAMES)}"),
        (of.forward not in FORWARDS, f"forward: {of.forward!r} should be one of {', '.join(FORWARDS)}"),
        (not of.threshold >= 1.0, f"threshold: {of.threshold} should be a number of at least 1"),
        (
            of.ahead and (of.rule != GREEDY_WAIT or waiting or queue.preempt),
            f"ahead: is for {GREEDY_WAIT} only, without 'tX', 'pX' and 'preempt'",
        ),
        (not of.patience >= 0.0, f"patience: {of.patience} should be a number of at least 0"),
        (
            not waits and (waiting or of.lifetimes or of.observe),
            f"threshold, patience, lifetimes and observe are for {' and '.join(WAITING)} only",
        ),
        (waits and queue.racks, f"'racks' is not for {' and '.join(WAITING)}, whose candidates know nothing of racks"),
        (
            of.rule == MATCH and not queue.preempt and queue.order not in LENGTHS,
            f"without 'preempt' it weighs jobs by length: one of the orders {', '.join(LENGTHS)}",
        ),
        (
            of.rule == MATCH and queue.preempt and of.lifetimes,
            "'lifetime' goes by run times, with 'preempt' all jobs count the same",
        ),
        (queue.reserve and not passed, "'reserve' needs a queue order and 'backfill': it holds back who would pass"),
        (
            of.seek is not None and (of.forward != TO_ANY or queue.preempt or not passed),
            f"'seek' needs {TO_ANY!r}, 'backfill' and an order, and no 'preempt'",
        ),
        (
            beyond is not None and (not named or of.rule == RANDOM or callable(queue.order)),
            f"{beyond} is for the event loop, which plays {', '.join(_SEARCHING)} and {MATCH} by named orders only; "
            "take one of these, or leave it out",
        ),
        (
            waits and queue.preempt and waiting and not limit,
            "'tX' and 'pX' say how long jobs wait, with 'preempt' they do not wait",
        ),
        (of.search > 0 and of.seek is not None, "'seek' does not go with a search, whose choices are of one queue"),
        (of.search > 0 and of.rule not in _SEARCHING, _SEARCH_UNDER),
        (
            of.search > 0 and queue.order not in SEARCHED,
            f"searches in the orders {', '.join(SEARCHED)} only, not in {queue.order}",
        ),
        (
            not 0 <= of.search <= MOST_ALTERNATIVES,
            f"search: {of.search} should be a number of choices from 0 to {MOST_ALTERNATIVES}",
        ),
    ]


def make_spec(rule: str | Rule, **given: Any) -> PolicySpec:
    """The policy of a rule with what it has by default, changed by what is `given`: fields of it and of its queue.

    Raises:
        UserError: of what is given, something is unknown, out of range, or does not go together.
    """
    rule = next((name for name, function in RULES.items() if function is rule), rule)
    waits = rule in WAITING
    numbered = bool(given.keys() & {"threshold", "patience"} or given.get("preempt"))
    ahead = given.get("ahead", rule == GREEDY_WAIT and not numbered)
    queue = _AHEAD if ahead else _LOOKED_AT if waits else FIFO
    if rule == MATCH:
        queue = dataclasses.replace(queue, window=MATCH_WINDOW)
    if rule == GREEDY_WAIT and given.get("preempt"):
        queue = dataclasses.replace(queue, window=1)
    if rule == RANDOM:
        given = {"backfill": True} | given  # it draws among all jobs that may start
    if waits and given.get("preempt"):
        given = {"threshold": NO_LIMIT} | given
    if ahead:
        given = {"ahead": True, "lifetimes": True} | given
    own = {name: given.pop(name) for name in _QUEUE if name in given}
    if "queue" in given and own:
        raise UserError(f"queue: is given, and so is {next(iter(own))}, which is a part of it; give one of the two")
    if waits and given.get("forward") is None:
        given["forward"] = TO_ANY if ahead else TO_IDLE
    unknown = given.keys() - {field.name for field in dataclasses.fields(PolicySpec)}
    if unknown:
        known = [field.name for field in dataclasses.fields(PolicySpec)][1:]
        raise UserError(f"policy: unknown {min(unknown)!r}; it may have {', '.join((*known, *_QUEUE))}")
    given.setdefault("queue", None)
    if given["queue"] is None:
        given["queue"] = dataclasses.replace(queue, **own)
    return PolicySpec(rule, **{name: value for name, value in given.items() if name != "forward" or value is not None})


def parse_spec(spelled: str) -> PolicySpec:
    """The policy of a name such as `pack:sjf+backfill`.

    Raises:
        UserError: the name is none. Says what is wrong, and what would be right.
    """
    if len(spelled) > LONGEST_NAME:
        raise UserError(f"policy {shorten(spelled)!r}: should have at most {LONGEST_NAME} characters")
    searches, text = spelled.partition(":")[0] == SEARCH, spelled
    if searches:
        text = spelled.partition(":")[2]
        text = text if ":" in text else text.replace("+", ":", 1)
    name, _, rest = text.partition(":")
    if searches and name not in _SEARCHING:
        raise UserError(f"policy {spelled!r}: {_SEARCH_UNDER}")
    given: dict[str, Any] = {"search": ALTERNATIVES} if searches else {}
    before: dict[str, str] = {}  # by field, the option that set it
    for option in [option for option in rest.split("+") if option]:
        found = _option(spelled, name, option, searches)
        if found is None:
            waits = ("lifetime", "tX", "pX", "observe") if name in WAITING else ()
            known = (*ORDERS, *SWITCHES, *FORWARDS, "seek", "hX", "qX", *waits, *(("nN",) if searches else ()))
            raise UserError(f"policy {spelled!r}: unknown option {option!r}: one of {', '.join(known)}")
        field, value = found
        if field in before:
            raise UserError(f"policy {spelled!r}: {option!r} after {before[field]!r}: give one of the two")
        before[field], given[field] = option, value
    if "hysteresis" in given and not given.get("preempt"):
        raise UserError(
            f"policy {spelled!r}: {before['hysteresis']!r} says whom a job may displace, which needs 'preempt'"
        )
    if "quantum" in given and given.get("order") != "tiresias":
        raise UserError(f"policy {spelled!r}: {before['quantum']!r} is the threshold of the order 'tiresias'")
    if given.get("reserve") and not (name in WAITING or "backfill" in given):
        raise UserError(
            f"policy {spelled!r}: 'reserve' needs a queue order and 'backfill': it holds back who would pass"
        )
    try:
        return make_spec(name, **given)
    except UserError as error:
        raise UserError(f"policy {spelled!r}: {error}") from None


def _option(spelled: str, rule: str, option: str, searches: bool) -> tuple[str, Any] | None:
    """The field that an option sets, and to what; None if there is no such option."""
    simple = dict.fromkeys(ORDERS, "order") | dict.fromkeys(FORWARDS, "forward")
    if option in simple:
        return simple[option], option
    if option in SWITCHES:
        return option, True
    if option == "seek":
        return "seek", BY_HAND
    if rule in WAITING and option in _FLAGS:
        return _FLAGS[option], True
    letter = option[0]
    if searches and letter == "n" and option[1:2].isdigit():
        count = int(option[1:]) if option[1:].isdecimal() else 0
        if not 1 <= count <= MOST_ALTERNATIVES:
            raise UserError(
                f"policy {spelled!r}: {option!r} should be nN with a number N from 1 to {MOST_ALTERNATIVES}"
            )
        return "search", count
    if letter in "hq" and option[1:2].isdigit():
        return _NUMBERS[letter], _number(spelled, option, 0.0, 1e12)
    if rule in WAITING and letter in "tp":
        return _NUMBERS[letter], _number(spelled, option, 1.0 if letter == "t" else 0.0, 1e5)
    return None


def _number(spelled: str, option: str, lowest: float, limit: float) -> float:
    try:
        value = float(option[1:])
    except ValueError:
        value = float("nan")
    if not lowest <= value < limit:
        raise UserError(f"policy {spelled!r}: {option!r} should be {option[0]}X with a number X of at least {lowest:g}")
    return value


def spell(of: PolicySpec) -> str | None:
    """The name that `parse_spec` makes this policy of; None if it has none, as with functions or a window in it."""
    queue = of.queue
    if not (isinstance(of.rule, str) and isinstance(queue.order, str) and of.seek in (None, BY_HAND)):
        return None
    usual = make_spec(of.rule, ahead=of.ahead) if of.rule == GREEDY_WAIT else make_spec(of.rule)
    base = make_spec(of.rule, preempt=True, order=queue.order) if queue.preempt else usual
    options = [queue.order] if queue.order != usual.queue.order else []
    options += [name for name in SWITCHES if getattr(queue, name) and not getattr(usual.queue, name)]
    options += [of.forward] if of.forward != usual.forward else []
    options += ["seek"] if of.seek is not None else []
    options += [option for option, field in _FLAGS.items() if getattr(of, field) and not getattr(usual, field)]
    for letter, field in _NUMBERS.items():
        value, default = (queue, base.queue) if field in _QUEUE else (of, base)
        if getattr(value, field) != getattr(default, field):
            options.append(letter + repr(float(getattr(value, field))).removesuffix(".0"))
    if of.rule == GREEDY_WAIT and not (of.ahead or queue.preempt) and (of.threshold, of.patience) == (1.0, 1.0):
        options.append("p1")
    options += [f"n{of.search}"] if of.search not in (0, ALTERNATIVES) else []
    name = ":".join(part for part in (SEARCH if of.search else "", of.rule, "+".join(options)) if part)
    return name if parse_spec(name) == of else None
