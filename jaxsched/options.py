"""Options: what users set, each written once, as a field with its type, default, help, unit and check.

The command line, YAML, `compare`, `make`, `Settings` and cards derive from these dataclasses: `ClusterOptions` and
`JobOptions` say what `load_scenario` loads, `World` and `EvaluatedWorld` what all policies of a comparison play under,
`RunOptions` how runs are played. A class that inherits one may give other defaults. No JAX here: `--help` answers at
once.
"""

import dataclasses
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from os import PathLike
from typing import Any, NamedTuple, Self

from jaxsched.errors import UserError
from jaxsched.semantics import HISTORY, KNOWLEDGE, MOST_FORWARDS, RUNTIMES

AUTO, JAX, COMPILED = ENGINES = ("auto", "jax", "compiled")
CPU, ACCELERATOR = PATHS = ("cpu", "accelerator")
SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S = 1e-6, 1e9
MOST_ROUNDS = 1 << 16
LONGEST_RESTART_S = 1e9  # that a restart may take, and the like
MOST_SIGMA = 3.0  # of the factors of pairs of models: some are then 1,000 times their mean
MOST_JOBS = 10_000_000  # of all seeds: a gigabyte or two; a mistyped number must not take all memory
LEAST_LOAD, MOST_LOAD = 1e-6, 1e6
MOST_ERROR = 10.0  # the largest of a million errors is then a factor of 1e21: float32 holds what follows of it
SMALLEST_SHARE = 0.001  # of a GPU
INTERFERENCE = "default|none|analytic|fitted|DIR"  # in help texts
ON_OFF = {"on": True, "off": False}


class Values(NamedTuple):
    """What an option may be."""

    shown: str  # in its help, such as X or cpu|accelerator
    allow: Callable[[Any], bool]
    wanted: str  # what the error says of a value that is not allowed: "should be ..."
    unit: str = ""
    words: Mapping[str, Any] | None = None  # on the command line it is one of these


class Option(NamedTuple):
    """What is known of a field beside its name, type and default; of those without help the command line has none."""

    help: str
    values: Values


def option(default: Any, help: str, values: Values) -> Any:
    """A field of an `Options` class. None is allowed where it is the default: then the option is not given."""
    return dataclasses.field(default=default, metadata={"option": Option(help, values)})


