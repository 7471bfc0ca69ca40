"""One world: a cluster, the models of its jobs, and the jobs; as objects, and as files that give the same objects."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from jaxsched.cluster.hardware import Cluster
from jaxsched.cluster.inventory import Inventory
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topologies import TOPOLOGIES
from jaxsched.io.files import write_text
from jaxsched.workload.catalogue import BUILT_IN, Catalogue
from jaxsched.workload.jobs import JobList
from jaxsched.workload.models import ModelProfile
from jaxsched.workload.traces import write_native

CLUSTER, TRACE, MODELS = "cluster.yaml", "trace.csv", "models.yaml"
_OF_MODEL = ("name", "compute_s", "gpu_type", "gradient_bytes", "batch_size", "cpu_cores", "ps_cores", "sens_cpu")


@dataclasses.dataclass(frozen=True)
class World:
    """What policies are compared on. It can be pickled: its hardware is built where it is needed."""

    name: str
    servers: tuple[tuple[int, Server], ...]  # how many of each kind, in the order of the racks
    topology: Mapping[str, Any]  # `kind` and the builder's options, as in a cluster file
    schedulers: int
    models: tuple[ModelProfile, ...]  # beside those of the catalogue
    jobs: JobList

    @property
    def inventory(self) -> Inventory:
        """The cluster before it is cut into partitions."""
        servers = tuple(server for count, server in self.servers for _ in range(count))
        options = {name: value for name, value in self.topology.items() if name != "kind"}
        topology = TOPOLOGIES[self.topology["kind"]](len(servers), **options)
        return Inventory(servers, tuple(f"server{row}" for row in range(len(servers))), topology, self.schedulers)

    def build(self) -> Cluster:
        """The hardware as arrays. They are not kept: thousands of worlds would fill the memory."""
        return self.inventory.build()

    @property
    def catalogue(self) -> Catalogue:
        """The models that its jobs name."""
        return Catalogue((*BUILT_IN.models, *self.models))

    def write(self, folder: str | Path) -> None:
        """Writes `CLUSTER`, `MODELS` and `TRACE` into a folder that is there: read again, they are this world."""
        folder = Path(folder)
        entries = [{"count": count, **_plain(dataclasses.asdict(server))} for count, server in self.servers]
        hardware = {"servers": entries, "topology": dict(self.topology), "schedulers": self.schedulers}
        write_text(folder / CLUSTER, yaml.safe_dump(hardware, sort_keys=False, default_flow_style=None))
        models = [_entry(model) for model in self.models]
        write_text(folder / MODELS, yaml.safe_dump({"models": models}, sort_keys=False, default_flow_style=None))
        write_native(folder / TRACE, self.jobs, self.catalogue)


def _entry(model: ModelProfile) -> dict[str, Any]:
    """A model as a file of models says it; one with a plan is a published one."""
    if model.patterns is None:
        return {name: getattr(model, name) for name in _OF_MODEL}
    from jaxsched.workload.llm import entry_of  # a fifth of a second, which other worlds do not need

    return entry_of(model.name)


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """With lists in the place of tuples, as YAML has them."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
