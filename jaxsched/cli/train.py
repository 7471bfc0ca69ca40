"""`jaxsched train`: learn the schedulers' policy, or a few numbers from a workload, or go on with a run."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import tyro

from jaxsched.cli.options import flatten, optional, read_word
from jaxsched.cli.train_numbers import NETWORK, ONLY_HERE, is_asked, is_given, learn_numbers, spell_option
from jaxsched.options import ClusterOptions, JobOptions, Options, World, describe, list_names

if TYPE_CHECKING:
    from jaxsched.cli.output import Display
    from jaxsched.learning.config import TrainConfig
    from jaxsched.learning.loop import Report


HELP = """Train the schedulers, or resume a run.

The run's folder gets policy/ (the best checkpoint by validation), untrained/ (the same network with its first weights),
state/ (to resume from), metrics.jsonl and timing.jsonl. A run that was stopped, by any means, goes on bit for bit.

The options of cluster and world replace what the configuration says.

With --workload, no network of schedulers is trained, but a few numbers are learned from jobs. --learn says which:
levels, an order of jobs by run time so far and GPUs, where run times are hidden and jobs may be stopped; or seeking,
which says where jobs wait and start, where run times are known and jobs are not stopped, and which can be learned from
training worlds, too. With --learn network the network is trained on stretches of the trace.

Examples:
  jaxsched train --config configs/quickstart.yaml --out runs/mine
  jaxsched train --config configs/quickstart.yaml --cluster leaf-spine-16 --load 0.9 --seed 1 --out runs/larger
  jaxsched train --config configs/default.yaml --shards 2 --out runs/on-two-cores
  jaxsched train --config configs/quickstart.yaml --out runs/watched --track tensorboard wandb
  jaxsched train --resume runs/mine
  jaxsched train --from quickstart --cluster torus2d-16 --load 0.9 --freeze critic --out runs/tuned
  jaxsched train --workload trace.csv --until 0.6 --cluster leaf-spine-64 --load 0.9 --out runs/levels
  jaxsched train --workload trace.csv --until 0.6 --learn network --config configs/quickstart.yaml --out runs/own
  jaxsched train --workload distributed --learn seeking --cluster leaf-spine-16 --schedulers 4 --out runs/seek
  jaxsched train --worlds any:100 contended:100 --learn seeking --max-forwards 20 --out runs/everywhere
  jaxsched evaluate --policies pack greedy-wait runs/mine/policy
