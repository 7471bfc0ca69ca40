"""`jaxsched quickstart`: train, evaluate on held-out jobs, draw; `jaxsched examples`: what to copy and change first."""

import dataclasses
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxsched.cli.options import optional

if TYPE_CHECKING:
    from jaxsched.evaluation.tables import Comparison
    from jaxsched.learning.config import TrainConfig
    from jaxsched.simulation.settings import Settings

HELP = """Train two schedulers for a few minutes, compare them with heuristics, and draw the result.

Writes runs/quickstart: learning_curve.png, jct.png, comparison.json, the run itself, and checkpoint/. A run that was
interrupted goes on where it was; to train anew delete it, or choose another folder. The checkpoint of this name that
comes with jaxsched stays as it is: --policies quickstart is the shipped one.

Examples:
  jaxsched quickstart
  jaxsched quickstart --out runs/again
"""
POLICIES = (
    "random",
    "first-fit",
    "load-balance",
    "tetris",
    "least-interference",
    "contention-aware",
    "pack",
    "pack:area+backfill",
    "greedy-wait:p1",
    "greedy-wait",
)
WORKLOAD, LOAD, JOBS = "philly-like", 0.85, 300
FIRST_SEED, SEEDS = 1000, 8  # training draws its jobs in another way, so any seeds are held out
CURVE, JCT, JSON = "learning_curve.png", "jct.png", "comparison.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quickstart:
    """Train two schedulers for a few minutes, compare them with the field's heuristics, and draw the result."""

    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs/quickstart")
    """Folder of the training run, the figures and the table."""
    checkpoint: Annotated[Path | None, optional("FOLDER")] = None
    """Folder of the checkpoint (default: checkpoint in --out)."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """What to train, YAML (default: the quickstart's configuration)."""

    def run(self) -> None:
        """The whole path. UserError on any mistake."""
        from jaxsched.cli.output import Display, show
        from jaxsched.cli.train import compiling, reporter
        from jaxsched.evaluation import figures
        from jaxsched.evaluation.tables import record
        from jaxsched.io.files import write_text
        from jaxsched.learning.config import load_config, quickstart_config
        from jaxsched.learning.devices import provide_devices
        from jaxsched.learning.loop import METRICS_FILE, train_or_resume
        from jaxsched.learning.untrained import curve_of

        provide_devices()
        figures.check_figure(CURVE)
        config = quickstart_config() if self.config is None else load_config(self.config)
        checkpoint = self.out / "checkpoint" if self.checkpoint is None else self.checkpoint
        print(f"1/3 training on {config.env.cluster}, in {self.out}", flush=True)
        with Display(["train"], config.ppo.chunks, "chunks") as display:
            command = "jaxsched quickstart" + ("" if self.config is None else f" --config {self.config}")
            report, begin = reporter(display, config), compiling(display)
            policy = train_or_resume(config, self.out, command=command, report=report, begin=begin)
        _copy(policy, checkpoint)

        others = ", not those of its workload" if config.workload.trace or config.workload.own else ""
        print(f"2/3 comparing on {SEEDS} x {JOBS} jobs that were not trained on{others}", flush=True)
        comparison = _compare(config, str(checkpoint))
        seeds = f"--seed {FIRST_SEED} --seeds {SEEDS}"
        same = _evaluate(config, LOAD, seeds, *POLICIES, str(checkpoint))
        record(checkpoint, shlex.split(same), comparison)
        print("3/3 results", flush=True)
        show(comparison)
        write_text(self.out / JSON, comparison.dumps())
        figures.jct_distribution(comparison, self.out / JCT)
        rows = figures.read_rows(self.out / METRICS_FILE)
        untrained = [{"validation_jct_s": jct_s} for chunk, jct_s in curve_of(self.out, rows) if chunk == 0 and jct_s]
        figures.learning_curve([*untrained, *rows], self.out / CURVE)
        print(f"wrote {', '.join(str(self.out / name) for name in (CURVE, JCT, JSON))} and {checkpoint}")
        print(_next_steps(config, str(checkpoint)))


def _copy(policy: Path, checkpoint: Path) -> None:
    """Puts the checkpoint in its place at once, in that of an older one if there is one."""
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    fresh = checkpoint.with_name(f".{checkpoint.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(policy, fresh)
    shutil.rmtree(checkpoint, ignore_errors=True)
    fresh.rename(checkpoint)


def _compare(config: "TrainConfig", checkpoint: str) -> "Comparison":
    """The heuristics and the checkpoint on jobs like those of the training, in its world."""
    from jaxsched.cli.output import RunDisplay
    from jaxsched.evaluation.compare import compare
    from jaxsched.simulation.scenario import load_scenario

    scenario = load_scenario(
        config.env.cluster,
        WORKLOAD,
        schedulers=config.env.schedulers,
        load=LOAD,
        num_jobs=JOBS,
        mean_duration_s=config.workload.mean_duration_s,
        duration_cap_s=config.workload.duration_cap_s,
        seed=FIRST_SEED,
        seeds=SEEDS,
    )
    policies = [*POLICIES, checkpoint]
    settings = dataclasses.replace(_settings(config), seed=FIRST_SEED)
    with RunDisplay(policies, sum(map(len, scenario.jobs))) as display:
        return compare(
            scenario.cluster, scenario.jobs, policies, settings, config=scenario.config, report=display.report
        )


def _settings(config: "TrainConfig") -> "Settings":
    """The rules of the training's world. Here its law is the usual one: no job shares a GPU."""
    from jaxsched.learning.options import EnvironmentConfig
    from jaxsched.simulation.settings import Settings
    from jaxsched.sweeps.plan import Tests, settings_of

    usual = config.env.interference == EnvironmentConfig.interference
    return settings_of(Tests(interference=str(Settings.interference) if usual else ""), config.env)


def _evaluate(config: "TrainConfig", load: float, seeds: str, *policies: str) -> str:
    """The command that evaluates on jobs like those of the training."""
    from jaxsched.evaluation.worlds import options_of

    env, jobs, words = config.env, config.workload, options_of(_settings(config))
    rules = "".join(f" {shlex.quote(word)}" for word in words)
    return (
        f"jaxsched evaluate --cluster {env.cluster} --schedulers {env.schedulers}{rules}"
        f" --workload {WORKLOAD} --load {load:g} --mean-duration-s {jobs.mean_duration_s:g}"
        f" --duration-cap-s {jobs.duration_cap_s:g} --num-jobs {JOBS} {seeds} --policies {shlex.join(policies)}"
    )


def _next_steps(config: "TrainConfig", checkpoint: str) -> str:
    interval = f"--interval-s {config.env.interval_s:g}"
    return f"""
What to try next:
  on other jobs, under more load:
    {_evaluate(config, 0.95, "--seeds 1", "pack", "greedy-wait", checkpoint)}
  on a larger cluster, with the same weights:
    jaxsched evaluate --cluster leaf-spine-32 {interval} --policies pack greedy-wait {checkpoint}
  on your own trace (job_id,submit_time_s,num_gpus,duration_s), and what became of every job:
    jaxsched simulate --workload trace.csv --policy {checkpoint} --jobs-out jobs.csv
  train longer, or on another cluster: copy the shipped configurations, change one, and
    jaxsched examples
    jaxsched train --config configs/quickstart.yaml --out runs/mine"""


EXAMPLES_HELP = """Copy the shipped examples and configurations into a folder.

Makes FOLDER/examples (a trace, a cluster with two GPU types, a policy, a sweep, a recording of a Kubernetes cluster)
and FOLDER/configs. Files that are there already stay as they are.

Examples:
  jaxsched examples
  jaxsched evaluate --cluster examples/cluster.yaml --workload examples/trace.csv --policies pack greedy-wait
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples:
    """Copy the shipped examples and configurations into a folder."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = Path(".")
    """Where to put them."""

    def run(self) -> None:
        """Copy, and say what was made. UserError if a folder cannot be written."""
        from jaxsched import shipped
        from jaxsched.errors import UserError

        for kind in (shipped.EXAMPLES, shipped.CONFIGS):
            source, target = shipped.folder(kind), self.folder / kind
            if source is None:
                raise UserError(f"examples: this copy of jaxsched comes without {kind}/")
            made = 0
            try:
                for path in sorted(source.rglob("*")):
                    to = target / path.relative_to(source)
                    if path.is_file() and "__pycache__" not in path.parts and not to.exists():
                        to.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(path, to)
                        made += 1
            except OSError as error:
                raise UserError(f"examples: {target} cannot be written: {error.strerror}") from None
            print(f"{target}: {made} new files")
