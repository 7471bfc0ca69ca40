"""The command line: `jaxsched COMMAND`. Commands import what they need when they run, so that help is instant."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Union

import tyro

from jaxsched import __version__
from jaxsched.cli import (
    bench,
    check,
    cluster,
    evaluate,
    interference,
    kube,
    placement,
    quickstart,
    reproduce,
    simulate,
    sweep,
    train,
)
from jaxsched.cli.cache import enable_cache
from jaxsched.cli.errors import mistakes, parsed
from jaxsched.machine import allow_whole_loops

DESCRIPTION = """Simulate GPU clusters, train multi-agent schedulers, and compare them with the field's heuristics.

Start with: jaxsched quickstart
"""


COMMANDS = {
    "quickstart": (quickstart.Quickstart, quickstart.HELP),
    "train": (train.Train, train.HELP),
    "evaluate": (evaluate.Evaluate, evaluate.HELP),
    "sweep": (sweep.Sweep, sweep.HELP),
    "reproduce": (reproduce.Reproduce, reproduce.HELP),
    "simulate": (simulate.Simulate, simulate.HELP),
    "cluster": (cluster.Cluster, cluster.HELP),
    "bench": (bench.Bench, bench.HELP),
    "interference": (interference.Interference, interference.HELP),
    "placement": (placement.Placement, placement.HELP),
    "check": (check.Check, check.HELP),
    "kube": (kube.Kube, kube.HELP),
}


def _choice(arguments: Sequence[str]) -> Any:
    """The union of all commands; only the one that `arguments` name shows its whole help."""
    kinds = []
    for name, (kind, text) in COMMANDS.items():
        text = text if name in arguments[:1] else text.splitlines()[0]
        kinds.append(Annotated[kind, tyro.conf.subcommand(name, description=text, prefix_name=False)])
    return Union[tuple(kinds)]  # noqa: UP007


def main(argv: Sequence[str] | None = None) -> None:
    """The entry point.

    Exit codes: 0 done, 2 a mistake of the user's, 130 interrupted, 141 nobody reads on, 143 terminated.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"jaxsched {__version__}")
        return
    with mistakes():
        command = parsed(lambda: tyro.cli(_choice(arguments), prog="jaxsched", description=DESCRIPTION, args=arguments))
        allow_whole_loops()
        enable_cache()
        command.run()


if __name__ == "__main__":
    main()
