"""`jaxsched evaluate --worlds`: policies on random worlds."""

import dataclasses
import time
from pathlib import Path
from typing import Annotated

import tyro

from jaxsched.cli.options import JOBS_FOLDER, ExecutorOptions, Output, ScenarioOptions, file_of, optional

# What goes together with --worlds beside the rules of the simulation and how runs are played.
ALLOWED = ("worlds", "worst", "policies", "seed", "num_jobs", "json", "markdown", "figure", "on", "ask")
FILES = ("json", "markdown", "figure")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorldsOptions(ScenarioOptions, ExecutorOptions):
    """What `evaluate` has for random worlds, too."""

    worlds: Annotated[str | None, optional("NAME[:COUNT[:training]]")] = None
    """Random worlds instead of --cluster and --workload: any, wide, contended, mixed, partitioned, kind, servers-1024
    or servers-4096; how many (default: 20), --seed is the first; training: those that learners may have seen."""
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
    json: Output = None
    """Also write the results as JSON."""
    markdown: Output = None
    """Also write the table as Markdown."""
    figure: Output = None
    """Also draw the distribution of job completion times, of --worlds the performance profile (.png, .pdf or .svg)."""


def evaluate_worlds(command: "WorldsOptions", worlds: str) -> None:
    """Draw, play, print, write. UserError on any mistake, before the long run where it can be seen there."""
    from jaxsched.cli.output import RunDisplay, results, text
    from jaxsched.evaluation import world_tables
    from jaxsched.evaluation.figures import check_figure
    from jaxsched.evaluation.worlds import compare_worlds, write_worst
    from jaxsched.executors.choose import choose_executor
    from jaxsched.io.files import check_outputs
    from jaxsched.policies.registry import parse_all
    from jaxsched.worlds.draw import PLAIN
    from jaxsched.worlds.families import FAMILIES, parse_worlds

    check_alone(command)
    choice = parse_worlds(worlds)
    check_outputs({f"--{name}": getattr(command, name) for name in FILES}, map(file_of, command.policies))
    if command.figure is not None:
        check_figure(command.figure)
    if command.worst is not None:
        check_new(command.worst)
    names = [policy.name for policy in parse_all(command.policies)]
    names += [name for name in PLAIN if name not in names]
    jobs = choice.worlds * (command.num_jobs or FAMILIES[choice.family].jobs)
    begin = time.monotonic()
    with (
        choose_executor(command.on, command.ask, JOBS_FOLDER) as executor,
        RunDisplay(names, jobs) as display,
    ):
        found = compare_worlds(
            choice,
            command.policies,
            command.settings(),
            first=command.seed,
            num_jobs=command.num_jobs,
            report=display.report,
            drawn=lambda done, total: display.more("drawing", done, total, time.monotonic() - begin, "worlds"),
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


def check_alone(command: "WorldsOptions") -> None:
    """UserError on an option that says what the worlds say themselves."""
    from jaxsched.errors import UserError
    from jaxsched.options import EvaluatedWorld, RunOptions, list_names

    rules = {*list_names(EvaluatedWorld), *list_names(RunOptions)} - {"models", "outages"}
    for field in dataclasses.fields(command):
        if field.name in (*ALLOWED, *rules) or getattr(command, field.name) == field.default:
            continue
        raise UserError(
            f"--{field.name.replace('_', '-')}: does not go with --worlds, which have clusters and jobs of their own; "
            "leave one of the two out"
        )


def check_new(folder: Path) -> None:
    """UserError unless the folder of the worst worlds can be written and holds nothing yet."""
    from jaxsched.errors import UserError
    from jaxsched.io.files import check_folder

    check_folder(folder, "--worst")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"--worst {folder}: is not empty; name a new folder")
