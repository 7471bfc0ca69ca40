"""`jaxsched placement fit|evaluate|validate`: step times by placement, learned from measurements."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxsched.cli.options import Output, optional
from jaxsched.cli.output import Data

if TYPE_CHECKING:
    from jaxsched.calibration.fitting import Errors
    from jaxsched.calibration.step_time import StepTimes

HELP = """Fit and evaluate a model of the step time by placement.

Data files have the columns model,placement,local_batch_size,step_time_s,sync_time_s (placement "1143": four nodes with
1, 1, 4 and 3 GPUs) or model,nodes,gpus,local_batch_size,step_time_s,sync_time_s. MODEL is a folder that fit wrote, or
'fitted', which comes with jaxsched.

Examples:
  jaxsched placement fit --data pollux_placements.csv pollux_scalability.csv --out checkpoints/placement
  jaxsched placement evaluate --model fitted --data unseen.csv --json errors.json
  jaxsched placement validate --data pollux_placements.csv pollux_scalability.csv
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """Fit the model to measurements, and write it to a folder."""

    data: Data
    """Measurements."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder for weights and card."""
    max_nodes: Annotated[int | None, optional("N")] = None
    """Leave placements on more nodes out (default: take all)."""

    def run(self) -> None:
        """Read, fit, write. UserError on any mistake, before the fit."""
        from jaxsched.calibration.data import check_out, provenance
        from jaxsched.calibration.step_time import WHAT, fit_step_times, mean_step_s, save_model
        from jaxsched.errors import UserError

        check_out(self.out, WHAT)
        if self.max_nodes is not None and self.max_nodes < 1:
            raise UserError(f"--max-nodes {self.max_nodes}: should be at least 1")
        times = _kept(_read(self.data), most=self.max_nodes)
        files = " ".join(path.name for path in self.data)
        limit = "" if self.max_nodes is None else f" --max-nodes {self.max_nodes}"
        command = f"jaxsched placement fit --data {files} --out {self.out.name}{limit}"
        card = {"command": command, "data": provenance(self.data), "rows": len(times.step_s)}
        save_model(self.out, fit_step_times(times), mean_step_s(times), card)
        print(f"{len(times.step_s)} rows\nwrote {self.out}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Compare a fitted model, and references fitted to the same rows, with measurements."""

    model: Annotated[str, tyro.conf.arg(metavar="DIR")] = "fitted"
    """Folder of the model."""
    data: Data
    """Measurements, best of all such that the model has not seen."""
    min_nodes: Annotated[int | None, optional("N")] = None
    """Leave placements on fewer nodes out (default: take all)."""
    json: Output = None
    """Also write the errors as JSON."""

    def run(self) -> None:
        """Read, compare, print, write. UserError on any mistake."""
        from jaxsched.calibration.data import files_of_the_fit
        from jaxsched.calibration.fitting import MODEL
        from jaxsched.calibration.step_time import compare, load_model
        from jaxsched.cli.output import check_report, write_report

        check_report(self.json, *self.data)
        times = _kept(_read(self.data), least=self.min_nodes)
        fitted, means, card = load_model(self.model)
        table = compare(fitted, means, times)
        seen = files_of_the_fit(card["data"], self.data)
        print(f"{len(times.step_s)} rows" + (f", the model was fitted to {', '.join(seen)}" if seen else ""))
        _show(table)
        report = {"model": self.model, "data": list(map(str, self.data)), "fitted_to": seen, "rows": len(times.step_s)}
        write_report(self.json, report | table.pop(MODEL) | {"references": table})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Validate:
    """Fit anew without some rows and predict those: folds over placements, and few nodes for many."""

    data: Data
    """Measurements."""
    folds: Annotated[int, tyro.conf.arg(metavar="N")] = 5
    """Parts of the placements, each left out in turn."""
    max_nodes: Annotated[int, tyro.conf.arg(metavar="N")] = 2
    """Also fit on placements of so many nodes at most, and predict all others."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of the parts."""
    json: Output = None
    """Also write the errors as JSON."""

    def run(self) -> None:
        """Read, fit, print, write. UserError on any mistake."""
        from jaxsched.calibration.step_time import cross_validate, extrapolate
        from jaxsched.cli.output import check_report, write_report
        from jaxsched.errors import UserError

        check_report(self.json, *self.data)
        times = _read(self.data)
        placements = len(set(times.placement))
        if placements < 2:
            raise UserError("--data: has too few placements for folds, should have at least 2")
        if not 2 <= self.folds <= placements:
            raise UserError(f"--folds {self.folds}: should be 2 to {placements}, the number of placements")
        near = times.spread[0] <= self.max_nodes
        if near.all() or not near.any():
            raise UserError(f"--max-nodes {self.max_nodes}: should leave rows on both sides")
        folded = cross_validate(times, self.folds, self.seed)
        print(f"{self.folds} folds over {placements} placements, {len(times.step_s)} rows")
        _show(folded)
        far = extrapolate(times, self.max_nodes)
        print(f"\nfitted to at most {self.max_nodes} nodes, {(~near).sum()} rows on more")
        _show(far)
        report = {"data": list(map(str, self.data)), "rows": len(times.step_s), "folds": self.folds, "seed": self.seed}
        write_report(self.json, report | {"cv": folded, "max_nodes": self.max_nodes, "more_nodes": far})


def _read(paths: tuple[Path, ...]) -> "StepTimes":
    from jaxsched.calibration.step_time import read_step_times

    return read_step_times(paths)


def _kept(times: "StepTimes", least: int | None = None, most: int | None = None) -> "StepTimes":
    """The rows on `least` to `most` nodes; UserError if there are none."""
    from jaxsched.errors import UserError

    nodes = times.spread[0]
    kept = (nodes >= (least or 1)) & (nodes <= (most or nodes.max()))
    if not kept.any():
        raise UserError(f"no row is left: the data have placements on {nodes.min()} to {nodes.max()} nodes")
    return times.pick(kept)


def _show(table: "dict[str, Errors]") -> None:
    """Relative errors by model, one line for the fitted model and each reference."""
    groups = list(next(iter(table.values()))["median"])
    print(f"{'median error':14}" + "".join(f"{group:>13}" for group in groups) + f"{'mean, all':>12}")
    for name, row in table.items():
        print(f"{name:14}" + "".join(f"{row['median'][g]:13.1%}" for g in groups) + f"{row['mape']['all']:12.1%}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """Fit and evaluate a model of the step time by placement."""

    task: Annotated[
        Annotated[Fit, tyro.conf.subcommand("fit", prefix_name=False)]
        | Annotated[Evaluate, tyro.conf.subcommand("evaluate", prefix_name=False)]
        | Annotated[Validate, tyro.conf.subcommand("validate", prefix_name=False)],
        tyro.conf.arg(name=""),
    ]
    """What to do."""

    def run(self) -> None:
        """Run the task. UserError on any mistake."""
        self.task.run()
