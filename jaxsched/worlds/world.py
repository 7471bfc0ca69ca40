"""One world: a cluster, the models of its jobs, and the jobs; as objects, as files that give the same, and by number.

The same number of a family is the same world, and no training world is a test world.
"""

import dataclasses
import itertools
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from jaxtyping import Float64

from jaxsched.bounds import jct_lower_bound_s
from jaxsched.cluster.gpu_types import relative_speeds
from jaxsched.cluster.hardware import Cluster
from jaxsched.cluster.inventory import Inventory
from jaxsched.cluster.servers import Server, gpu_types, most_frequent_type, partition_rows
from jaxsched.cluster.topologies import TOPOLOGIES
from jaxsched.dynamics.reference import profiles_on
from jaxsched.errors import UserError
from jaxsched.io.files import write_text
from jaxsched.policies.registry import parse_all
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.catalogue import BUILT_IN, Catalogue
from jaxsched.workload.jobs import JobList, make_job_list, rescale_to_load
from jaxsched.workload.models import ModelProfile
from jaxsched.workload.traces import draw_ps, write_native
from jaxsched.worlds.families import FAMILIES, KIND, PLANNED, TRAINING, WIDE, Choice, Family

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

    def job_lists(self, count: int) -> list[JobList]:
        """Its jobs, and `count - 1` lists of the same jobs in other orders, at other moments between the same two."""
        name = zlib.crc32(self.name.encode())
        others = (reorder(self.jobs, np.random.default_rng((name, number))) for number in range(1, count))
        return [self.jobs, *others]

    def write(self, folder: str | Path) -> None:
        """Writes `CLUSTER`, `MODELS` and `TRACE` into a folder that is there: read again, they are this world."""
        folder = Path(folder)
        entries = [{"count": count, **_plain(dataclasses.asdict(server))} for count, server in self.servers]
        hardware = {"servers": entries, "topology": dict(self.topology), "schedulers": self.schedulers}
        write_text(folder / CLUSTER, yaml.safe_dump(hardware, sort_keys=False, default_flow_style=None))
        models = [_entry(model) for model in self.models]
        write_text(folder / MODELS, yaml.safe_dump({"models": models}, sort_keys=False, default_flow_style=None))
        write_native(folder / TRACE, self.jobs, self.catalogue)


def reorder(jobs: JobList, rng: np.random.Generator) -> JobList:
    """The same jobs in another order, at other moments between the same two."""
    order, moment = rng.permutation(len(jobs)), np.cumsum(rng.exponential(size=len(jobs)))
    moment = np.interp(moment, moment[[0, -1]], jobs.submit_s[[0, -1]])
    columns = {field.name: getattr(jobs, field.name)[order] for field in dataclasses.fields(jobs)}
    return JobList(**columns | {"submit_s": moment, "given_s": moment, "home": jobs.home})


