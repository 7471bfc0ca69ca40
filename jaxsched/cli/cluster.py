"""`jaxsched cluster show|draw`: what a cluster's network amounts to, and a picture of it."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from jaxsched.cli.options import Output, Tasks

HELP = """Show the figures of clusters' networks, or draw one.

NAME is a preset (leaf-spine-N, fat-tree-N, vl2-N, bcube-N, dragonfly-N, torus2d-N, torus3d-N, rail-N with N servers of
8 GPUs, nvl72-N with N trays of 4 GPUs in racks of 18, or philly) or a .csv (node list, host map) or .yaml file.

Examples:
  jaxsched cluster show leaf-spine-64 bcube-64 dragonfly-64
  jaxsched cluster draw torus3d-64 --out torus.svg
"""

_COLUMNS = ("cluster", "servers", "racks", "switches", "links", "bisection Gbit/s", "oversubscription")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Show:
    """Servers, links, bisection bandwidth and oversubscription of networks."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FILE ...")]
    """Presets or files."""
    json: Output = None
    """Also write the figures as JSON."""

    def run(self) -> None:
        """Read, measure, print, write. UserError on any mistake."""
        from jaxsched.cli.output import check_report, write_report
        from jaxsched.cluster.measures import figures
        from jaxsched.cluster.presets import get_inventory
        from jaxsched.errors import UserError

        if not self.names:
            raise UserError("cluster show: name at least one cluster, e.g. leaf-spine-64")
        check_report(self.json, *self.names)
        rows = {name: figures(get_inventory(name)) for name in self.names}
        width = max(map(len, (*rows, _COLUMNS[0])))
        print(f"{_COLUMNS[0]:{width}}" + "".join(f"  {column:>{max(len(column), 8)}}" for column in _COLUMNS[1:]))
        for name, row in rows.items():
            cells = [f"{row.servers:8,}", f"{row.racks:8,}", f"{row.switches:8,}", f"{row.links:8,}"]
            cells += [
                f"{row.bisection_gbits_s:{len(_COLUMNS[5])},.1f}",
                f"{row.oversubscription:{len(_COLUMNS[6])}.2f}",
            ]
            print("  ".join([f"{name:{width}}", *cells]))
        finite = {name: row.bisection_gbits_s if row.racks > 1 else None for name, row in rows.items()}
        report = {name: dataclasses.asdict(row) | {"bisection_gbits_s": finite[name]} for name, row in rows.items()}
        write_report(self.json, report)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draw:
    """A picture of a network: racks or servers, switches, cables. Needs the extra `viz` (matplotlib)."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FILE")]
    """Preset or file."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Picture to write, .svg, .png or .pdf."""

    def run(self) -> None:
        """Read, draw, write. UserError on any mistake."""
        from jaxsched.cli.output import results
        from jaxsched.cluster.measures import save
        from jaxsched.cluster.presets import get_inventory
        from jaxsched.evaluation.figures import check_figure
        from jaxsched.io.files import check_outputs

        check_outputs({"--out": self.out}, [self.name])
        check_figure(self.out)
        topology = get_inventory(self.name).topology
        with results() as write:
            write(self.out, lambda path: save(topology, Path(self.name).stem, path))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster(Tasks):
    """Show the figures of clusters' networks, or draw one."""

    task: Annotated[
        Annotated[Show, tyro.conf.subcommand("show", prefix_name=False)]
        | Annotated[Draw, tyro.conf.subcommand("draw", prefix_name=False)],
        tyro.conf.arg(name=""),
    ]
    """What to do."""
