"""`jaxsched reproduce` and `reproduce-table`: a checkpoint by its card, or a published table, and figures compared."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tyro

from jaxsched.cli.options import Output, optional

if TYPE_CHECKING:
    from jaxsched.adaptive.papers.muri import MuriLine
    from jaxsched.adaptive.papers.pollux_and_sia import Line
    from jaxsched.cli.evaluate import Evaluate
    from jaxsched.io.cards import Evaluation

HELP = """Train a checkpoint anew by its card, repeat its recorded evaluations, and compare.

NAME is a shipped checkpoint, or the path of one. Evaluations get into a card with `jaxsched evaluate
--record CHECKPOINT`. A run that was stopped goes on with the same command. What the card of an earlier version does not
say is named, with the value that is taken. --plan only says what would be done, on what, and which figures would be
compared.

Examples:
  jaxsched reproduce quickstart
  jaxsched reproduce quickstart --plan
  jaxsched reproduce checkpoints/quickstart --out runs/quickstart-again
  jaxsched evaluate --policies pack greedy-wait checkpoints/quickstart --seeds 10 --record checkpoints/quickstart
"""


REPRODUCE_TABLE_HELP = """Play a published table again: ours, theirs, and the difference.

pollux  completion times by load, period and interference (Qiao et al., OSDI 2021). DIR is a folder with the authors'
        profiles/APP, workloads-LOAD and results_per_job.csv (petuum/adaptdl, branch osdi21-artifact). All workloads
        of DIR are played. Means are over those that results_per_job.csv has.
sia     its tables of three GPU types and of one (Jayaram Subramanya et al., SOSP 2023): mean and 99th percentile of
        completion times, makespan and GPU time, under the integer program and under a greedy choice of the same sum.
        DIR is a folder with the authors' profiles/APP and workloads/TRACE (siasosp23/artifacts).
muri    SRTF, SRSF and Tiresias on its traces and their twins, all of whose jobs are submitted at once (Zhao et al.,
        SIGCOMM 2022, Figures 9 and 10), by the rules of its simulator and without what that adds. DIR is a folder with
        muri_published.csv (figure,policy,trace,seconds) and the authors' traceN.csv, by any number (Rivendile/Muri).
elasticflow
        deadlines met by EDF, Tiresias and ElasticFlow (Gu et al., ASPLOS 2023): 195 jobs on 128 GPUs. DIR is a folder
        with 195job.csv and the other logs of microsoft/elasticflow-traces, from which the paces of models are taken.

Examples:
  jaxsched reproduce-table pollux --data pollux
  jaxsched reproduce-table sia --data sia
  jaxsched reproduce-table muri --data muri
  jaxsched reproduce-table elasticflow --data itp
  jaxsched reproduce-table pollux --data pollux --jobs-out jobs.csv   # experiment,run,workload,job,jct_s
