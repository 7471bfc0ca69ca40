"""Options that several commands share. No JAX here: `--help` answers at once."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from jaxsched.kube.read.settings import PlanSettings
    from jaxsched.simulation.scenario import Scenario
    from jaxsched.simulation.settings import Settings


INTERFERENCE = "default|none|analytic|fitted|DIR"


def optional(metavar: str):
    """A tyro argument that may be left out, and whose help text says what then happens."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


def file_of(policy: str) -> str:
    """What a policy's name may read: the file of `FILE.py:NAME`, else a folder of that name."""
    return policy.rpartition(":")[0] if ".py:" in policy else policy


def switched_on(preemption: str) -> bool:
    """What `--preemption` says. UserError if it says neither on nor off."""
    from jaxsched.errors import UserError

    if preemption not in ("on", "off"):
        raise UserError(f"--preemption: {preemption!r} should be on or off")
    return preemption == "on"


def plan_settings(**fields: Any) -> "PlanSettings":
    """Settings of `jaxsched kube`. UserError that names the option, not its field."""
    from jaxsched.errors import UserError
    from jaxsched.kube.read.settings import PlanSettings

    try:
        return PlanSettings(**fields)
    except UserError as error:
        field, _, wrong = str(error).partition(":")
        raise UserError(f"--{field.replace('_', '-')}:{wrong}") from None


