"""The command line: `jaxsched COMMAND`. A command is imported when it is asked for, so that help is instant."""

import difflib
import importlib
import sys
from collections.abc import Sequence

from jaxsched import __version__
from jaxsched.cli.errors import fail, mistakes, parse_command
from jaxsched.machine import allow_whole_loops, enable_cache

# Of each command the first line of its help. See `command_of`.
COMMANDS = {
    "examples": "Copy the shipped examples and configurations into a folder.",
    "evaluate": "Run every policy and checkpoint on the same jobs and compare them.",
    "report": "Make one page of saved results, side by side.",
    "simulate": "Run one policy and write what became of every job.",
    "cluster": "Show the figures of clusters' networks, or draw one.",
    "quickstart": "Train two schedulers for a few minutes, compare them with heuristics, and draw the result.",
    "train": "Train the schedulers, or resume a run.",
    "sweep": "Train every point of a sweep, measure it, and print the table.",
    "table": "Rank the finished points of a sweep, with intervals over seeds.",
    "plot": "Draw the finished points of a sweep, or the curves of trainings.",
    "reproduce": "Train a checkpoint anew by its card, repeat its recorded evaluations, and compare.",
    "reproduce-table": "Play a published table again: ours, theirs, and the difference.",
    "bench": "Measure decisions/s of the environment, jobs/s of simulations, and decisions/s of training.",
    "interference": "Fit, evaluate and use models of how jobs slow each other down, from measured pairs.",
    "placement": "Fit and evaluate a model of the step time by placement.",
    "step-time": "Fit, evaluate and use a formula of the iteration time of transformers by plan.",
    "check": "Say what files and folders hold, or what is wrong with them.",
    "import": "Show what a job log says, and write it as a trace.",
    "kube": "Schedule a Kubernetes cluster, ask when its gangs would start, or replay a recording of one.",
}
# Commands that stand in the module of another one.
BESIDE = {
    "reproduce-table": "reproduce",
    "report": "evaluate",
    "examples": "quickstart",
    "import": "check",
    "table": "sweep",
    "plot": "sweep",
    "placement": "step-time",
}


def command_of(name: str) -> tuple[type, str]:
    """The class of a command, `TheName` of `the-name` in the module `cli.the_name`, and its help, `HELP`.

    Beside another one the help is `THE_NAME_HELP`.
    """
    module = importlib.import_module(f"jaxsched.cli.{BESIDE.get(name, name).replace('-', '_')}")
    said = "HELP" if name not in BESIDE else f"{name.replace('-', '_').upper()}_HELP"
    return getattr(module, name.title().replace("-", "")), getattr(module, said)


def overview() -> str:
    """What `jaxsched --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: jaxsched COMMAND [OPTIONS]",
            "",
            "Simulate GPU clusters, train multi-agent schedulers, and compare them with the field's heuristics.",
            "",
            "Commands:",
            *lines,
            "",
            "Each has a --help of its own, with examples. Start with:",
            "  jaxsched examples",
            "  jaxsched evaluate --workload examples/trace.csv --policies pack greedy-wait",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """The entry point.

    Exit codes: 0 done, 2 a mistake of the user's, 130 interrupted, 141 nobody reads on, 143 terminated.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    with mistakes():
        if arguments == ["--version"]:
            print(f"jaxsched {__version__}")
            return
        if arguments[:1] in (["--help"], ["-h"]):
            print(overview())
            sys.exit(0)
        _run(arguments)


def _run(arguments: list[str]) -> None:
    known = f"available commands: {', '.join(COMMANDS)}"
    if not arguments:
        fail(f"no command is given; {known}")
    name, *rest = arguments
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        fail(f"unknown command {name!r}; " + (f"perhaps you meant {close[0]}; " if close else "") + known)
    _none_empty(rest)
    kind, said = command_of(name)
    import tyro

    from jaxsched.cli.options import note_given

    command = parse_command(lambda: tyro.cli(kind, prog=f"jaxsched {name}", description=said, args=rest))
    note_given(rest)
    allow_whole_loops()
    enable_cache()
    command.run()


def _none_empty(words: list[str]) -> None:
    """A path that is an empty string would be the current folder."""
    for before, word in zip(["", *words], words):
        if not word or (word.startswith("--") and word.endswith("=")):
            option = word.rstrip("=") if word else before
            fail(f"{option} '': the value is empty; name one, or leave the option out" if option else "'' is no option")


if __name__ == "__main__":
    main()
