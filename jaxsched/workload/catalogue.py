"""Which models there are: the project's own, and those of a user's file.

    models:
      - name: our_llm
        compute_s: 0.62              # one step on one GPU
        gpu_type: A100               # that compute_s is on; without it, the type of most of the cluster's GPUs
        gradient_bytes: 2.6e+9       # exchanged per step
        batch_size: 4                # optional, as all that follows; samples per GPU and step
        cpu_cores: 1.5               # that keep one GPU fed
        ps_cores: 2                  # of one parameter server
        input_bytes: 65536           # from host to GPU, per GPU and step
        sens_cpu: 0.1                # share of the compute phase that keeps the host busy, 0 to 1
        speeds: {A100: 2.2, H100: 4} # measured, over one V100; other types follow docs/semantics.md, section 4
        aliases: [our-llm]

A model with a `transformer` and a `plan` says so how it is cut up, in place of `compute_s`, `gradient_bytes` and
`batch_size` (`workload.plans` has all keys):

      - name: our_70b
        transformer: {hidden: 8192, layers: 80, heads: 64, sequence: 4096}
        plan: {tensor: 8, data: 8, pipeline: 8, global_batch: 1024}
        step_time: runs/step-time    # folder of fitted constants; without it those that come with the package, of A100s

Models of a file come after the project's own; one with the name of one of those takes its place. `llm` in place of a
file means the published models of `workload.llm`. A trace whose rows have plans is a file of these models, too.

Large language models, trained by data x tensor x pipeline parallelism, are kinds of gangs. A worker is one stage of the
pipeline of one replica: `tensor` GPUs that exchange activations all the time, so that they lie in one GPU group and
with it inside a server. A gang has `data * pipeline` workers. What a GPU exchanges with the other replicas per step is
the gradient of its own part of the model, `1 / (tensor * pipeline)` of it; what the tensor part and the pipeline send
is taken to be hidden in the compute phase (assumption).

Parameters are counted from published configurations (Llama 2: 7B, 13B, 70B); gradients have 2 bytes. A replica takes 16
sequences of 4,096 tokens per step and a GPU computes 40 TFLOP/s, as that of `llama_1b` (both assumptions).

Mixes are named weights over the models of the catalogue, for jobs whose model is not known.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from jaxsched.errors import UserError
from jaxsched.io.cards import SHIPPED
from jaxsched.io.files import shorten
from jaxsched.io.schema import bad_field, check_mapping, check_positive, check_whole, convert
from jaxsched.io.yaml_file import read_yaml
from jaxsched.workload.models import CATALOGUE, MODEL_NAMES, ModelProfile

TENSOR = 4  # GPUs; a GPU group of most servers has as many
_TOKENS = 16 * 4096
_FLOP_S = 40e12


@dataclasses.dataclass(frozen=True)
class Kind:
    """A model with the way it is cut up."""

    name: str
    parameters: int
    pipeline: int
    tensor: int = TENSOR

    @property
    def replica_gpus(self) -> int:
        """GPUs that hold the model once."""
        return self.tensor * self.pipeline

    @property
    def profile(self) -> ModelProfile:
        """What one step costs each GPU."""
        return ModelProfile(
            name=self.name,
            bottleneck="network",
            batch_size=16,
            compute_s=6 * self.parameters * _TOKENS / self.replica_gpus / _FLOP_S,
            gradient_bytes=2.0 * self.parameters / self.replica_gpus,
            cpu_cores=1.0,  # assumption
            ps_cores=4.0,  # assumption
            input_bytes=_TOKENS * 2 * 8 / self.replica_gpus,
            sens_cpu=0.05,  # assumption
        )


LLM_KINDS = (
    Kind("llm_7b", 6_738_415_616, pipeline=1),
    Kind("llm_13b", 13_015_864_320, pipeline=2),
    Kind("llm_70b", 68_976_648_192, pipeline=8),
)
LLM = tuple(kind.profile for kind in LLM_KINDS)


def find_llm_kinds(gpus: int) -> tuple[int, ...]:
    """Places in `LLM_KINDS` of those of which so many GPUs hold whole replicas."""
    return tuple(place for place, kind in enumerate(LLM_KINDS) if gpus % kind.replica_gpus == 0)


_REQUIRED = ("name", "compute_s", "gradient_bytes")
_FROM_ZERO = {"cpu_cores": 1.0, "ps_cores": 1.0, "input_bytes": 0.0}  # with their defaults
_PLANNED = ("name", "transformer", "plan")
_KEYS = (*_REQUIRED, "gpu_type", "batch_size", *_FROM_ZERO, "sens_cpu", "speeds", "aliases", *_PLANNED[1:], "step_time")
LARGEST_BATCH = 10**9


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """Models in their order; jobs hold places in it."""

    models: tuple[ModelProfile, ...] = CATALOGUE

    @property
    def names(self) -> tuple[str, ...]:
        """Without aliases."""
        return tuple(model.name for model in self.models)

    @functools.cached_property
    def places(self) -> Mapping[str, int]:
        """Place of every name and alias, lower case."""
        return {name.lower(): i for i, model in enumerate(self.models) for name in (model.name, *model.aliases)}

    def index(self, name: str) -> int:
        """Place of a model; takes aliases, ignores case. UserError if there is no such model."""
        if name not in self:
            raise UserError(f"model: unknown model {shorten(name)!r}; known models are {', '.join(self.names)}")
        return self.places[name.strip().lower()]

    def __contains__(self, name: str) -> bool:
        """Whether there is a model of that name or alias."""
        return name.strip().lower() in self.places


MEASURED = Catalogue()  # what mixes draw from, unless they name others
BUILT_IN = Catalogue((*CATALOGUE, *LLM))


PUBLISHED = "llm"  # in place of a file
_TRACES = frozenset((".csv", ".tsv", ".parquet"))  # their rows may have plans; a file of models is YAML


def get_catalogue(path: str | Path | Catalogue | None = None) -> Catalogue:
    """The project's models and those of a file. UserError for whatever is wrong with it, with what would be right.

    A catalogue is returned as it is; `llm` adds the models of `workload.llm`, a trace the plans of its rows.
    """
    if path is None or isinstance(path, Catalogue):
        return path or BUILT_IN
    if path == PUBLISHED:
        from jaxsched.workload.llm import llm_models  # a fifth of a second, which other catalogues do not need

        return Catalogue((*BUILT_IN.models, *llm_models()))
    if not _TRACES.isdisjoint(Path(path).suffixes):
        from jaxsched.workload.llm import profile_named
        from jaxsched.workload.readers.native import read_plans

        return Catalogue((*BUILT_IN.models, *map(profile_named, read_plans(path))))
    entries = check_mapping(read_yaml(path, __name__), str(path), ("models",)).get("models")
    if not isinstance(entries, list) or not entries:
        raise bad_field(str(path), "models", entries, "a list of models, each with a name")
    models = {model.name.lower(): model for model in BUILT_IN.models}
    own: set[str] = set()
    for place, entry in enumerate(entries):
        where = f"{path}: models[{place}]"
        model = _model(check_mapping(entry, where, _KEYS), where)
        if model.name.lower() in own:
            raise UserError(f"{where}: the name {model.name!r} stands there twice, every model needs its own")
        own.add(model.name.lower())
        models[model.name.lower()] = model
    _check_aliases(tuple(models.values()), str(path))
    return Catalogue(tuple(models.values()))


def _model(entry: Mapping[str, Any], where: str) -> ModelProfile:
    planned = any(key in entry for key in ("transformer", "plan", "step_time"))
    for key in _PLANNED if planned else _REQUIRED:
        if key not in entry:
            raise UserError(f"{where}: has no {key}; it must have {', '.join(_PLANNED if planned else _REQUIRED)}")
    name, gpu_type = _name(entry["name"], where, "name"), entry.get("gpu_type")
    speeds = entry.get("speeds", {})
    if not isinstance(speeds, Mapping):
        raise bad_field(where, "speeds", speeds, "speeds by GPU type, e.g. {A100: 2.1} (V100 = 1)")
    aliases = entry.get("aliases", [])
    if not isinstance(aliases, list):
        raise bad_field(where, "aliases", aliases, "a list of names")
    further = {
        "aliases": tuple(_name(alias, where, "an alias") for alias in aliases),
        "speeds": {_name(k, where, "a GPU type"): check_positive(_number(v), where, str(k)) for k, v in speeds.items()},
        "gpu_type": "" if gpu_type is None else _name(gpu_type, where, "gpu_type"),
    }
    if planned:
        return _planned_model(entry, where, name, further)
    sens_cpu = _share(entry.get("sens_cpu", 0.0), where, "sens_cpu")
    return ModelProfile(
        name=name,
        bottleneck="",
        batch_size=check_whole(entry.get("batch_size", 1), where, "batch_size", 1, LARGEST_BATCH),
        compute_s=check_positive(_number(entry["compute_s"]), where, "compute_s", "seconds"),
        gradient_bytes=_from_zero(entry["gradient_bytes"], where, "gradient_bytes"),
        **{key: _from_zero(entry.get(key, default), where, key) for key, default in _FROM_ZERO.items()},
        sens_cpu=sens_cpu,
        **further,
    )


def _planned_model(entry: Mapping[str, Any], where: str, name: str, further: dict[str, Any]) -> ModelProfile:
    """The model of a transformer and its plan."""
    from jaxsched.workload import plans  # a fifth of a second, which other files of models do not need
    from jaxsched.workload.transformer import load_constants

    for key in ("compute_s", "gradient_bytes", "batch_size"):
        if key in entry:
            raise UserError(f"{where}: has {key} and a plan; leave {key} out, it follows from the plan")
    model = convert(plans.Transformer, entry["transformer"], f"{where}: transformer")
    plan, folder = convert(plans.Plan, entry["plan"], f"{where}: plan"), entry.get("step_time", SHIPPED)
    if not isinstance(folder, str):
        raise bad_field(where, "step_time", folder, "a folder of constants, as `jaxsched step-time fit` writes it")
    if folder != SHIPPED and not further["gpu_type"]:
        raise UserError(f"{where}: has step_time and no gpu_type; it must say on which type the constants are")
    if folder == SHIPPED and further["gpu_type"] not in ("", plans.GPU_TYPE):
        text = f"has gpu_type {further['gpu_type']} and no step_time, whose constants are then of {plans.GPU_TYPE}"
        raise UserError(f"{where}: {text}; fit some to measurements, or leave gpu_type out")
    try:
        made = plans.profile_of(name, model, plan, load_constants(folder))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    given = {key: _from_zero(entry[key], where, key) for key in _FROM_ZERO if key in entry}
    if "sens_cpu" in entry:
        given["sens_cpu"] = _share(entry["sens_cpu"], where, "sens_cpu")
    return dataclasses.replace(
        made, **{key: value for key, value in (further | given).items() if value or key in given}
    )


def _share(value: Any, where: str, field: str) -> float:
    number = _number(value)
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= 1:
        raise bad_field(where, field, number, "a share from 0 to 1")
    return float(number)


def _number(value: Any) -> Any:
    """YAML takes 2.6e9 for a text, so texts that are numbers are numbers."""
    try:
        return float(value) if isinstance(value, str) and "_" not in value else value
    except ValueError:
        return value


def _from_zero(value: Any, where: str, field: str) -> float:
    number = _number(value)
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= 1e15:
        raise bad_field(where, field, value, "a number from 0 to 1e15")
    return float(number)


def _name(value: Any, where: str, field: str) -> str:
    if not isinstance(value, str) or not value.strip() or "," in value:
        raise bad_field(where, field, value, "a name without commas")
    return value.strip()


def _check_aliases(models: tuple[ModelProfile, ...], where: str) -> None:
    seen: dict[str, str] = {}
    for model in models:
        for name in (model.name, *model.aliases):
            if seen.setdefault(name.lower(), model.name) != model.name:
                raise UserError(f"{where}: {name!r} is a name of both {seen[name.lower()]!r} and {model.name!r}")


@dataclasses.dataclass(frozen=True)
class Mix:
    """Weights over models; a model that is not named has weight 0. UserError on an unknown model or a bad weight."""

    name: str
    weights: Mapping[str, float]
    catalogue: Catalogue = MEASURED

    def __post_init__(self) -> None:
        values = np.array(list(self.weights.values()), np.float64)
        for model in self.weights:
            self.catalogue.index(model)
        if not len(values) or not np.isfinite(values).all() or (values < 0).any() or values.sum() <= 0:
            raise UserError(
                f"mix {self.name!r}: weights must be finite, not negative and not all 0: {dict(self.weights)}"
            )

    @property
    def probabilities(self) -> Float64[np.ndarray, "models"]:
        """Shares in the order of the catalogue, sums to 1."""
        weights = np.zeros(len(self.catalogue.models))
        for model, weight in self.weights.items():
            weights[self.catalogue.index(model)] += weight
        return weights / weights.sum()


_HEAVY = 0.7  # assumption: the share of jobs with the bottleneck that gives the mix its name


def _tilted(name: str, models: tuple[str, ...]) -> Mix:
    """`models` share 70% of the jobs evenly, all others share the rest."""
    others = len(MODEL_NAMES) - len(models)
    return Mix(name, {m: _HEAVY / len(models) if m in models else (1 - _HEAVY) / others for m in MODEL_NAMES})


MIXES: dict[str, Mix] = {
    mix.name: mix
    for mix in (
        Mix("default", dict.fromkeys(MODEL_NAMES, 1.0)),
        _tilted("network-heavy", ("vgg16", "vgg19", "bert", "lstm_lm", "vit_l", "llama_1b")),
        _tilted("cpu-heavy", ("textcnn", "a2c", "dqn", "resnet18", "shufflenet_v2", "ncf")),
        # the eight models of the Muri traces, which have them in nearly equal shares
        Mix("muri", dict.fromkeys(("vgg16", "vgg19", "resnet18", "shufflenet_v2", "bert", "gpt2", "a2c", "dqn"), 1.0)),
    )
}


def get_mix(mix: str | Mix | Mapping[str, float], catalogue: Catalogue = MEASURED) -> Mix:
    """A mix by name, of models with commas between in equal shares, from weights, or as it is.

    UserError names the unknown mix or model and the known ones.
    """
    if isinstance(mix, Mix):
        return mix
    if not isinstance(mix, str):
        return Mix("custom", dict(mix), catalogue)
    if mix in MIXES:
        return dataclasses.replace(MIXES[mix], catalogue=catalogue)
    if "," not in mix and mix not in catalogue:
        raise UserError(
            f"mix: unknown mix {shorten(mix)!r}; known mixes are {', '.join(MIXES)}, or models with commas between"
        )
    return Mix(mix, dict.fromkeys(mix.split(","), 1.0), catalogue)
