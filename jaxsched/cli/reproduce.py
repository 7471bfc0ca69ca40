"""`jaxsched reproduce`: train a checkpoint anew by its card, measure it again, and compare the figures."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from jaxsched.cli.options import optional

HELP = """Train a checkpoint anew by its card, repeat its recorded evaluations, and compare.

NAME is a shipped checkpoint, or the path of one. Evaluations get into a card with `jaxsched evaluate
--record CHECKPOINT`. A run that was stopped goes on with the same command. What the card of an earlier version does not
say is named, with the value that is taken.

Examples:
  jaxsched reproduce quickstart
  jaxsched reproduce checkpoints/quickstart --out runs/quickstart-again
  jaxsched evaluate --policies pack greedy-wait checkpoints/quickstart --seeds 10 --record checkpoints/quickstart
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reproduce:
    """Train a checkpoint anew by its card, repeat its evaluations, and compare the figures."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FOLDER")]
    """The checkpoint."""
    out: Annotated[Path | None, optional("FOLDER")] = None
    """Folder of the run (default: runs/reproduce-NAME)."""

    def run(self) -> None:
        """Train, evaluate, compare. UserError on any mistake."""
        try:
            self._run()
        except KeyboardInterrupt as stop:
            raise type(stop)("go on with the same command") from None

    def _run(self) -> None:
        from jaxsched import shipped
        from jaxsched.io.cards import what_of
        from jaxsched.io.files import check_folder
        from jaxsched.learning.card import table_beside_card
        from jaxsched.machine import versions
        from jaxsched.policies import evolved

        folder = shipped.find(shipped.CHECKPOINTS, self.name) or Path(self.name)
        out = Path("runs") / f"reproduce-{folder.name}" if self.out is None else self.out
        check_folder(out, "--out")
        what = what_of(folder) or ""
        numbers = what in evolved.KINDS
        known, policy, lines = _evolved_anew(what, folder, out) if numbers else _network_anew(folder, out)
        now = versions()
        for package, version in known.versions.items():
            if now.get(package, version) != version:
                print(f"differs: {package} {version} then, {now[package]} now")
        for entry in known.figures:
            lines += _evaluated(entry, str(folder), str(policy))
        if lines:
            print(table_beside_card(lines))
        if not known.figures:
            print(f"the card records no evaluation; add one: jaxsched evaluate ... {folder} --record {folder}")


class Known(NamedTuple):
    """What the old card says."""

    versions: dict[str, str]
    figures: list[dict[str, Any]]


# What was known, the new policy, and figures of both.
Anew = tuple[Known, Path, list[tuple[str, float | None, float | None]]]


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
    with Display(["train"], config.ppo.chunks, "chunks") as display:
        policy = train_or_resume(config, out, report=reporter(display, config), begin=compiling(display))
    known = Known(card["versions"], card.get("figures", []))
    return known, policy, [("validation", card.get("validation_jct_s"), read_card(policy)["validation_jct_s"])]


def _evolved_anew(what: str, folder: Path, out: Path) -> Anew:
    """`what` the folder holds, one of `policies.evolved.KINDS`."""
    from jaxsched.cli.output import Display
    from jaxsched.cli.train_evolved import reporter, say_if_compiling
    from jaxsched.io.cards import CARD_FILE
    from jaxsched.io.schema import convert
    from jaxsched.learning.evolved.config import EvolvedConfig, as_saved
    from jaxsched.learning.evolved.loop import train_evolved
    from jaxsched.learning.evolved.state import STATE_FILE
    from jaxsched.policies import evolved

    card = evolved.read_card(folder, what)
    config: EvolvedConfig = convert(EvolvedConfig, as_saved(card.config), f"{what} {folder}: {CARD_FILE}: config")
    assert config.generations is not None
    resume, command = (out / STATE_FILE).is_file(), card.commands.get("train", "")
    with Display(["train"], config.generations, "generations") as display:
        say_if_compiling(display)
        report = reporter(display, config.generations)
        policy = train_evolved(config, out, resume=resume, report=report, command=command)
    same = evolved.load_policy(folder, what).spec == evolved.load_policy(policy, what).spec
    print(f"what is learned is {'the same' if same else 'not the same as in the card'}")
    return Known(card.versions, card.figures), policy, []


def _evaluated(entry: dict, old: str, new: str) -> list[tuple[str, float | None, float | None]]:
    """Mean JCTs of one recorded evaluation, then and now; the command is run with the new policy."""
    import shlex

    from jaxsched.cli.evaluate import Evaluate
    from jaxsched.learning.card import CHECKPOINT

    arguments = [new if word == CHECKPOINT else word for word in shlex.split(entry["command"])[2:]]
    comparison = tyro.cli(Evaluate, args=arguments).compared()
    found = {CHECKPOINT if row.name == new else row.name: row.figures.jct_mean_s for row in comparison.rows}
    known = entry["jct_mean_s"]
    return [(name.replace(CHECKPOINT, old), known.get(name), found[name]) for name in found]