def _is(kind: type, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def number(low: float, high: float, wanted: str, unit: str = "", shown: str = "X") -> Values:
    """A real number from `low` to `high`."""
    return Values(shown, lambda value: _is(Real, value) and low <= float(value) <= high, wanted, unit)


def seconds(low: float = 0.0, high: float = LONGEST_RESTART_S) -> Values:
    """So many seconds, from `low` to below `high`."""
    wanted = f"a number of seconds from {low:g} to {high:g}"
    return Values("X", lambda value: _is(Real, value) and low <= float(value) < high, wanted, "s")


def whole(low: int, high: int, wanted: str, shown: str = "N") -> Values:
    """A whole number from `low` to `high`."""
    return Values(shown, lambda value: _is(Integral, value) and low <= int(value) <= high, wanted)


def one_of(*names: str) -> Values:
    """One of some words."""
    return Values("|".join(names), lambda value: value in names, f"one of {', '.join(names)}")


def text(shown: str) -> Values:
    """A text, or a path; what reads it checks the rest."""
    return Values(shown, lambda value: isinstance(value, str | PathLike), "a text")


def text_or(shown: str, wanted: str) -> Values:
    """A text, a path, or an object, which no file holds; what reads it checks the rest."""
    plain = bool | int | float | complex | list | tuple | dict | set | bytes | None
    return Values(shown, lambda value: not isinstance(value, plain), wanted)


def anything(shown: str, unit: str = "") -> Values:
    """Anything but None; what reads it checks the rest."""
    return Values(shown, lambda value: value is not None, "given", unit)


def real(unit: str = "") -> Values:
    """A number; what reads it checks its range."""
    return Values("X", lambda value: _is(Real, value), "a number", unit)


def flag(*, on_off: bool = False) -> Values:
    """True or False; on the command line there or not, or with `on_off` one of these words."""
    return Values("on|off", lambda value: isinstance(value, bool), "True or False", words=ON_OFF if on_off else None)


SEED = whole(0, 2**31 - 1, "at least 0 and less than 2^31")
AT_LEAST_ONE = whole(1, 2**31 - 1, "at least 1")
LIMIT_S = number(1e-300, 1e300, "a finite number of seconds > 0", "s")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Fields that check themselves when an object is made. UserError names the field and what would be right."""

    def __post_init__(self) -> None:
        known = describe(type(self))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name not in known or (value is None and field.default is None):
                continue
            values = known[field.name].values
            if not values.allow(value):
                shown = repr(value) if isinstance(value, str) else " ".join(str(value).split())  # arrays have lines
                raise UserError(f"{field.name}: {shown} should be {values.wanted}")

    @classmethod
    def taken_from(cls, other: Any, **more: Any) -> Self:
        """One of the fields of `other` that have the same names, and `more`."""
        return cls(**{name: getattr(other, name) for name in list_names(cls) if hasattr(other, name)} | more)


def list_names(kind: type) -> list[str]:
    """The names of a class's fields."""
    return [field.name for field in dataclasses.fields(kind)]


def describe(kind: type) -> dict[str, Option]:
    """What is known of each field of a class, also where it gives a field of its base another default."""
    found: dict[str, Option] = {}
    for base in reversed(kind.__mro__):
        for name, field in vars(base).get("__dataclass_fields__", {}).items():
            if "option" in field.metadata:
                found[name] = field.metadata["option"]
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterOptions(Options):
    """The cluster."""

    cluster: str = option(
        "leaf-spine-8",
        "A preset such as leaf-spine-N with N servers of 8 GPUs (`jaxsched cluster --help` names all), or a .csv (node "
        "list, host map) or .yaml file.",
        text_or("NAME|FILE", "a name, a file or a cluster"),
    )
    schedulers: int | None = option(
        None,
        "Schedulers, each with its own partition of the servers (default: the cluster's).",
        AT_LEAST_ONE._replace(shown="P"),
    )
    gpu_speeds: str | None = option(
        None,
        "GPU types of your own beside the known ones, or other speeds, YAML: {RTX-9090: 3.0}, V100 = 1. A list of "
        "nodes may name these, and products by their makers' names (NVIDIA-A100-SXM4-80GB).",
        text("FILE"),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobOptions(Options):
    """The jobs; what is None is as the workload has it."""

    load: float | None = option(
        None,
        "Offered load to rescale the submit times to, 0.8 = 80% of all GPUs busy on average if nothing ever slowed "
        "down (default: a trace's own pace; 0.8 for synthetic jobs).",
        number(LEAST_LOAD, MOST_LOAD, f"a number from {LEAST_LOAD:g} to {MOST_LOAD:g}"),
    )
    num_jobs: int | None = option(
        None,
        "Jobs per seed (default: 1,000 synthetic ones, all of a trace).",
        whole(1, MOST_JOBS, f"from 1 to {MOST_JOBS:,}"),
    )
    since: float | None = option(
        None,
        "Only a trace's jobs from this share of them on, in order of submission: 0.6 leaves the first 60% out.",
        real(),
    )
    until: float | None = option(None, "Only a trace's jobs before this share of them.", real())
    mean_duration_s: float | None = option(
        None, "Mean run time of synthetic jobs (default: the workload's own).", real("s")
    )
    duration_cap_s: float | None = option(None, "Longest run time of synthetic jobs (default: no limit).", real("s"))
    gpu_share: float | None = option(
        None,
        "Share of a GPU that jobs of one whole GPU ask for, at least 0.001: at 0.5 two of them may lie on one GPU "
        "(default: 1). What a trace says of a job that shares its GPU stays.",
        number(SMALLEST_SHARE, 1.0, f"from {SMALLEST_SHARE:g} to 1"),
    )
    mix: object = option(
        "default",
        "Models of the jobs where no trace names them: default (all alike), network-heavy, cpu-heavy, muri, or the "
        "names of models with commas between.",
        anything("NAME|MODELS"),
    )
    trace_gpu: str | None = option(
        None,
        "GPU type that run times are on where a trace does not say for each job, e.g. V100 (default: the type of most "
        "of the cluster's GPUs).",
        text("TYPE"),
    )
    duration_error: float = option(
        0.0,
        "Policies see run times with a random error, duration * exp(X z), z standard normal: the same for all "
        "policies. Under knows history and nothing they see none, whatever the error.",
        number(0.0, MOST_ERROR, f"a finite number >= 0 and <= {MOST_ERROR:g}"),
    )
    seed: int = option(0, "First seed, of the jobs and of policies that draw.", SEED)

    def __post_init__(self) -> None:
        super().__post_init__()
        since, until = self.part
        if not 0.0 <= since < until <= 1.0:
            raise UserError(f"since, until: {since:g}, {until:g} should be shares of the jobs, 0 <= since < until <= 1")

    @property
    def part(self) -> tuple[float, float]:
        """The shares of a trace's jobs from which and before which they are taken."""
        return 0.0 if self.since is None else self.since, 1.0 if self.until is None else self.until


@dataclasses.dataclass(frozen=True, kw_only=True)
class World(Options):
    """The rules that all policies play under, in an evaluation as in training."""

    knows: str = option(
        RUNTIMES,
        "What policies know of run times: history is those of finished jobs, by which they estimate others; policies "
        "that need more are refused (`jaxsched evaluate --help`).",
        one_of(*KNOWLEDGE),
    )
    preemption: bool = option(
        False,
        "Whether schedulers may stop running jobs and start them again later; policies with preempt do.",
        flag(on_off=True),
    )
    restart_s: float = option(
        60.0, "Seconds for which a job holds its GPUs before its work goes on, at every start but the first.", seconds()
    )
    checkpoint_s: float = option(
        0.0,
        "Seconds of work between two checkpoints; a job that is stopped, or whose server fails, goes on from the last "
        "one (0: from the stop; after a failure from its last start).",
        seconds(),
    )
    min_run_s: float = option(0.0, "A job is not stopped earlier after a start.", seconds())
    failures: str | None = option(
        None,
        "Servers fail: each by itself, exponential, mean hours up and mean hours out; 1000,4 for instance. Jobs on "
        "them fall back to their last checkpoint (default: none fails).",
        text("MTBF_H,MTTR_H"),
    )
    interference: object = option(  # a text; from Python a model or a law, too
        "default",
        "How jobs slow each other down: default is analytic but for jobs that share a GPU of a measured type (K80, "
        "P100, V100), which follow the fitted law; fitted follows measurements on the network, too; analytic:low and "
        "analytic:high are the ends of its range, DIR is a folder that `jaxsched interference fit` wrote.",
        text_or(INTERFERENCE, "a name, an Interference, or a law of that signature"),
    )
    interval_s: float = option(
        60.0,
        "Seconds between decisions.",
        number(
            SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S, f"from {SHORTEST_INTERVAL_S:g} to {LONGEST_INTERVAL_S:g} s", "s"
        ),
    )
    rounds: int = option(
        64, "Most decision rounds per interval.", whole(1, MOST_ROUNDS, f"at least 1 and at most {MOST_ROUNDS}")
    )
    max_forwards: int = option(
        2,
        f"How often a job may be forwarded to another scheduler, at most {MOST_FORWARDS} (0: never).",
        whole(0, MOST_FORWARDS, f"a whole number from 0 to {MOST_FORWARDS}"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.preemption and self.min_run_s != World.min_run_s:
            raise UserError("min_run_s: says when schedulers may stop jobs, but preemption is off")
        if not self.stops and (self.restart_s, self.checkpoint_s) != (World.restart_s, World.checkpoint_s):
            raise UserError(
                "restart_s, checkpoint_s: say what stopping jobs costs, but preemption and failures are off"
            )

    @property
    def fails(self) -> bool:
        """Servers go out and come back."""
        return bool(self.failures)

    @property
    def stops(self) -> bool:
        """Jobs may start more than once."""
        return self.preemption or self.fails

    @property
    def only_seen(self) -> bool:
        """Jobs with profiles know only the step times that they have seen. UserError: they cannot know so little."""
        if self.knows not in (RUNTIMES, HISTORY):
            raise UserError(f"--knows {self.knows}: with --profiles jobs know {RUNTIMES} or {HISTORY}; say one")
        return self.knows == HISTORY


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluatedWorld(World):
    """What in a comparison is drawn or read once, and the same for all policies and seeds."""

    failure_seed: int = option(0, "Of the failures: the same for all policies and seeds.", SEED)
    outages: object = option(
        None,
        "Servers are out as a file says (.csv: server,from_s,to_s): servers by name, server0 and so on where they have "
        "none; seconds from the first job's submission on.",
        anything("FILE"),
    )
    pair_factors: float | None = option(
        None,
        "What one model adds to another's time on a shared GPU has a random factor for each pair, exp(X z - X^2 / 2), "
        "z standard normal by the seed; policies see how their jobs get on, not the factors (default: the law is "
        "exact).",
        number(0.0, MOST_SIGMA, f"from 0 to {MOST_SIGMA:g}"),
    )
    pairs_known: bool = option(False, "Policies see these factors.", flag())
    models: object = option(
        None,
        "Models of your own beside the catalogue's, YAML: name, compute_s, gradient_bytes and more "
        "(jaxsched/workload/catalogue.py has an example). llm: published language models, cut up by their plans. "
        "A trace whose rows have plans: these.",
        anything("FILE"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.failures and self.outages is not None:
            raise UserError("failures, outages: servers fail by rates or as a file says, give one of them")
        if self.failure_seed != EvaluatedWorld.failure_seed and not self.failures:
            raise UserError("failure_seed: says which failures are drawn, but there are none; give failures, too")
        if self.pairs_known and self.pair_factors is None:
            raise UserError("pairs_known: says that policies see the factors of pair_factors, which are off")
        if self.pair_factors is not None and isinstance(self.interference, str) and self.interference == "none":
            raise UserError("pair_factors: factors of what jobs add to each other's time, but interference is none")

    @property
    def fails(self) -> bool:
        """Servers go out and come back."""
        return bool(self.failures) or self.outages is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """How runs are played; of all this only the horizon changes what becomes of jobs."""

    engine: str = option(
        AUTO,
        "What plays the runs: jax is the environment; compiled, an event loop for the CPU, is 6 to 30 times faster and "
        "plays all hand-written policies but random, alone those that stop jobs; auto is compiled where that has "
        "what is needed.",
        one_of(*ENGINES),
    )
    device: str = option(
        CPU,
        "Where JAX plays; on an accelerator all seeds as one program, which takes longer to compile than that saves "
        "with 64 of them. Rules go there with --engine jax only.",
        one_of(*PATHS),
    )
    debug_checks: bool = option(
        False,
        "Check after every decision round that numbers are finite and no GPU or job is lost; slower, in JAX.",
        flag(),
    )
    horizon_s: float | None = option(
        None, "Cut the runs off at this simulated time (default: run until every job has finished).", LIMIT_S
    )
