"""`jaxsched examples`: the shipped examples and configurations, in a folder where they can be changed."""

import dataclasses
import shutil
from pathlib import Path
from typing import Annotated

import tyro

HELP = """Copy the shipped examples and configurations into a folder.

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