"""


ROUNDS_PER_S = 3_000  # of environments in training, on one core: the quickstart's 368,640 take two minutes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reproduce:
    """Train a checkpoint anew by its card, repeat its evaluations, and compare the figures."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FOLDER")]
    """The checkpoint."""
    out: Annotated[Path | None, optional("FOLDER")] = None
    """Folder of the run (default: runs/reproduce-NAME)."""
    plan: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Only say what would be trained and compared."""

    def run(self) -> None:
        """Train, evaluate, compare. UserError on any mistake."""
        try:
            self._run()
        except KeyboardInterrupt as stop:
            raise type(stop)("go on with the same command") from None

    def _run(self) -> None:
        from jaxsched import shipped
        from jaxsched.evaluation.tables import table_beside_card
        from jaxsched.io.files import check_folder
        from jaxsched.machine import versions
        from jaxsched.policies import evolved

        folder = shipped.resolve(shipped.CHECKPOINTS, self.name)
        if self.plan:
            print(*_plan(folder), sep="\n")
            return
        out = Path("runs") / f"reproduce-{folder.name}" if self.out is None else self.out
        check_folder(out, "--out")
        what = _kind_of(folder)
        known = _known(what, folder)
        again = [_evaluation(entry, folder) for entry in known.figures]
        policy, lines = _evolved_anew(what, folder, out) if what in evolved.KINDS else _network_anew(folder, out)
        now = versions()
        for package, version in known.versions.items():
            if now.get(package, version) != version:
                print(f"differs: {package} {version} then, {now[package]} now")
        for entry, evaluate in zip(known.figures, again, strict=True):
            lines += _evaluated(entry, evaluate, str(folder), str(policy))
        if lines:
            print(table_beside_card(lines))
        if not known.figures:
            print(f"the card records no evaluation; add one: jaxsched evaluate ... {folder} --record {folder}")


def _plan(folder: Path) -> Iterator[str]:
    """What `reproduce` would do, a line each. UserError for what is no checkpoint."""
    from jaxsched.machine import versions
    from jaxsched.policies import evolved

    what = _kind_of(folder)
    card, trained = _evolved_plan(what, folder) if what in evolved.KINDS else _network_plan(folder)
    yield from trained
    now = versions()
    changed = [f"{name} {was} -> {now[name]}" for name, was in card.versions.items() if now.get(name, was) != was]
    yield f"versions: {', '.join(changed) or 'those of the card'}"
    for entry in card.figures:
        _check_files(folder, entry.files, "evaluated")
        known = ", ".join(f"{name} {jct_s:,.1f} s" for name, jct_s in entry.jct_mean_s.items() if jct_s is not None)
        yield f"evaluates: {entry.command}"
        yield f"compares mean JCTs with: {known}"
    if not card.figures:
        yield "compares nothing but validation: the card records no evaluation"


def _network_plan(folder: Path) -> "tuple[Known, list[str]]":
    from jaxsched.io.cards import Evaluation
    from jaxsched.io.schema import convert
    from jaxsched.learning.config import describe_limits, from_saved
    from jaxsched.policies.checkpoint import read_card

    card = read_card(folder)
    figures = convert(list[Evaluation], card.get("figures", []), f"checkpoint {folder}: figures")
    config = from_saved(card.get("config", {}), f"checkpoint {folder}: config")
    _check_files(folder, card.get("files", {}))
    ppo, check = config.ppo, config.validation
    rounds = ppo.chunks * ppo.num_envs * ppo.steps
    seed = config.seed if check.seed is None else check.seed
    best = card.get("validation_jct_s")
    return Known(card["versions"], figures), [
        f"trains: a {config.network.kind} network of width {config.network.width}, seed {config.seed}, {ppo.chunks}"
        f" chunks of {ppo.num_envs} environments and {ppo.steps} steps: {rounds:,} rounds",
        f"takes: some {max(rounds / ROUNDS_PER_S / 60, 1):,.0f} minutes of one CPU core, on clusters of the"
        f" quickstart's size (it plays {ROUNDS_PER_S:,} rounds a second), and a minute or two to compile",
        describe_limits(config),
        f"validates: {check.seeds} worlds of seed {seed}, {check.jobs} jobs each, every {check.every} chunks; the card"
        f" has {'none' if best is None else f'{best:,.1f} s'}",
    ]


def _check_files(folder: Path, files: Any, was: str = "trained") -> None:
    """UserError if a file of those that the card names, with digests, is not there, or another is in its place."""
    from jaxsched.errors import UserError
    from jaxsched.io.cards import find_changed, named_files
    from jaxsched.io.schema import convert

    files = convert(dict[str, str], files, f"checkpoint {folder}: files")
    there = named_files(list(files))
    if lost := next((name for name in files if name not in there), None):
        raise UserError(f"checkpoint {folder}: was {was} with {lost}, which is not there; run this from its folder")
    if changed := find_changed(files, list(files)):
        raise UserError(f"checkpoint {folder}: was {was} with {changed}, which holds something else now")


def _evolved_plan(what: str, folder: Path) -> "tuple[Known, list[str]]":
    from jaxsched.io.cards import CARD_FILE
    from jaxsched.io.schema import convert
    from jaxsched.learning.evolved.config import EvolvedConfig
    from jaxsched.policies import evolved

    card = evolved.read_card(folder, what)
    config: EvolvedConfig = convert(EvolvedConfig, card.config, f"{what} {folder}: {CARD_FILE}: config")
    _check_files(folder, card.files)
    candidates, place = 2 * config.task.strategy.pairs, "" if config.worlds else f" on {config.cluster}"
    lists, judges = config.lists
    return Known(card.versions, card.figures), [
        f"learns: {config.learn} from {config.source}{place}, seed {config.seed}",
        f"takes: {config.generations} generations, in each {candidates} candidates on {lists} lists",
        f"judges: {judges} lists of seed {config.validation_seed}, every few generations; the card has"
        f" {'none' if card.ratio is None else f'{card.ratio:.4f} of the mean JCT of {config.rule}'}",
    ]


def _kind_of(folder: Path) -> str:
    """What a folder holds. UserError for a learned allocation: what it learned from does not come with the package."""
    from jaxsched.errors import UserError
    from jaxsched.io.cards import read_card, what_of
    from jaxsched.policies.registry import OF_PROFILES

    what = what_of(folder) or ""
    if what == OF_PROFILES:
        command = read_card(folder, what).get("commands", {}).get("train", "a command that its card does not say")
        raise UserError(f"{folder}: learned from published workloads, which are not part of jaxsched; by {command}")
    return what


class Known(NamedTuple):
    """What the old card says."""

    versions: dict[str, str]
    figures: "list[Evaluation]"


# The new policy, and figures of both.
Anew = tuple[Path, list[tuple[str, float | None, float | None]]]


def _known(what: str, folder: Path) -> Known:
    """Of the card of a folder that holds `what`. UserError if it is not as it should be."""
    from jaxsched.io import cards
    from jaxsched.io.schema import convert
    from jaxsched.policies import checkpoint, evolved

    if what in evolved.KINDS:
        card = evolved.read_card(folder, what)
        return Known(card.versions, card.figures)
    said = checkpoint.read_card(folder)
    where = f"checkpoint {folder}: {cards.CARD_FILE}: figures"
    return Known(said["versions"], convert(list[cards.Evaluation], said.get("figures", []), where))


def _network_anew(folder: Path, out: Path) -> Anew:
    from jaxsched.cli.output import Display
    from jaxsched.cli.train import compiling, reporter
    from jaxsched.learning.config import from_saved
    from jaxsched.learning.devices import provide_devices
    from jaxsched.learning.loop import train_or_resume
    from jaxsched.policies.checkpoint import read_card

    provide_devices()
    card = read_card(folder)
    config = from_saved(card.get("config", {}), f"checkpoint {folder}: config")
    _check_files(folder, card.get("files", {}))
    with Display(["train"], config.ppo.chunks, "chunks") as display:
        policy = train_or_resume(config, out, report=reporter(display, config), begin=compiling(display))
    return policy, [("validation", card.get("validation_jct_s"), read_card(policy)["validation_jct_s"])]


def _evolved_anew(what: str, folder: Path, out: Path) -> Anew:
    """`what` the folder holds, one of `policies.evolved.KINDS`."""
    from jaxsched.cli.output import Display
    from jaxsched.cli.train_numbers import evolved_reporter, say_if_compiling
    from jaxsched.io.cards import CARD_FILE
    from jaxsched.io.schema import convert
    from jaxsched.learning.evolved.config import EvolvedConfig
    from jaxsched.learning.evolved.evolution import STATE_FILE
    from jaxsched.learning.evolved.loop import train_evolved
    from jaxsched.policies import evolved

    card = evolved.read_card(folder, what)
    config: EvolvedConfig = convert(EvolvedConfig, card.config, f"{what} {folder}: {CARD_FILE}: config")
    assert config.generations is not None
    _check_files(folder, card.files)
    resume, command = (out / STATE_FILE).is_file(), card.commands.get("train", "")
    with Display(["train"], config.generations, "generations") as display:
        say_if_compiling(display)
        report = evolved_reporter(display, config.generations)
        policy = train_evolved(config, out, resume=resume, report=report, command=command)
    same = evolved.load_policy(folder, what).spec == evolved.load_policy(policy, what).spec
    print(f"what is learned is {'the same' if same else 'not the same as in the card'}")
    return policy, []


def _evaluation(entry: "Evaluation", folder: Path) -> "Evaluate":
    """The command of a recorded evaluation. UserError if this version cannot read it, or has not what it names."""
    import shlex

    from jaxsched.cli.errors import parse_command
    from jaxsched.cli.evaluate import Evaluate
    from jaxsched.errors import UserError
    from jaxsched.evaluation.tables import CHECKPOINT
    from jaxsched.policies.registry import parse

    try:
        words = shlex.split(entry.command)
    except ValueError as error:
        raise UserError(f"checkpoint {folder}: its card records the command {entry.command!r}: {error}") from None
    evaluate = parse_command(lambda: tyro.cli(Evaluate, args=words[2:]))
    _check_files(folder, entry.files, "evaluated")
    for name in evaluate.policies:
        if name != CHECKPOINT:
            parse(name)
    evaluate.scenario(1)  # not only after the training
    return evaluate


def _evaluated(
    entry: "Evaluation", evaluate: "Evaluate", old: str, new: str
) -> list[tuple[str, float | None, float | None]]:
    """Mean JCTs of one recorded evaluation, then and now; the command is run with the new policy."""
    from jaxsched.evaluation.tables import CHECKPOINT

    policies = tuple(new if name == CHECKPOINT else name for name in evaluate.policies)
    comparison = dataclasses.replace(evaluate, policies=policies).compared()
    found = {CHECKPOINT if row.name == new else row.name: row.figures.jct_mean_s for row in comparison.rows}
    return [(name.replace(CHECKPOINT, old), entry.jct_mean_s.get(name), found[name]) for name in found]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReproduceTable:
    """Play a published table again: ours, theirs, and the difference."""

    name: Annotated[Literal["pollux", "sia", "muri", "elasticflow"], tyro.conf.Positional]
    """The table."""
    data: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """What the authors published."""
    jobs_out: Output = None
    """Write the completion time of every job (.csv)."""

    def run(self) -> None:
        """Play, print, write. UserError on any mistake."""
        from jaxsched.cli.output import results
        from jaxsched.io.files import check_outputs
        from jaxsched.machine import compute_on_one_thread

        check_outputs({"--jobs-out": self.jobs_out}, [str(self.data)])
        compute_on_one_thread()
        rows = TABLES[self.name](self.data)
        with results() as write:
            write(self.jobs_out, lambda path: path.write_text("\n".join([*rows, ""]), encoding="utf-8"))


def _pollux(data: Path) -> list[str]:
    """Prints the table; returns lines of a CSV file, one per job."""
    from jaxsched.adaptive.papers.pollux_and_sia import play_pollux

    print(
        f"{'experiment':16} {'run':14} {'ours, s':>10} {'published, s':>13} {'difference':>11} "
        f"{'jobs to the second':>19}",
        flush=True,
    )
    times = play_pollux(data, lambda line: print(as_text(line), flush=True))
    rows = [f"{case.experiment},{case.run},{workload},{job},{jct_s:g}" for case, workload, job, jct_s in times]
    return ["experiment,run,workload,job,jct_s", *rows]


def _sia(data: Path) -> list[str]:
    """As `_pollux`."""
    from jaxsched.adaptive.papers.pollux_and_sia import SiaLine, missing_traces, play_sia

    def as_text(line: SiaLine) -> str:
        pairs = zip(line.ours, line.case.published, strict=True)
        cells = " ".join(f"{f'{ours:.2f} ({known:g})':>14}" for ours, known in pairs)
        return f"{line.case.trace:9} {line.case.types:5} {line.policy:11} {cells}"

    print("hours: ours (published)", flush=True)
    heads = " ".join(f"{name:>14}" for name in ("mean JCT", "p99 JCT", "makespan", "GPU-h of a job"))
    print(f"{'trace':9} {'types':5} {'policy':11} {heads}", flush=True)
    rows = play_sia(data, lambda line: print(as_text(line), flush=True))
    for trace in missing_traces(data):
        print(f"{trace:9} not played: {data / 'workloads' / trace} is no folder")
    return ["trace,types,policy,workload,job,jct_s", *(",".join(map(str, row)) for row in rows)]


def _muri(data: Path) -> list[str]:
    """As `_pollux`."""
    from jaxsched.adaptive.papers.muri import play_muri

    print(
        f"{'figure':9} {'policy':9} {'trace':5} {'ours, s':>14} {'published, s':>14} {'difference':>11} "
        f"{'plain rules, s':>15} {'difference':>11}",
        flush=True,
    )
    times = play_muri(data, lambda line: print(as_muri_text(line), flush=True))
    return ["policy,trace,job,jct_s", *(f"{policy},{trace},{job},{jct_s:.12g}" for policy, trace, job, jct_s in times)]


def _elasticflow(data: Path) -> list[str]:
    """As `_pollux`."""
    from jaxsched.adaptive.papers.elasticflow import TESTBED, WITH_POLLUX, play_elasticflow

    print(
        f"{'policy':12} {'deadlines met':>13} {'testbed':>8} {'difference':>11} {'Figure 8a':>10} {'dropped':>8}",
        flush=True,
    )
    jobs = play_elasticflow(
        data,
        lambda line: print(
            f"{line.policy:12} {line.met:13.3f} {TESTBED[line.policy]:8.3f} {line.met - TESTBED[line.policy]:+11.3f} "
            f"{WITH_POLLUX[line.policy]:10.3f} {line.dropped:8.3f}",
            flush=True,
        ),
    )
    rows = (
        f"{policy},{job},{'' if end_s == float('inf') else f'{end_s:.12g}'},{due_s:.12g}"
        for policy, job, end_s, due_s in jobs
    )
    return ["policy,job,finish_s,deadline_s", *rows]


TABLES = {"pollux": _pollux, "sia": _sia, "muri": _muri, "elasticflow": _elasticflow}


def as_text(line: "Line") -> str:
    """A line of Pollux' table."""
    known = line.jobs > 0
    published = (
        f"{line.published_s:13.1f} {100 * (line.ours_s / line.published_s - 1):+10.2f}%" if known else f"{'-':>25}"
    )
    equal = f"{line.equal} of {line.jobs}" if known else "-"
    return f"{line.case.experiment:16} {line.case.run:14} {line.ours_s:10.1f} {published} {equal:>19}"


def as_muri_text(line: "MuriLine") -> str:
    """A line of Muri's table."""
    known = line.published_s == line.published_s
    both = (line.ours_s, line.plain_s)
    ours, plain = (f"{100 * (of / line.published_s - 1):+10.3f}%" if known else f"{'-':>11}" for of in both)
    published = f"{line.published_s:14.1f}" if known else f"{'-':>14}"
    where = f"{line.figure:9} {line.policy:9} {line.trace:5}"
    return f"{where} {line.ours_s:14.1f} {published} {ours} {line.plain_s:15.1f} {plain}"
