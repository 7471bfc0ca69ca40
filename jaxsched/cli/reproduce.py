"""`jaxsched reproduce`: train a checkpoint anew by its card, measure it again, and compare the figures."""

import dataclasses
from pathlib import Path
from typing import Annotated

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
        from jaxsched import shipped
        from jaxsched.cli.progress import Display
        from jaxsched.cli.train import compiling, reporter
        from jaxsched.policies.checkpoint import read_card
        from jaxsched.training.card import beside_card
        from jaxsched.training.config import TrainConfig, from_dict
        from jaxsched.training.loop import train_or_resume
        from jaxsched.training.shards import provide_devices
        from jaxsched.versions import versions

        provide_devices()
        folder = shipped.find(shipped.CHECKPOINTS, self.name) or Path(self.name)
        card = read_card(folder)
        config = from_dict(TrainConfig, card.get("config", {}), f"checkpoint {folder}: config")
        now = versions()
        for package, version in card["versions"].items():
            if now.get(package, version) != version:
                print(f"differs: {package} {version} then, {now[package]} now")
        out = Path("runs") / f"reproduce-{folder.name}" if self.out is None else self.out
        with Display(["train"], config.ppo.chunks, "chunks") as display:
            policy = train_or_resume(config, out, report=reporter(display, config), begin=compiling(display))
        again = read_card(policy)
        lines = [("validation", card.get("validation_jct_s"), again["validation_jct_s"])]
        for entry in card.get("figures", []):
            lines += _evaluated(entry, str(folder), str(policy))
        print(beside_card(lines))
        if not card.get("figures"):
            print(f"the card records no evaluation; add one: jaxsched evaluate ... {folder} --record {folder}")


def _evaluated(entry: dict, old: str, new: str) -> list[tuple[str, float | None, float | None]]:
    """Mean JCTs of one recorded evaluation, then and now; the command is run with the new policy."""
    import shlex

    from jaxsched.cli.evaluate import Evaluate
    from jaxsched.training.card import CHECKPOINT

    arguments = [new if word == CHECKPOINT else word for word in shlex.split(entry["command"])[2:]]
    comparison = tyro.cli(Evaluate, args=arguments).compared()
    found = {CHECKPOINT if row.name == new else row.name: row.figures.jct_mean_s for row in comparison.rows}
    known = entry["jct_mean_s"]
    return [(name.replace(CHECKPOINT, old), known.get(name), found[name]) for name in found]
