"""The half of `jaxsched train` that learns a few numbers, from a workload or from training worlds."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxsched.cli.output import Display
    from jaxsched.learning.evolved.config import EvolvedConfig
    from jaxsched.learning.evolved.tasks import Task

NETWORK = "network"  # the schedulers' network, on the jobs of --workload
ONLY_HERE = ("workload", "worlds", "learn", "until", "generations")
OF_WORKLOAD = ("until", "cluster", "schedulers", "trace_gpu")  # what worlds have settled
SCENARIO = ("cluster", "schedulers", "load", "trace_gpu", "interference", "interval_s", "max_forwards")
COSTS = ("restart_s", "checkpoint_s", "min_run_s")
OF_NETWORKS = ("config", "failures", "gpu_speeds", "profile", "shards", "path", "hosts", "track", "debug_checks")
NOT_HERE = (*OF_NETWORKS, "begin", "freeze")


def is_given(options: Any, name: str) -> bool:
    """Whether the command line has that option."""
    return getattr(options, name) not in (None, ())


def spell_option(name: str) -> str:
    """The option as one types it."""
    return "--from" if name == "begin" else f"--{name.replace('_', '-')}"


def is_asked(options: Any) -> bool:
    """The command learns from a workload. UserError where only a part of what that needs is given."""
    from jaxsched.errors import UserError
    from jaxsched.learning.evolved.evolution import STATE_FILE

    if options.resume is not None and (options.resume / STATE_FILE).is_file():
        return True
    if options.learn == NETWORK:
        if options.workload is None or options.generations is not None or options.worlds:
            raise UserError(f"--learn {NETWORK}: takes --workload FILE, and no --generations or --worlds")
        return False
    asked = options.workload is not None or bool(options.worlds)
    if not asked and options.resume is None:
        given = [f"--{name}" for name in ONLY_HERE if is_given(options, name)]
        if given:
            raise UserError(
                f"{', '.join(given)}: says how to learn from --workload FILE or --worlds, which are not given"
            )
    return asked and options.resume is None


def learn_numbers(options: Any) -> None:
    """Learn, and say where the policy is. UserError on any mistake."""
    import shlex

    from jaxsched.cli.output import Display
    from jaxsched.io.files import check_folder
    from jaxsched.io.json_file import read_rows
    from jaxsched.learning.evolved.evolution import STATE_FILE, read_saved_config
    from jaxsched.learning.evolved.loop import METRICS_FILE, train_evolved

    _check_options(options)
    folder = options.out if options.resume is None else options.resume
    config = config_of(options) if options.resume is None else read_saved_config(options.resume)
    assert folder is not None and config.generations is not None
    check_folder(folder, "--out" if options.resume is None else "--resume")
    try:
        with Display(["train"], config.generations, "generations") as display:
            say_if_compiling(display)
            if options.resume is None:
                display.update("train", 0, 0.0, over=False)  # the first generation may take a minute
            policy = train_evolved(
                config,
                folder,
                resume=options.resume is not None,
                report=evolved_reporter(display, config.generations),
                command=options.command(),
            )
    except KeyboardInterrupt as stop:
        there = (folder / STATE_FILE).is_file()
        raise type(stop)(*[f"go on with: jaxsched train --resume {shlex.quote(str(folder))}"] * there) from None
    if read_rows(folder / METRICS_FILE)[-1]["best_generation"] == 0:
        print("nothing better than where learning starts was found, so that is the policy; learn for longer")
    print(f"the best policy on the jobs it was learned from is in {policy}; {how_to_judge(config)}:")
    print(f"  {judging(config, policy)}")


def _check_options(options: Any) -> None:
    """UserError for those that only networks have."""
    from jaxsched.errors import UserError

    wrong = [name for name in NOT_HERE if getattr(options, name)]
    if wrong:
        who = "--workload and --worlds take" if options.resume is None else f"--resume {options.resume} takes"
        said = ", ".join(map(spell_option, wrong))
        raise UserError(f"{who} no {said}: what is learned is no network of schedulers, but a few numbers")


def say_if_compiling(display: "Display") -> None:
    """Say on `display` that the event loop is compiled, if it is."""
    from jaxsched.event_loop import describe_compiling, numba_missing

    said = describe_compiling() if numba_missing() is None else None
    if said is not None:
        display.compiling("train", said)


def config_of(options: Any) -> "EvolvedConfig":
    """What a new run is told. UserError on options that do not go with it."""
    from jaxsched.errors import UserError
    from jaxsched.learning.evolved.config import EvolvedConfig

    settled = [name for name in OF_WORKLOAD if options.worlds and getattr(options, name) is not None]
    if settled:
        raise UserError(f"--worlds takes no {', '.join(map(spell_option, settled))}: each world has its own")
    if options.out is None:
        raise UserError("give --out FOLDER for a new run, or --resume RUN to go on with one")
    given = {name: getattr(options, name) for name in (*ONLY_HERE, *SCENARIO, *COSTS, "seed")}
    config = EvolvedConfig(**{name: value for name, value in given.items() if value not in (None, ())})
    task = config.task
    for name, word in _settled(task).items():
        if getattr(options, name) not in (None, word):
            raise UserError(f"--{name}: {getattr(options, name)!r} should be {word} to learn {task.name}")
    costs = [name for name in COSTS if getattr(options, name) is not None]
    if costs and not task.stops:
        said = ", ".join(map(spell_option, costs))
        raise UserError(f"{said}: says what stopping jobs costs, but where jobs wait is learned without stops")
    return config


def _settled(task: "Task") -> dict[str, str]:
    """Options of a world that what is learned has settled, and what they say on the command line."""
    words = {True: "on", False: "off"}
    return {name: words[value] if isinstance(value, bool) else value for name, value in task.rules.items()}


def evolved_reporter(display: "Display", generations: int) -> Callable[[dict[str, float]], None]:
    """Passes the rows of a run on to `display`."""
    best, first = [float("inf")], []

    def report(row: dict[str, float]) -> None:
        best[0] = row.get("best_ratio", best[0])
        note = f"(mean JCT {best[0]:.3f} of the rule's)" if best[0] < float("inf") else ""
        done = int(row["generation"])
        if not first:
            first.append((done - 1, 0.0))  # what an earlier process did took no time of this one
        display.update("train", done, row["wall_s"], over=done == generations, note=note, apart=first[0])

    return report


def how_to_judge(config: "EvolvedConfig") -> str:
    """What to say before the command that judges."""
    from jaxsched.workload.load import SYNTHETIC

    if config.worlds or config.workload in SYNTHETIC or config.until < 1.0:
        return "judge it by others"
    return "it knows all jobs of the trace (--until 0.6 would leave some to judge it by), so this flatters it"


def judging(config: "EvolvedConfig", policy: Path) -> str:
    """The command that compares the policy with rules, on the jobs that it was not learned from if there are any."""
    import shlex

    from jaxsched.learning.evolved.config import EvolvedConfig
    from jaxsched.worlds.families import parse_worlds

    source = ["--workload", config.workload]
    if config.worlds:  # test worlds of the same families
        source = ["--worlds", parse_worlds(config.worlds[0])._replace(training=False).spelt]
    words = ["jaxsched", "evaluate", *source]
    for name in (*SCENARIO, *COSTS):
        value = getattr(config, name)
        if value != getattr(EvolvedConfig, name) and not (config.worlds and name == "load"):
            words += [spell_option(name), f"{value:g}" if isinstance(value, float) else str(value)]
    words += ["--since", f"{config.until:g}"] if config.until < 1.0 else []
    for name, word in _settled(config.task).items() if config.task.stops else ():
        words += [f"--{name}", word]
    return shlex.join([*words, "--policies", config.rule, str(policy)])
