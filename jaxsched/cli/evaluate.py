"""`jaxsched evaluate`: policies and checkpoints on the same jobs; `jaxsched report`: saved results as one page."""

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxsched.cli.options import JOBS_FOLDER, ExecutorOptions, Output, ScenarioOptions, file_of, is_given, optional
from jaxsched.cli.simulate import play_adaptive

if TYPE_CHECKING:
    from jaxsched.cli.output import Writer
    from jaxsched.evaluation.report import Decisions
    from jaxsched.evaluation.tables import Comparison

HELP = """Run every policy and checkpoint on the same jobs and compare them.

POLICIES
  NAME[:OPTION+OPTION...]  first-fit, pack, load-balance, tetris, least-interference, contention-aware, random,
                           greedy-wait; match, for jobs that share GPUs: the job and the GPU that suit each other
  of the field             tiresias-las; with --knows history qssf (Helios), tiresias-gittins, themis; all but qssf stop
                           jobs (--preemption on)
  search:NAME:OPTIONS+nN   NAME with the order fifo, sjf or area: whenever jobs have come or gone, up to N choices
                           (default 64; a job is moved to the head of its queue, or held back for a while) are each
                           played to the end by estimates, and the best is kept; takes long
  a checkpoint             default, quickstart, or a folder
  FILE.py:NAME             a function or Policy of your own

OPTIONS of a policy: whose turn it is (one of these)
  fifo                     who came first
  sjf, area                least run time, least GPU-seconds
  tenants                  least service of its tenant
  srtf, srsf               least run time left, least GPU-seconds left
  las, mlfq, tiresias      least service so far; qX: a job of tiresias falls behind after X GPU-seconds
  gittins                  of jobs that had as much service, most end soon; with --knows history
  themis                   longest wait for its run time

OPTIONS of a policy: what else
  backfill                 jobs behind one that cannot start may start
  reserve                  with backfill: GPUs are kept for the first blocked gang; jobs of fewer GPU-seconds, jobs that
                           are done before it can start, and jobs that leave enough for it pass
  consolidate              a gang starts only on as few servers as it would need in an empty partition
  racks                    a gang starts only in as few racks as it would need, at most 16 of 18 trays of each NVL72
                           rack, and rather in racks in use than in whole ones; not for greedy-wait and match
  preempt                  with --preemption on and srtf or an order below it: jobs that come first take the place of
                           running ones; hX: only of those that exceed them by the share X
  faster                   jobs go, and with preempt running ones move, to GPUs on which they run 1.5 times as fast
  forward, spread, stay    blocked jobs are forwarded to idle schedulers, to any that can start them, to none
  seek                     with spread: jobs go where they wait least, and where fewer wait; best with
                           --max-forwards 20
  tX, pX                   threshold and patience, by which match waits. greedy-wait, which has sjf, spread, reserve and
                           lifetime unless told otherwise, looks ahead to the ends of running jobs instead; with tX
                           or pX it waits as match does, in the order area and with forward
  lifetime                 of the same: placements are charged with the seconds by which their servers would be wholly
                           free later
  observe                  of the same, with --pair-factors: goes by how jobs that shared a GPU got on

Examples:
  jaxsched evaluate --policies pack pack:area+backfill greedy-wait
  jaxsched evaluate --cluster leaf-spine-64 --workload philly.csv --load 0.7 --policies pack greedy-wait --json out.json
  jaxsched evaluate --policies pack greedy-wait quickstart --seeds 10 --markdown table.md
  jaxsched evaluate --policies pack checkpoints/mine --record checkpoints/mine
  jaxsched evaluate --preemption on --knows nothing --policies pack:backfill pack:las+backfill+preempt+h0.5
  jaxsched evaluate --cluster leaf-spine-64 --seeds 20 --policies pack quickstart --on ray:head:6379
  jaxsched evaluate --gpu-share 0.5 --pair-factors 0.7 --policies pack:sjf+backfill match:sjf match:sjf+observe
  jaxsched evaluate --worlds contended:20 --policies greedy-wait --figure profile.png --worst worst
  jaxsched evaluate --preemption on --knows history --policies qssf tiresias-gittins pack:srsf+backfill+preempt
"""


OUTPUTS = ("json", "markdown", "figure", "report", "picture")
HOW = ("record", "debug_checks", "keep_runs", "explain", "on", "ask", "device")  # say nothing of what is computed