Output = Annotated[Path | None, optional("FILE")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScenarioOptions:
    """The cluster, the jobs, and the rules of the simulation."""

    cluster: Annotated[str, tyro.conf.arg(metavar="NAME|FILE")] = "leaf-spine-8"
    """A preset such as leaf-spine-N with N servers of 8 GPUs (`jaxsched cluster --help` names all), or a .csv (node
    list, host map) or .yaml file."""
    schedulers: Annotated[int | None, optional("P")] = None
    """Schedulers, each with its own partition of the servers (default: the cluster's)."""
    workload: Annotated[str, tyro.conf.arg(metavar="NAME|FILE")] = "philly-like"
    """philly-like, philly-like-bursty, philly-like-diurnal, distributed, acme-like, acme-kalos-like, llm, poisson, the
    name of a public trace, or a trace file (.csv: native, Philly, Muri, openb)."""
    load: Annotated[float | None, optional("X")] = None
    """Offered load to rescale the submit times to, 0.8 = 80% of all GPUs busy on average if nothing ever slowed down
    (default: a trace's own pace; 0.8 for synthetic jobs)."""
    num_jobs: Annotated[int | None, optional("N")] = None
    """Jobs per seed (default: 1,000 synthetic ones, all of a trace)."""
    since: Annotated[float | None, optional("X")] = None
    """Only a trace's jobs from this share of them on, in order of submission: 0.6 leaves the first 60% out."""
    until: Annotated[float | None, optional("X")] = None
    """Only a trace's jobs before this share of them."""
    mean_duration_s: Annotated[float | None, optional("X")] = None
    """Mean run time of synthetic jobs (default: the workload's own)."""
    duration_cap_s: Annotated[float | None, optional("X")] = None
    """Longest run time of synthetic jobs (default: no limit)."""
    gpu_share: Annotated[float | None, optional("X")] = None
    """Share of a GPU that jobs of one whole GPU ask for, at least 0.001: at 0.5 two of them may lie on one GPU
    (default: 1). What a trace says of a job that shares its GPU stays."""
    mix: Annotated[str, tyro.conf.arg(metavar="NAME|MODELS")] = "default"
    """Models of the jobs where no trace names them: default (all alike), network-heavy, cpu-heavy, muri, or the names
    of models with commas between."""
    models: Annotated[str | None, optional("FILE")] = None
    """Models of your own beside the catalogue's, YAML: name, compute_s, gradient_bytes and more
    (jaxsched/workload/catalogue.py has an example)."""
    trace_gpu: Annotated[str | None, optional("TYPE")] = None
    """GPU type that run times are on where a trace does not say for each job, e.g. V100 (default: the type of most of
    the cluster's GPUs)."""
    duration_error: Annotated[float, tyro.conf.arg(metavar="X")] = 0.0
    """Policies see run times with a random error, duration * exp(X z), z standard normal: the same for all policies."""
    knows: Annotated[str, tyro.conf.arg(metavar="runtimes|estimates|history|nothing")] = "runtimes"
    """What policies know of run times: history is those of finished jobs, by which they estimate others; policies that
    need more are refused (`jaxsched evaluate --help`)."""
    preemption: Annotated[str, tyro.conf.arg(metavar="on|off")] = "off"
    """Whether schedulers may stop running jobs and start them again later; policies with preempt do."""
    restart_s: Annotated[float, tyro.conf.arg(metavar="X")] = 60.0
    """Seconds for which a job holds its GPUs before its work goes on, at every start but the first."""
    checkpoint_s: Annotated[float, tyro.conf.arg(metavar="X")] = 0.0
    """Seconds of work between two checkpoints; a job that is stopped, or whose server fails, goes on from the last one
    (0: from the stop; after a failure from its last start)."""
    min_run_s: Annotated[float, tyro.conf.arg(metavar="X")] = 0.0
    """A job is not stopped earlier after a start."""
    failures: Annotated[str | None, optional("MTBF_H,MTTR_H")] = None
    """Servers fail: each by itself, exponential, mean hours up and mean hours out; 1000,4 for instance. Jobs on them
    fall back to their last checkpoint (default: none fails)."""
    failure_seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Of the failures: the same for all policies and seeds."""
    outages: Annotated[str | None, optional("FILE")] = None
    """Servers are out as a file says (.csv: server,from_s,to_s): servers by name, server0 and so on where they have
    none; seconds from the first job's submission on."""
    interference: Annotated[str, tyro.conf.arg(metavar=INTERFERENCE)] = "default"
    """How jobs slow each other down: default is analytic but for jobs that share a GPU of a measured type (K80, P100,
    V100), which follow the fitted law; fitted follows measurements on the network, too; analytic:low and analytic:high
    are the ends of its range, DIR is a folder that `jaxsched interference fit` wrote."""
    pair_factors: Annotated[float | None, optional("X")] = None
    """What one model adds to another's time on a shared GPU has a random factor for each pair, exp(X z - X^2 / 2), z
    standard normal by the seed; policies see how their jobs get on, not the factors (default: the law is exact)."""
    pairs_known: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Policies see these factors."""
    interval_s: Annotated[float, tyro.conf.arg(metavar="X")] = 60.0
    """Seconds between decisions."""
    rounds: Annotated[int, tyro.conf.arg(metavar="N")] = 64
    """Most decision rounds per interval."""
    max_forwards: Annotated[int, tyro.conf.arg(metavar="N")] = 2
    """How often a job may be forwarded to another scheduler, at most 127 (0: never)."""
    engine: Annotated[str, tyro.conf.arg(metavar="auto|jax|compiled")] = "auto"
    """What plays the runs: jax is the environment; compiled, an event loop for the CPU, is 6 to 30 times faster and
    knows hand-written policies but random on jobs with whole GPUs; auto is compiled where that has what is needed."""
    device: Annotated[str, tyro.conf.arg(metavar="cpu|accelerator")] = "cpu"
    """Where JAX plays; on an accelerator all seeds as one program, which takes longer to compile than that saves with
    64 of them. Rules go there with --engine jax only."""
    debug_checks: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Check after every decision round that numbers are finite and no GPU or job is lost; slower, in JAX."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """First seed, of the jobs and of policies that draw."""

    def choose_device(self) -> None:
        """Have JAX see no accelerator if none is asked for; before the first array."""
        from jaxsched.machine import leave_accelerators_alone

        if self.device == "cpu":
            leave_accelerators_alone()

    @property
    def inputs(self) -> list[str]:
        """Names that may be those of files and folders that are read."""
        named = (self.cluster, self.workload, self.interference, self.models, self.outages)
        return [name for name in named if name is not None]

    def scenario(self, seeds: int | None) -> "Scenario":
        """The cluster and the jobs; UserError on a mistake."""
        from jaxsched.simulation.scenario import load_scenario

        return load_scenario(
            self.cluster,
            self.workload,
            schedulers=self.schedulers,
            load=self.load,
            num_jobs=self.num_jobs,
            since=self.since,
            until=self.until,
            mean_duration_s=self.mean_duration_s,
            duration_cap_s=self.duration_cap_s,
            gpu_share=self.gpu_share,
            mix=self.mix,
            trace_gpu=self.trace_gpu,
            models=self.models,
            duration_error=self.duration_error,
            seed=self.seed,
            seeds=seeds,
        )

    def settings(self, **more: Any) -> "Settings":
        """The rules of the simulation; `more` are further fields of `Settings`. UserError on a mistake."""
        from jaxsched.cluster.outages import read_outages
        from jaxsched.cluster.presets import get_inventory
        from jaxsched.simulation.settings import Settings

        return Settings(
            interval_s=self.interval_s,
            interference=self.interference,
            pair_factors=self.pair_factors,
            pairs_known=self.pairs_known,
            models=self.models,
            rounds=self.rounds,
            max_forwards=self.max_forwards,
            preemption=switched_on(self.preemption),
            restart_s=self.restart_s,
            checkpoint_s=self.checkpoint_s,
            min_run_s=self.min_run_s,
            failures=self.failures,
            failure_seed=self.failure_seed,
            outages=None if self.outages is None else read_outages(self.outages, get_inventory(self.cluster).names),
            knows=self.knows,
            engine=self.engine,
            device=self.device,
            debug_checks=self.debug_checks,
            seed=self.seed,
            **more,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """Where the work is done."""

    on: Annotated[str, tyro.conf.arg(metavar="local|ray[:ADDRESS]|slurm[:local]")] = "local"
    """Where the work is done: in this process, on a Ray cluster (ADDRESS is HOST:PORT; without it the one that is
    there, or a new one on this machine), or as Slurm jobs (slurm:local: as processes of this machine)."""
    ask: Annotated[tuple[str, ...], optional("KEY=VALUE ...")] = ()
    """What each task asks for. Ray: num_cpus, num_gpus, memory_gib. Slurm: submitit's parameters, such as timeout_min,
    mem_gb, cpus_per_task, gpus_per_node, slurm_partition, slurm_account."""