"""


COMPILING = "the training program, about 1 to 2 minutes (less where it was kept from an earlier run)"
NO_OPTION = ("rounds",)  # of a world, but in the configuration only
ENVIRONMENT = (*list_names(ClusterOptions), *(name for name in list_names(World) if name not in NO_OPTION))
OVERRIDES = (*ENVIRONMENT, "load", "trace_gpu", "shards", "path", "seed")
START = ("begin", "freeze")


def _replacing(kind: type[Options], names: Collection[str]) -> dict[str, tuple[Any, Any]]:
    """Options of `kind` for `flatten`, which replace what the configuration says where they are given."""
    hints, found = get_type_hints(kind), {}
    for name, (help, values) in describe(kind).items():
        if name in names:
            hint = str if values.words is not None or hints[name] is object else hints[name]
            argument = tyro.conf.arg(metavar=values.shown, help=help, help_behavior_hint="")
            found[name] = Annotated[hint | None, argument], None
    return found


_Overrides = flatten(
    "_Overrides",
    _replacing(ClusterOptions, ENVIRONMENT),
    _replacing(World, ENVIRONMENT),
    _replacing(JobOptions, ("trace_gpu",)),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Run:
    """What is trained, and where it is kept."""

    config: Annotated[Path | None, optional("FILE")] = None
    """What to train, YAML (default: the quickstart's configuration)."""
    workload: Annotated[str | None, optional("FILE|NAME")] = None
    """Learn from these jobs, as of `jaxsched evaluate --workload`."""
    worlds: Annotated[tuple[str, ...], optional("FAMILY:COUNT ...")] = ()
    """Learn from these training worlds, as of `jaxsched evaluate --worlds`; only seeking is."""
    learn: Annotated[str | None, optional("levels|seeking|network")] = None
    """What is learned from --workload (default: levels) or --worlds."""
    until: Annotated[float | None, optional("X")] = None
    """Of --workload only the jobs before this share, in order of submission; judge by `evaluate --since X`."""
    generations: Annotated[int | None, optional("N")] = None
    """With --workload or --worlds: how often candidates are compared (default: 25 for levels, 30 for seeking)."""
    out: Annotated[Path | None, optional("FOLDER")] = None
    """Folder of the new run."""
    resume: Annotated[Path | None, optional("RUN")] = None
    """Folder of an earlier run to go on with; it knows its configuration."""
    track: Annotated[tuple[str, ...], optional("tensorboard|wandb ...")] = ()
    """Also write metrics for TensorBoard or Weights & Biases (offline) into the run's folder."""
    profile: Annotated[Path | None, optional("FOLDER")] = None
    """Have JAX's profiler record three chunks, and write there what it saw (docs/performance.md: how to read it)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(_Overrides, _Run):
    """Train the schedulers, or resume a run."""

    load: Annotated[float | None, optional("X")] = None
    """Offered load of all environments, instead of a range; with --workload that of its jobs (default: their pace);
    with --worlds a factor of that of each world."""
    shards: Annotated[int | None, optional("N")] = None
    """Split the environments into N parts, each with a CPU core or an accelerator of its own if there are N; if there
    are not, all parts are computed on one, and that is said."""
    path: Annotated[str | None, optional("auto|cpu|accelerator")] = None
    """What the program is made for. On cpu environments play one after the other; on accelerator all play in step, in
    turns. Either runs on any device; auto looks which it is."""
    hosts: Annotated[str | None, optional("auto|HOST:PORT,COUNT,NUMBER")] = None
    """Train with other processes, each of which is started with the same command: the address of the first, how many
    there are, which one this is; auto finds it out under Slurm. All must see the folder."""
    begin: Annotated[str | None, tyro.conf.arg(name="from", metavar="CHECKPOINT", help_behavior_hint="")] = None
    """Begin with the weights of a checkpoint, and with its network; the run's untrained policy has them, too."""
    freeze: Annotated[tuple[str, ...], optional("PART ...")] = ()
    """Parts of the network that stay as they are, by their names in the weights; a wrong one is told with all names."""
    seed: Annotated[int | None, optional("N")] = None
    """Seed of weights, environments and jobs."""
    debug_checks: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Check after every decision round that numbers are finite and no GPU or job is lost; slower, and computes the
    same."""

    def run(self) -> None:
        """Train and say where the policy is. UserError on any mistake."""
        from jaxsched.errors import UserError

        given = [
            spell_option(name) for name in ("config", "out", *ONLY_HERE, *OVERRIDES, *START) if is_given(self, name)
        ]
        if self.resume is not None and given:
            options = ", ".join(given)
            raise UserError(f"--resume takes no {options}: a run knows its configuration and its folder")
        if is_asked(self):
            learn_numbers(self)
        else:
            self._train_network()

    def _train_network(self) -> None:
        import shlex
        import sys

        from jaxsched.cli.output import Display
        from jaxsched.errors import UserError
        from jaxsched.io.files import check_folder
        from jaxsched.io.json_file import read_rows
        from jaxsched.learning import devices
        from jaxsched.learning.config import load_config, quickstart_config, to_dict
        from jaxsched.learning.loop import METRICS_FILE, STATE_FOLDER, compare_with_start, train
        from jaxsched.learning.state import has_step, read_saved_config
        from jaxsched.learning.trackers import open_trackers
        from jaxsched.learning.untrained import UNTRAINED_FOLDER, doubts
        from jaxsched.policies.checkpoint import read_card

        if self.hosts is not None:
            devices.join(self.hosts)
        devices.provide_devices()
        if self.resume is not None:
            folder, config = self.resume, read_saved_config(self.resume / STATE_FOLDER)
        elif self.out is not None:
            config = quickstart_config() if self.config is None else load_config(self.config)
            folder, config = self.out, self.overridden(config)
        else:
            raise UserError("give --out FOLDER for a new run, or --resume RUN to go on with one")
        check_folder(folder, "--out" if self.resume is None else "--resume")
        state = folder / STATE_FOLDER
        rows = read_rows(folder / METRICS_FILE) if self.resume is not None else []
        devices.check_shards(config.ppo.shards)
        first = devices.is_first()
        for line in compare_with_start(config) if first else ():
            print(f"train: {line}", file=sys.stderr)
        if (said := devices.shared_devices(config.ppo.shards)) and first:
            print(f"train: {said}", file=sys.stderr, flush=True)
        try:
            with (
                open_trackers(self.track if first else (), folder, to_dict(config), self._profiled(config)) as track,
                Display(["train"], config.ppo.chunks, "chunks") as display,
            ):
                policy = train(
                    config,
                    folder,
                    resume=self.resume is not None,
                    report=reporter(display, config, track, rows) if first else None,
                    command=self.command(),
                    begin=compiling(display) if first else None,
                    debug_checks=self.debug_checks,
                )
        except KeyboardInterrupt as stop:
            hint = (
                [f"go on with: jaxsched train --resume {shlex.quote(str(folder))}"]
                if self.hosts is None and has_step(state)
                else []
            )
            raise type(stop)(*hint) from None
        if not first:
            return
        if read_card(policy)["validation_jct_s"] is None:
            print(f"no validation run came to its end: the last weights are in {policy}; compare them with others:")
        else:
            print(f"the best policy by validation is in {policy}; compare it with others:")
        own = config.workload
        rest = f" --workload {shlex.quote(own.trace)} --since {own.until:g}" if own.trace and own.until < 1.0 else ""
        print(f"  jaxsched evaluate{rest} --policies pack greedy-wait {folder / UNTRAINED_FOLDER} {policy}")
        decisions = sum(row["decisions"] for row in read_rows(folder / METRICS_FILE))
        for line in doubts(read_card(policy)["curve"], decisions):
            print(f"train: {line}", file=sys.stderr)

    def _profiled(self, config: "TrainConfig") -> Path | None:
        """The folder for a profile. UserError if it cannot be written, or there will be nothing to record."""
        from jaxsched.errors import UserError
        from jaxsched.io.files import check_folder

        if self.profile is not None and config.ppo.chunks < 2:
            raise UserError("--profile: records from the second chunk on, this run has one")
        return self.profile and check_folder(self.profile, "--profile")

    def command(self) -> str:
        """This command, as one would type it."""
        import shlex

        words = ["jaxsched", "train"]
        for name in ("config", *ONLY_HERE, *OVERRIDES, *START, "out"):
            if is_given(self, name):
                value = getattr(self, name)
                words += [spell_option(name), *(value if isinstance(value, tuple) else [str(value)])]
        return shlex.join(words)

    def _begun(self, config: "TrainConfig") -> "TrainConfig":
        """`config` with the start that the options say, and the network of the checkpoint that it is."""
        from jaxsched.errors import UserError
        from jaxsched.learning.untrained import network_of

        if self.begin is None:
            if self.freeze and not config.start.checkpoint:
                raise UserError("--freeze: is for weights that were learned before; give --from CHECKPOINT, too")
            freeze = {"freeze": self.freeze} if self.freeze else {}
            return dataclasses.replace(config, start=dataclasses.replace(config.start, **freeze))
        network = dataclasses.replace(config.network, **network_of(self.begin))
        start = dataclasses.replace(config.start, checkpoint=self.begin, freeze=self.freeze or config.start.freeze)
        return dataclasses.replace(config, network=network, start=start)

    def overridden(self, config: "TrainConfig") -> "TrainConfig":
        """`config` with what the options say instead."""
        from jaxsched.errors import UserError
        from jaxsched.learning.config import validate

        def given(*names: str) -> dict:
            return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

        if self.gpu_speeds is not None:
            raise UserError(
                "--gpu-speeds: is for numbers that are learned, no networks; say gpu_speeds in a cluster's file"
            )
        world = given(*ENVIRONMENT)
        for name, (_, values) in describe(World).items():
            if name in world and values.words is not None:
                world[name] = read_word(name, world[name], values.words)
        try:
            env = dataclasses.replace(config.env, **world)
        except UserError as error:
            raise UserError(f"options: env: {error}") from None
        load = {} if self.load is None else {"load": (self.load, self.load)}
        own = {} if self.learn != NETWORK else {"trace": self.workload, **given("until")}
        jobs = dataclasses.replace(config.workload, **load, **given("trace_gpu"), **own)
        ppo = dataclasses.replace(config.ppo, **given("shards"))
        machine = dataclasses.replace(config.machine, **given("path"))
        changed = dataclasses.replace(config, env=env, workload=jobs, ppo=ppo, machine=machine, **given("seed"))
        changed = self._begun(changed)
        return validate(changed, "options")


def compiling(display: "Display") -> Callable[[], None]:
    """Says on `display` that a run waits for its program."""
    return lambda: display.compiling("train", COMPILING)


def reporter(
    display: "Display", config: "TrainConfig", track: "Report | None" = None, before: Sequence[dict[str, float]] = ()
) -> "Report":
    """Passes the rows of a training run on to `display`, and to `track` if there is one; `before`: what it had."""
    apart: list[tuple[int, float]] = []
    best = [min((row.get("validation_jct_s", float("inf")) for row in before), default=float("inf"))]

    def report(row: dict[str, float]) -> None:
        if track is not None:
            track(row)
        best[0] = min(best[0], row.get("validation_jct_s", best[0]))
        done = int(row["chunk"])
        note = f"(best validation JCT {best[0]:,.0f} s)" if best[0] < float("inf") else ""
        if not apart:
            apart.append((done, row["wall_s"]))  # the first chunk of a run waits for its program
        over = done == config.ppo.chunks
        display.update("train", done, row["wall_s"], over=over, note=note, apart=(0, 0.0) if over else apart[0])

    return report