# What goes together with --worlds beside the rules of the simulation and how runs are played.
WITH_WORLDS = ("worlds", "worst", "policies", "seed", "seeds", "num_jobs", "json", "markdown", "figure", "on", "ask")
WORLDS_FILES = ("json", "markdown", "figure")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(ScenarioOptions, ExecutorOptions):
    """Run policies and checkpoints on the same jobs and compare them."""

    worlds: Annotated[str | None, optional("NAME[:COUNT[:training]]")] = None
    """Random worlds instead of --cluster and --workload: any, wide, contended, mixed, partitioned, kind, llm,
    servers-1024, servers-4096, or a task: task-tiny, task-small, task-wide; how many (default: 20), --seed is the
    first; training: those that learners may have seen."""
    worst: Annotated[Path | None, optional("FOLDER")] = None
    """Also write the five worst worlds of each policy, with the command that plays each again."""
    policies: Annotated[tuple[str, ...], tyro.conf.arg(metavar="A B ...")] = (
        "pack",
        "load-balance",
        "tetris",
        "least-interference",
        "contention-aware",
        "greedy-wait",
    )
    """Names of policies and folders of checkpoints."""
    profiles: Annotated[Path | None, optional("DIR")] = None
    """Jobs adapt their GPUs and batches, by the measured profiles of DIR (see docs/howto/adaptive.md)."""
    json: Output = None
    """Also write the results as JSON."""
    markdown: Output = None
    """Also write the table as Markdown."""
    figure: Output = None
    """Also draw the distribution of job completion times, of --worlds the performance profile (.png, .pdf or .svg)."""
    seeds: Annotated[int | None, optional("N")] = None
    """Job lists, each with its own seed (default: 5 for synthetic workloads, 1 for traces). With --worlds, lists of
    each world's jobs, in other orders and at other moments (default: 1, its own)."""
    keep_runs: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Keep every job of the first job list in --json, for `jaxsched report`."""
    explain: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """In --report, and of runs that are kept: what else was on offer when they started, for the N jobs that lost most
    after that (plays every run once more)."""
    report: Output = None
    """Also write a page with all figures, the cluster over time and every job (.html; the first job list)."""
    picture: Output = None
    """Also draw the cluster over time under every policy (.svg, which moves; the first job list)."""
    record: Annotated[Path | None, optional("CHECKPOINT")] = None
    """Also write this command and its figures into the card of one of the checkpoints, for `jaxsched reproduce`."""

    def run(self) -> None:
        """Compare, print, write. UserError on any mistake, before the long run where it can be seen there."""
        from jaxsched.cli.output import results, show, text
        from jaxsched.errors import UserError
        from jaxsched.evaluation.figures import check_figure, jct_distribution
        from jaxsched.evaluation.tables import markdown
        from jaxsched.io.files import check_ending, check_folder, check_outputs
        from jaxsched.policies.registry import parse_all

        self.choose_device()
        if self.profiles is not None:
            return play_adaptive(self, self.profiles, self.policies, None)
        if self.worlds is not None:
            return evaluate_worlds(self, self.worlds)
        if self.worst is not None:
            raise UserError("--worst: is for --worlds; give both, or leave it out")
        files = {f"--{option}": getattr(self, option) for option in OUTPUTS}
        check_outputs(files, [*self.inputs, *map(file_of, self.policies)])
        check_ending(self.report, ".html", option="--report")
        check_ending(self.picture, ".svg", option="--picture")
        if self.keep_runs and self.json is None:
            raise UserError("--keep-runs: keeps them in a result, name its file by --json")
        if self.explain < 0:
            raise UserError(f"--explain: {self.explain} should be a number of jobs, 0 or more")
        if self.explain and self.report is None and not self.keep_runs:
            raise UserError("--explain: stands in --report FILE, and in a result with --keep-runs; give one of them")
        if self.explain and (searching := [one.name for one in parse_all(self.policies) if one.searches]):
            raise UserError(f"--explain: plays runs once more in the environment, where {searching[0]!r} cannot search")
        if self.figure is not None:
            check_figure(self.figure)
        if self.record is not None and str(self.record) not in self.policies:
            raise UserError(f"--record {self.record}: is none of the --policies; name one as it stands there")
        if self.record is not None:
            check_folder(self.record, "--record")
        comparison = self.compared()
        decisions = self._decisions(comparison)
        with results() as write:
            write(self.json, lambda path: text(self._json(comparison, decisions))(path))
            write(self.markdown, text(markdown(comparison)))
            write(self.figure, lambda path: jct_distribution(comparison, path))
            self._draw(comparison, decisions, write)
            show(comparison)
        if self.record is not None:
            from jaxsched.evaluation.tables import record

            record(self.record, self.command(), comparison)
            print(f"recorded in the card of {self.record}")

    def _decisions(self, comparison: "Comparison") -> "Decisions":
        """Of every policy the decisions that are to be explained."""
        if not self.explain:
            return {}
        from jaxsched.cli.output import Display
        from jaxsched.evaluation.decisions import decisions_of, find_most_lost
        from jaxsched.policies.registry import parse_all
        from jaxsched.simulation.device import play_on
        from jaxsched.simulation.jax_run import COMPILING

        cluster, settings = self.hardware(), self.settings(record_placements=True)
        found = {}
        with Display([row.name for row in comparison.rows], self.explain, "decisions") as display:
            for policy, row in zip(parse_all(self.policies), comparison.rows, strict=True):
                result, name, begin = row.outcomes[0], row.name, time.monotonic()
                display.compiling(name, COMPILING)
                with play_on(settings.device):
                    found[name] = decisions_of(policy, result, cluster, settings, find_most_lost(result, self.explain))
                display.update(name, len(found[name]), time.monotonic() - begin, over=True)
        return found

    def _json(self, comparison: "Comparison", decisions: "Decisions") -> str:
        """The results, with the runs if they are kept."""
        if not self.keep_runs:
            return comparison.dumps()
        from jaxsched.evaluation.report import runs
        from jaxsched.io.json_file import to_json

        kept = {"runs": runs(comparison, self.hardware(), decisions)}
        return to_json(comparison.to_json() | kept)

    def _draw(self, comparison: "Comparison", decisions: "Decisions", write: "Writer") -> None:
        """The outputs that show the first job list on the cluster."""
        if self.report is None and self.picture is None:
            return
        from jaxsched.cli.output import still_at, text
        from jaxsched.evaluation.figures import cluster_svg
        from jaxsched.evaluation.report import write_report

        cluster, first = self.hardware(), [row.outcomes[0] for row in comparison.rows]
        with still_at("pages and pictures"):
            write(self.report, lambda path: write_report(path, comparison, cluster, decisions))
            write(self.picture, lambda path: text(cluster_svg(first, cluster))(path))

    def compared(self) -> "Comparison":
        """The comparison, with its progress on stderr."""
        from jaxsched.cli.output import RunDisplay
        from jaxsched.evaluation.compare import compare
        from jaxsched.executors import LOCAL, choose_executor
        from jaxsched.policies.registry import parse_all
        from jaxsched.simulation.simulate import Elsewhere, simulate

        policies = parse_all(self.policies)
        scenario = self.scenario(self.seeds)
        placed = bool(self.picture or self.report or self.keep_runs)
        settings = self.settings(record_placements=placed)
        with (
            choose_executor(self.on, self.ask, JOBS_FOLDER) as executor,
            RunDisplay([policy.name for policy in policies], sum(map(len, scenario.jobs))) as display,
        ):
            play = simulate if self.on == LOCAL else Elsewhere(executor, self.policies)
            return compare(
                scenario.cluster,
                scenario.jobs,
                policies,
                settings,
                config=scenario.config,
                report=display.report,
                play=play,
            )

    def command(self) -> list[str]:
        """This command in words, without what is written to files."""
        words = ["jaxsched", "evaluate"]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in (*OUTPUTS, *HOW) or value is None or value is False:
                continue
            values = () if value is True else value if isinstance(value, tuple) else (value,)
            words += [f"--{field.name.replace('_', '-')}", *map(str, values)]
        return words


def evaluate_worlds(command: "Evaluate", worlds: str) -> None:
    """Draw, play, print, write. UserError on any mistake, before the long run where it can be seen there."""
    from jaxsched.cli.output import EVERY_S, RunDisplay, results, text
    from jaxsched.errors import UserError
    from jaxsched.evaluation import world_tables
    from jaxsched.evaluation.figures import check_figure
    from jaxsched.evaluation.worlds import ONE_LIST, compare_worlds, write_worst
    from jaxsched.executors import choose_executor
    from jaxsched.io.files import check_outputs, locked
    from jaxsched.policies.registry import parse_all
    from jaxsched.worlds.families import FAMILIES, parse_worlds
    from jaxsched.worlds.world import PLAIN

    check_alone(command)
    choice = parse_worlds(worlds)
    check_outputs({f"--{name}": getattr(command, name) for name in WORLDS_FILES}, map(file_of, command.policies))
    if command.figure is not None:
        check_figure(command.figure)
    if command.worst is not None:
        check_new(command.worst)
        if command.seeds is not None and command.seeds > 1:
            raise UserError(f"--{ONE_LIST}")
    names = [policy.name for policy in parse_all(command.policies)]
    names += [name for name in PLAIN if name not in names]
    seeds = 1 if command.seeds is None else command.seeds
    jobs = seeds * choice.worlds * (command.num_jobs or FAMILIES[choice.family].jobs)
    begin = time.monotonic()

    def drawn(done: int, total: int) -> None:
        passed_s = time.monotonic() - begin
        if passed_s > EVERY_S:  # nothing is said of what takes a moment
            display.more("drawing", done, total, passed_s, "worlds")

    with contextlib.nullcontext() if command.worst is None else locked(command.worst):
        with choose_executor(command.on, command.ask, JOBS_FOLDER) as executor, RunDisplay(names, jobs) as display:
            found = compare_worlds(
                choice,
                command.policies,
                command.settings(),
                first=command.seed,
                num_jobs=command.num_jobs,
                seeds=seeds,
                report=display.report,
                drawn=drawn,
                executor=executor,
            )
        with results() as write:
            write(command.json, text(world_tables.dumps(found)))
            write(command.markdown, text(world_tables.report_markdown(found)))
            write(command.figure, lambda path: world_tables.draw_profile(found, path))
            print(world_tables.report_text(found))
        if command.worst is not None:
            write_worst(found, command.worst)
            print(f"wrote {command.worst}")


def check_alone(command: "Evaluate") -> None:
    """UserError on an option that says what the worlds say themselves."""
    from jaxsched.errors import UserError
    from jaxsched.options import EvaluatedWorld, RunOptions, list_names

    rules = {*list_names(EvaluatedWorld), *list_names(RunOptions)} - {"models", "outages"}
    for field in dataclasses.fields(command):
        if field.name in (*WITH_WORLDS, *rules) or not is_given(command, field):
            continue
        raise UserError(
            f"--{field.name.replace('_', '-')}: does not go with --worlds, which have clusters and jobs of their own; "
            "leave one of the two out"
        )


def check_new(folder: Path) -> None:
    """UserError unless the folder of the worst worlds can be written and holds nothing yet."""
    from jaxsched.errors import UserError
    from jaxsched.io.files import LOCK_FILE, check_folder

    check_folder(folder, "--worst")
    if folder.is_dir() and any(path.name != LOCK_FILE for path in folder.iterdir()):
        raise UserError(f"--worst {folder}: is not empty; name a new folder")


REPORT_HELP = """Make one page of saved results, side by side.

