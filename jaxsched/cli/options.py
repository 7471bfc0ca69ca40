"""Options that several commands share. No JAX here: `--help` answers at once."""

import contextvars
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import tyro

from jaxsched.options import (
    CPU,
    ON_OFF,
    ClusterOptions,
    EvaluatedWorld,
    JobOptions,
    Option,
    Options,
    RunOptions,
    describe,
)

if TYPE_CHECKING:
    from jaxsched.cluster.hardware import Cluster
    from jaxsched.kube.read.settings import PlanSettings
    from jaxsched.simulation.scenario import Scenario
    from jaxsched.simulation.settings import Settings


_given: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar("given", default=frozenset())


def note_given(words: Sequence[str]) -> None:
    """Keep which options a command line names, for `is_given`."""
    names = (word[2:].partition("=")[0] for word in words if word.startswith("--"))
    _given.set(frozenset(name.replace("-", "_") for name in names))


def is_given(command: Any, field: dataclasses.Field) -> bool:
    """Whether an option of a command was asked for; what its default says may be asked for, too."""
    return field.name in _given.get() or getattr(command, field.name) != field.default


class Tasks:
    """A command whose first word says what it does."""

    task: Any

    def run(self) -> None:
        """Run the task. UserError on any mistake."""
        self.task.run()


def optional(metavar: str):
    """A tyro argument that may be left out, and whose help text says what then happens."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


def file_of(policy: str) -> str:
    """What a policy's name may read: the file of `FILE.py:NAME`, else a folder of that name."""
    return policy.rpartition(":")[0] if ".py:" in policy else policy


def read_word(name: str, said: str, words: Mapping[str, Any] = ON_OFF) -> Any:
    """What an option says that is one of some words. UserError for another word."""
    from jaxsched.errors import UserError

    if said not in words:
        raise UserError(f"--{name.replace('_', '-')}: {said!r} should be {' or '.join(words)}")
    return words[said]


def plan_settings(gpu_speeds: Path | None = None, topology: str = "auto", **fields: Any) -> "PlanSettings":
    """Settings of `jaxsched kube`; `topology`: a preset's name, or labels. UserError that names the option."""
    from jaxsched.cluster.gpu_types import read_gpu_speeds
    from jaxsched.errors import UserError
    from jaxsched.kube.read.hints import TOPOLOGY_PRESETS
    from jaxsched.kube.read.settings import PlanSettings

    speeds = {} if gpu_speeds is None else read_gpu_speeds(gpu_speeds)
    labels = () if topology == "auto" else TOPOLOGY_PRESETS.get(topology, tuple(topology.split(",")))
    try:
        return PlanSettings(**fields, topology=labels, gpu_speeds=speeds)
    except UserError as error:
        field, _, wrong = str(error).partition(":")
        raise UserError(f"--{field.replace('_', '-')}:{wrong}") from None


JOBS_FOLDER = Path(".jaxsched-jobs")  # where Slurm's jobs keep their files
Output = Annotated[Path | None, optional("FILE")]


def flatten(name: str, *parts: type | Mapping[str, tuple[Any, Any]]) -> Any:
    """A dataclass as tyro has the options of a command.

    Args:
        name: of the class.
        parts: classes of `Options`, whose fields it has, and fields of its own by name, each with type and default.
    """
    fields: dict[str, tuple[Any, Any]] = {}
    for part in parts:
        if isinstance(part, Mapping):
            fields |= part
            continue
        defaults, hints = {field.name: field.default for field in dataclasses.fields(part)}, get_type_hints(part)
        fields |= {one: _as_argument(hints[one], defaults[one], known) for one, known in describe(part).items()}
    made = [(one, kind, dataclasses.field(default=default)) for one, (kind, default) in fields.items()]
    return dataclasses.make_dataclass(name, made, frozen=True, kw_only=True)


def read_words(command: Any, kind: type[Options]) -> dict[str, Any]:
    """The options of `kind` that are words on the command line, such as on and off. UserError for another word."""
    words = {name: values.words for name, (_, values) in describe(kind).items() if values.words is not None}
    return {name: read_word(name, getattr(command, name), known) for name, known in words.items()}


def _as_argument(hint: Any, default: Any, known: Option) -> tuple[Any, Any]:
    """Type and default of an option of the command line."""
    values = known.values
    if isinstance(default, bool) and values.words is None:
        return Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help=known.help)], default
    hint_of_default = "" if default is None else None
    argument = tyro.conf.arg(metavar=values.shown, help=known.help, help_behavior_hint=hint_of_default)
    if values.words is not None:
        return Annotated[str, argument], next(word for word, value in values.words.items() if value == default)
    if hint is object:
        hint = str if default is not None else str | None
    return Annotated[hint, argument], default


_WORKLOAD = tyro.conf.arg(
    metavar="NAME|FILE",
    help="philly-like, philly-like-bursty, philly-like-diurnal, distributed, acme-like, acme-kalos-like, llm, poisson, "
    "the name of a public trace, or the file of a trace or a job log (`jaxsched import --help`).",
)
_NAMED = {"workload": (Annotated[str, _WORKLOAD], "philly-like")}


class ScenarioOptions(flatten("_Scenario", ClusterOptions, _NAMED, JobOptions, EvaluatedWorld, RunOptions)):
    """The cluster, the jobs, and the rules of the simulation."""

    def choose_device(self) -> None:
        """Have JAX see no accelerator if none is asked for; before the first array."""
        from jaxsched.machine import leave_accelerators_alone

        if self.device == CPU:
            leave_accelerators_alone()

    @property
    def inputs(self) -> list[str]:
        """Names that may be those of files and folders that are read."""
        named = (self.cluster, self.workload, self.interference, self.models, self.outages, self.gpu_speeds)
        return [str(name) for name in named if name is not None]

    def hardware(self) -> "Cluster":
        """The cluster alone: a trace takes long to read."""
        from jaxsched.cluster.presets import get_cluster

        return get_cluster(self.cluster, self.schedulers, self.gpu_speeds)

    def scenario(self, seeds: int | None) -> "Scenario":
        """The cluster and the jobs; UserError on a mistake."""
        from jaxsched.simulation.scenario import make_scenario

        on, of = ClusterOptions.taken_from(self), JobOptions.taken_from(self)
        return make_scenario(on, self.workload, of, self.models, seeds)

    def settings(self, **more: Any) -> "Settings":
        """The rules of the simulation; `more` are further fields of `Settings`. UserError on a mistake."""
        from jaxsched.cluster.outages import read_outages
        from jaxsched.cluster.presets import get_inventory
        from jaxsched.simulation.settings import Settings

        outages = None
        if self.outages is not None:
            outages = read_outages(self.outages, get_inventory(self.cluster, self.gpu_speeds).names)
        return Settings.taken_from(self, **read_words(self, Settings), outages=outages, **more)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """Where the work is done."""

    on: Annotated[str, tyro.conf.arg(metavar="local|ray[:ADDRESS]|slurm[:local]")] = "local"
    """Where the work is done: in this process, on a Ray cluster (ADDRESS is HOST:PORT; without it the one that is
    there, or a new one on this machine), or as Slurm jobs (slurm:local: as processes of this machine)."""
    ask: Annotated[tuple[str, ...], optional("KEY=VALUE ...")] = ()
    """What each task asks for. Ray: num_cpus, num_gpus, memory_gib. Slurm: submitit's parameters, such as timeout_min,
    mem_gb, cpus_per_task, gpus_per_node, slurm_partition, slurm_account."""
