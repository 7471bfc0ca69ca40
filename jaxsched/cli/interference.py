"""`jaxsched interference fit|evaluate|validate|calibrate|predict`: interference learned from measurements."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxsched.cli.options import Output, Tasks
from jaxsched.cli.output import Data

if TYPE_CHECKING:
    from jaxsched.calibration.fitting import Errors
    from jaxsched.calibration.interference.measurements import Measurements

HELP = """Fit, evaluate and use models of how jobs slow each other down, from measured pairs.

Data files are recognised by their content: pairs on one GPU (gpu_type,model_a,model_b,solo_a,solo_b,shared_a,shared_b),
pairs on one network (victim,victim_gpus,victim_gpus_per_node,aggressor,...,throughput_ratio), or Gavel's
simulation_throughputs.json. MODEL is a folder that fit wrote, or 'fitted', which comes with jaxsched.

Examples:
  jaxsched interference fit --data gavel_gpu_sharing.csv deepshare_network.csv --out checkpoints/interference
  jaxsched interference evaluate --model fitted --data unseen.csv --json errors.json
  jaxsched interference validate --data gavel_gpu_sharing.csv
  jaxsched interference calibrate --data deepshare_network.csv
  jaxsched interference calibrate --data gavel_gpu_sharing.csv
  jaxsched interference predict "ResNet-18 (batch size 64)" lstm_lm --gpu v100
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """Fit a model to measurements, and write it to a folder."""

    data: Data
    """Measurements."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder for weights and card."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of the ensemble."""

    def run(self) -> None:
        """Read, fit, write. UserError on any mistake, before the fit."""
        from jaxsched.calibration.data import check_out, provenance
        from jaxsched.calibration.interference.files import WHAT, save_model
        from jaxsched.calibration.interference.fit import best_curve, fit
        from jaxsched.calibration.interference.measurements import NETWORK, read_measurements
        from jaxsched.calibration.interference.model import fit_references

        check_out(self.out, WHAT)
        measured = read_measurements(self.data)
        parts = [(fit(part, self.seed), fit_references(part)) for part in measured]
        files = " ".join(path.name for path in self.data)
        command = f"jaxsched interference fit --data {files} --out {self.out.name} --seed {self.seed}"
        rows = {part.kind: part.rows for part in measured}
        card = {"command": command, "seed": self.seed, "data": provenance(self.data), "rows": rows}
        for part in measured:
            if part.kind == NETWORK:
                curve = best_curve(part)
                card["curve"] = {"kappa": curve.kappa, "power": curve.power, "mae": curve.mae}
        save_model(self.out, parts, card)
        for part in measured:
            print(f"{part.kind}: {part.rows} rows, {len(part.items)} jobs")
        print(f"wrote {self.out}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Compare a fitted model, and references fitted to the same rows, with measurements."""

    model: Annotated[str, tyro.conf.arg(metavar="DIR")] = "fitted"
    """Folder of the model."""
    data: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Measurements, best of all such that the model has not seen."""
    json: Output = None
    """Also write the errors as JSON."""

    def run(self) -> None:
        """Read, compare, print, write. UserError on any mistake."""
        from jaxsched.calibration.data import files_of_the_fit
        from jaxsched.calibration.interference.files import load_model
        from jaxsched.calibration.interference.validate import evaluate
        from jaxsched.cli.output import write_report

        measured = _measured(self.data, self.json)
        loaded = load_model(self.model)
        found = evaluate(loaded, measured)
        seen = bool(files_of_the_fit(loaded.card["data"], [self.data]))
        print(f"{found['rows']} rows, {found['ratios']} ratios" + (", the very rows of the fit" if seen else ""))
        own = {"mae": found["mae"], "mape": found["mape"]}
        _show({"model": own} | found["references"])
        write_report(self.json, {"model": self.model, "data": str(self.data), "fitted_to_it": seen} | found)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Validate:
    """Fit anew without some rows and predict those: folds over rows, and leaving each model family out."""

    data: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Measurements."""
    folds: Annotated[int, tyro.conf.arg(metavar="N")] = 5
    """Parts of the rows, each left out in turn."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of the parts and of the fits."""
    families: bool = True
    """Also leave each family out, with 0, 2 and 5 measured rows of each of its jobs."""
    json: Output = None
    """Also write the errors as JSON."""
    figure: Output = None
    """Also draw the ratios of the folds, predicted against measured (.png, .pdf or .svg)."""

    def run(self) -> None:
        """Read, fit, print, write. UserError on any mistake."""
        from jaxsched.calibration.fitting import MODEL
        from jaxsched.calibration.interference.validate import errors, leave_family_out, predict_out_of_fold
        from jaxsched.cli.output import results, write_report
        from jaxsched.errors import UserError
        from jaxsched.evaluation.figures import check_figure, predicted_against_measured

        if self.figure is not None:
            check_figure(self.figure)
        measured = _measured(self.data, self.json, self.figure)
        if measured.rows < 2:
            raise UserError("--data: has too few rows for folds, should have at least 2")
        if not 2 <= self.folds <= measured.rows:
            raise UserError(f"--folds {self.folds}: should be 2 to {measured.rows}, the number of rows")
        predicted = predict_out_of_fold(measured, self.folds, self.seed)
        folded = {name: errors(measured, ratios) for name, ratios in predicted.items()}
        print(f"{self.folds} folds over {measured.rows} rows")
        _show(folded)
        ratios = predicted[MODEL]
        with results() as write:
            write(self.figure, lambda path: predicted_against_measured(measured.hardware, measured.ratio, ratios, path))
        report = {"data": str(self.data), "rows": measured.rows, "folds": self.folds, "seed": self.seed, "cv": folded}
        if self.families:
            left = leave_family_out(measured, seed=self.seed)
            for shots, table in left.items():
                print(f"\none family left out, {shots} rows of each of its jobs known")
                _show(table)
            report["families"] = left
        write_report(self.json, report)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibrate:
    """Fit the strength of contention on the network or on a shared GPU, as the simulator uses it, to measurements."""

    data: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Measurements of jobs on one network, or of pairs on one GPU."""
    json: Output = None
    """Also write the strengths as JSON."""

    def run(self) -> None:
        """Read, fit, print, write. UserError on any mistake."""
        from jaxsched.calibration.interference.measurements import NETWORK

        measured = _measured(self.data, self.json)
        if measured.kind == NETWORK:
            self._network(measured)
        else:
            self._gpus(measured)

    def _gpus(self, measured: "Measurements") -> None:
        from jaxsched.calibration.interference.fit import gpu_strengths
        from jaxsched.cli.output import write_report

        found = gpu_strengths(measured)
        print(f"{'GPU':>8} {'strength':>8} {'MAE':>8}")
        for name, (kappa, mae) in found.items():
            print(f"{name:>8} {kappa:8.2f} {mae:8.4f}")
        rows = {name: {"kappa": kappa, "mae": mae} for name, (kappa, mae) in found.items()}
        write_report(self.json, {"data": str(self.data), "gpus": rows})

    def _network(self, measured: "Measurements") -> None:
        from jaxsched.calibration.interference.fit import GRID, best_curve, fit_curves, least_strength
        from jaxsched.cli.output import write_report

        curves, best = fit_curves(measured, GRID, free=False), best_curve(measured)
        print(f"{'strength':>8} {'MAE':>8} {'largest share':>14}")
        for curve in curves:
            print(f"{curve.kappa:8.2f} {curve.mae:8.4f} {curve.shares.max():14.2f}")
        print(f"the weakest within 1% of the best: {least_strength(curves):g}")
        print(f"best with a power: {best.kappa:.2f} others^{best.power:.2f}, MAE {best.mae:.4f}")
        jobs = [item.name for item in measured.items]
        rows = [
            {
                "kappa": curve.kappa,
                "power": curve.power,
                "mae": curve.mae,
                "shares": dict(zip(jobs, map(float, curve.shares))),
            }
            for curve in (*curves, best)
        ]
        write_report(self.json, {"data": str(self.data), "least": least_strength(curves), "curves": rows})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predict:
    """Predict the slowdown of each of several jobs on one GPU."""

    models: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="MODEL_A MODEL_B ...")]]
    """Two or more jobs: measured names, other batch sizes of measured families, or models of the catalogue."""
    gpu: Annotated[str, tyro.conf.arg(metavar="TYPE")] = "v100"
    """GPU type: k80, p100 or v100."""
    model: Annotated[str, tyro.conf.arg(metavar="DIR")] = "fitted"
    """Folder of the model."""
    json: Output = None
    """Also write the predictions as JSON."""

    def run(self) -> None:
        """Look up, predict, print, write. UserError on any mistake."""
        from jaxsched.calibration.interference.files import load_model
        from jaxsched.calibration.interference.fit import find_item, slowdowns
        from jaxsched.calibration.interference.measurements import GPU
        from jaxsched.cli.output import check_report, write_report
        from jaxsched.errors import UserError

        check_report(self.json)
        if len(self.models) < 2:
            raise UserError("predict: one job alone is not slowed down, name at least two models")
        parts = load_model(self.model).parts
        if GPU not in parts:
            raise UserError(f"--model {self.model}: was not fitted to jobs that share a GPU")
        found = [find_item(parts[GPU], name, self.gpu.lower()) for name in self.models]
        values = slowdowns(parts[GPU], [item for item, _ in found])
        rows = [
            {"model": item.name, "known": known, "slowdown": float(value), "throughput_ratio": 1.0 / float(value)}
            for (item, known), value in zip(found, values)
        ]
        print(f"{'model':30} {'slowdown':>8} {'ratio':>6}  known from")
        for row in rows:
            print(f"{row['model']:30} {row['slowdown']:8.3f} {row['throughput_ratio']:6.3f}  {row['known']}")
        write_report(self.json, {"gpu": self.gpu.lower(), "jobs": rows})


def _measured(data: Path, json: Path | None, figure: Path | None = None) -> "Measurements":
    """The first kind of measurements of a file, read when it is sure that the report can be written."""
    from jaxsched.calibration.interference.measurements import read_measurements
    from jaxsched.cli.output import check_report

    check_report(json, data, figure=figure)
    return read_measurements([data])[0]


def _show(table: "dict[str, Errors]") -> None:
    """Errors by hardware, one line for the model and each reference."""
    groups = list(next(iter(table.values()))["mae"])
    print(f"{'':12}" + "".join(f"{'MAE ' + group:>14}" for group in groups) + f"{'MAPE all':>12}")
    for name, row in table.items():
        cells = "".join(f"{row['mae'][group]:14.4f}" for group in groups)
        print(f"{name:12}{cells}{row['mape']['all']:12.1%}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interference(Tasks):
    """Fit, evaluate and use models of how jobs slow each other down, from measured pairs."""

    task: Annotated[
        Annotated[Fit, tyro.conf.subcommand("fit", prefix_name=False)]
        | Annotated[Evaluate, tyro.conf.subcommand("evaluate", prefix_name=False)]
        | Annotated[Validate, tyro.conf.subcommand("validate", prefix_name=False)]
        | Annotated[Calibrate, tyro.conf.subcommand("calibrate", prefix_name=False)]
        | Annotated[Predict, tyro.conf.subcommand("predict", prefix_name=False)],
        tyro.conf.arg(name=""),
    ]
    """What to do."""