A result is what `jaxsched evaluate --json FILE` wrote. With --keep-runs there it also holds every job: then the page
shows distributions, queues, the cluster over time, and of every job what its completion time is made of. Kept runs of
several results must be of the same jobs on the same cluster.

Examples:
  jaxsched evaluate --policies pack greedy-wait --num-jobs 300 --seeds 1 --json known.json --keep-runs
  jaxsched evaluate --policies pack greedy-wait --num-jobs 300 --seeds 1 --knows estimates --duration-error 1 \
    --json noisy.json --keep-runs
  jaxsched report known.json noisy.json -o report.html
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Make one page of saved results, side by side."""

    results: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RESULT.json ...")]
    """What `jaxsched evaluate --json` wrote."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE", aliases=["-o"])] = Path("report.html")
    """The page (.html)."""

    def run(self) -> None:
        """Read, join, write. UserError on any mistake."""
        from jaxsched.cli.output import results, text
        from jaxsched.errors import UserError
        from jaxsched.evaluation.saved import make_saved_page, read_result
        from jaxsched.io.files import check_ending, check_outputs

        if not self.results:
            raise UserError("report: name at least one result, see `jaxsched evaluate --json`")
        check_outputs({"--out": self.out}, self.results)
        check_ending(self.out, ".html", option="--out")
        twice = [
            path for i, path in enumerate(self.results) if path.resolve() in {one.resolve() for one in self.results[:i]}
        ]
        if twice:
            raise UserError(f"report: {twice[0]} is given twice; give every result once")
        names = [path.stem for path in self.results]
        if len(set(names)) < len(names):
            names = [str(path) for path in self.results]
        page = make_saved_page({name: read_result(path) for name, path in zip(names, self.results)})
        with results() as write:
            write(self.out, text(page))