def _entry(model: ModelProfile) -> dict[str, Any]:
    """A model as a file of models says it; one with a plan is a published one."""
    if model.patterns is None:
        return {name: getattr(model, name) for name in _OF_MODEL}
    from jaxsched.workload.llm import entry_of  # a fifth of a second, which other worlds do not need

    return entry_of(model.name)


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """With lists in the place of tuples, as YAML has them."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


_SORTED = "pack:sjf+backfill+spread"
PLAIN = (_SORTED, f"{_SORTED}+reserve", f"{_SORTED}+consolidate", f"{_SORTED}+reserve+consolidate")
CONTENDED = 1.15  # times the bound: what the best plain rule must be over
TEST_STREAM, TRAINING_STREAM = 0, 1  # the first number that every draw of a world is folded with

# Per model: name, bytes of gradients, CPU cores of a GPU, and `sens_cpu`; a step takes about a second on a V100.
_MODELS = (("quiet", 2e7, 1.0, 0.05), ("medium", 1e9, 2.0, 0.1), ("loud", 6e9, 2.0, 0.1), ("hungry", 5e7, 6.0, 0.6))
_PS_SHARES = (0.0, 0.0, 0.5, 1.0)
_MEDIAN_S, _SIGMA = (1800.0, 14400.0), (0.6, 1.4)  # of log-normal run times
_SHORTEST_S = 60.0
FIXED_SEED = 0  # of what the worlds of a fixed family have in common
MOST_OF_ROUTER = 4  # servers, so that there are several groups


def draw_world(choice: Choice, number: int, jobs: int | None = None) -> World:
    """The world of that number.

    Args:
        choice: the family, and whether it is one for training.
        number: from 0 on.
        jobs: how many it has; None: as many as the family says.
    """
    family = FAMILIES[choice.family]
    family = family if jobs is None else dataclasses.replace(family, jobs=jobs)
    part = f"{TRAINING}-" if choice.training else ""
    name = f"{choice.family}-{part}{number}"
    stream = (TRAINING_STREAM if choice.training else TEST_STREAM, zlib.crc32(choice.family.encode()), number)
    for attempt in itertools.count():
        world = _draw(np.random.default_rng(np.random.SeedSequence(0, spawn_key=(*stream, attempt))), family, name)
        if not family.contended or plain_over_bound(world) > CONTENDED:
            return world
    raise AssertionError("there is always another attempt")


def training_world(name: str) -> World | None:
    """The world of a name such as `any-training-3`; None if it is no world's name.

    UserError on the name of a test world: what learned on it could not be judged by it.
    """
    found = re.fullmatch(rf"({'|'.join(FAMILIES)})-({TRAINING}-)?([0-9]{{1,9}})", name)
    if found is None:
        return None
    family, training, number = found.groups()
    if training is None:
        raise UserError(f"{name}: is a test world, nothing may learn on it; take {family}-{TRAINING}-{number}")
    return draw_world(Choice(family, training=True), int(number))


def plain_over_bound(world: World) -> float:
    """Mean JCT of the best of `PLAIN`, which know no law of contention, over the lower bound; run times are known."""
    cluster, settings = world.build(), Settings(models=world.catalogue)
    outcomes = simulate(parse_all(PLAIN), cluster, [world.jobs], settings)
    best = min(float(runs[0].jct_s.mean()) for runs in outcomes.values())
    models = profiles_on(cluster, world.catalogue.models)
    return best / jct_lower_bound_s(cluster, world.jobs, settings.interval_s, models)


def mean_jobs(world: World) -> float:
    """Jobs in the system on average, from the first to the last end, under the last of `PLAIN`; run times are known."""
    spec, settings = PLAIN[-1], Settings(models=world.catalogue)
    (run,) = simulate(parse_all([spec]), world.build(), [world.jobs], settings)[spec]
    return float(run.jct_s.sum() / ((world.jobs.submit_s + run.jct_s).max() - world.jobs.submit_s[0]))


class _Hardware(NamedTuple):
    servers: tuple[tuple[int, Server], ...]
    topology: dict[str, Any]
    schedulers: int
    rack: int  # servers
    partition: int  # servers of the smallest one


def _draw(rng: np.random.Generator, family: Family, name: str) -> World:
    of_all = np.random.default_rng(FIXED_SEED) if family.fixed else rng
    hardware = _draw_hardware(of_all, family)
    if family.width == PLANNED:
        models, jobs = _draw_plans(rng, family, hardware)
    else:
        models = _draw_models(of_all)
        jobs = _draw_jobs(rng, of_all, family, hardware, len(models))
    world = World(name, hardware.servers, hardware.topology, hardware.schedulers, models, jobs)
    known = len(world.catalogue.models)
    return dataclasses.replace(world, jobs=dataclasses.replace(jobs, model=jobs.model + np.int32(known - len(models))))


def _draw_hardware(rng: np.random.Generator, family: Family) -> _Hardware:
    servers, schedulers = _one(rng, family.servers), _one(rng, family.schedulers)
    smallest = int((partition_rows(servers, schedulers) >= 0).sum(1).min())
    kind = _one(rng, family.topologies)
    most = smallest // 4 if family.width == WIDE else servers // 2
    most = min(most, MOST_OF_ROUTER) if kind == "dragonfly" else most
    rack = 1 if kind.startswith("torus") else _one(rng, [rack for rack in family.racks if rack <= most])
    nic, over = _one(rng, family.nic_gbits_s), _one(rng, family.oversubscription)
    topology: dict[str, Any] = {"kind": kind, "nic_gbits_s": nic}
    if kind == "leaf-spine":
        topology |= {"servers_per_rack": rack, "oversubscription": over}
    elif kind == "rail":
        topology |= {"servers_per_unit": rack, "oversubscription": over}
    elif kind == "fat-tree":
        edge = _one(rng, [ratio for ratio in family.oversubscription if ratio <= over])
        topology |= {"servers_per_rack": rack, "racks_per_pod": _one(rng, (2, 4))}
        topology |= {"rack_oversubscription": edge, "pod_oversubscription": over / edge}
    else:
        topology |= {"servers_per_router": rack} if kind == "dragonfly" else {}
        topology |= {"link_gbits_s": nic / over}
    return _Hardware(_draw_servers(rng, family, servers, rack, nic), topology, schedulers, rack, smallest)


def _draw_servers(
    rng: np.random.Generator, family: Family, servers: int, rack: int, nic: float
) -> tuple[tuple[int, Server], ...]:
    """Kinds of servers, rack by rack; each of them at least once."""
    shapes: list[Server] = []
    order = rng.permutation(len(family.shapes))
    for shape in (family.shapes[place] for place in order):
        if shape.gpu_type not in gpu_types(shapes):
            shapes.append(dataclasses.replace(shape, nic_gbits_s=nic))
    shapes = shapes[: _one(rng, family.types)]
    block = max(rack, servers // 16)
    blocks = -(-servers // block)
    kinds = rng.permutation(np.concatenate([np.arange(len(shapes)), rng.integers(len(shapes), size=blocks)])[:blocks])
    rows = np.repeat(kinds, block)[:servers].tolist()
    return tuple((len(list(same)), shapes[kind]) for kind, same in itertools.groupby(rows))


def _draw_models(rng: np.random.Generator) -> tuple[ModelProfile, ...]:
    """One of each of `_MODELS`, with steps and gradients from half to twice as long and as large."""
    return tuple(
        ModelProfile(
            name=name,
            bottleneck="",
            batch_size=8,
            compute_s=_rounded(_log_uniform(rng, 0.5, 2.0)),
            gradient_bytes=_rounded(gradients * _log_uniform(rng, 0.5, 2.0)),
            cpu_cores=cores,
            ps_cores=1.0,
            input_bytes=0.0,
            sens_cpu=sens_cpu,
            gpu_type="V100",
        )
        for name, gradients, cores, sens_cpu in _MODELS
    )


def _draw_jobs(
    rng: np.random.Generator, of_all: np.random.Generator, family: Family, hardware: _Hardware, models: int
) -> JobList:
    """Jobs with models numbered from 0, at a load that is drawn; `of_all` draws what all jobs have in common."""
    shapes = [server for _, server in hardware.servers]
    server, group = min(shape.gpus for shape in shapes), min(min(shape.groups) for shape in shapes)
    sizes = server >> np.arange(server.bit_length())[::-1]
    if family.width != KIND:
        sizes = np.append(sizes, server << np.arange(1, _widest(of_all, family, hardware).bit_length()))
    weights = of_all.dirichlet(np.ones(len(sizes))) * sizes ** -of_all.uniform(0.0, 1.0)
    gpus = rng.choice(sizes, size=family.jobs, p=weights / weights.sum())
    if family.width == WIDE:
        gpus[rng.integers(family.jobs)] = sizes[-1]
    run_s = _draw_run_times(rng, family, of_all)
    each = np.where(gpus >= group, group, 1) if of_all.random() < 0.5 else np.ones_like(gpus)
    jobs = make_job_list(
        np.cumsum(rng.exponential(size=family.jobs)),
        run_s,
        gpus // each,
        gpus_per_worker=each,
        ps=draw_ps(rng, gpus // each, _one(of_all, _PS_SHARES)),
        model=rng.choice(models, size=family.jobs, p=of_all.dirichlet(np.ones(models))),
    )
    return _at_load(rng, family, hardware, jobs)


def _draw_plans(
    rng: np.random.Generator, family: Family, hardware: _Hardware
) -> tuple[tuple[ModelProfile, ...], JobList]:
    """The published models that are drawn, and jobs of them, a worker for each GPU."""
    from jaxsched.workload.llm import draw_planned, llm_models  # a fifth of a second, which other families do not need

    server = min(shape.gpus for _, shape in hardware.servers)
    place, gpus = draw_planned(rng, llm_models(), family.jobs, server * hardware.partition // 4)
    drawn, model = np.unique(place, return_inverse=True)
    arrivals, run_s = np.cumsum(rng.exponential(size=family.jobs)), _draw_run_times(rng, family, rng)
    jobs = make_job_list(arrivals, run_s, gpus, model=model, models=len(drawn))
    return tuple(llm_models()[kind] for kind in drawn), _at_load(rng, family, hardware, jobs)


def _draw_run_times(rng: np.random.Generator, family: Family, of_all: np.random.Generator) -> Float64[np.ndarray, "J"]:
    """Seconds, log-normal; `of_all` draws their median and their spread."""
    median_s, sigma = _log_uniform(of_all, *_MEDIAN_S), of_all.uniform(*_SIGMA)
    return np.maximum(np.round(median_s * np.exp(sigma * rng.standard_normal(family.jobs))), _SHORTEST_S)


def _at_load(rng: np.random.Generator, family: Family, hardware: _Hardware, jobs: JobList) -> JobList:
    """The jobs at a load that is drawn."""
    servers = [server for count, server in hardware.servers for _ in range(count)]
    total = sum(server.gpus for server in servers)
    jobs = rescale_to_load(jobs, total, rng.uniform(*family.load) * min(1.0, _capacity(servers) / total))
    return dataclasses.replace(jobs, given_s=jobs.submit_s)


def _widest(rng: np.random.Generator, family: Family, hardware: _Hardware) -> int:
    """Servers of the widest gang, a power of two: at most a quarter of a partition, or two racks where that is more."""
    most = max(hardware.partition // 4, min(2 * hardware.rack, hardware.partition // 2))
    least = hardware.rack + 1 if family.width == WIDE else 1
    return _one(rng, [width for width in (1 << np.arange(most.bit_length())).tolist() if width >= least])


def _capacity(servers: list[Server]) -> float:
    """What all GPUs compute together, in GPUs of the type that run times are on."""
    types = gpu_types(servers)
    speeds = dict(zip(types, relative_speeds(types, most_frequent_type(servers)), strict=True))
    return sum(server.gpus * speeds[server.gpu_type] for server in servers)


def _one(rng: np.random.Generator, choices: Any) -> Any:
    """One of the choices, as it stands there."""
    return choices[int(rng.integers(len(choices)))]


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _rounded(value: float) -> float:
    """To three digits: a file of models can be read."""
    return float(f"{value:.3g}")
