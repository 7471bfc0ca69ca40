"""Transformers cut up by a plan, as models of the catalogue: what a step computes, sends and holds.

A plan has `tensor * data * pipeline` GPUs. Tensor groups share every layer, stages of the pipeline have `layers /
pipeline` layers each, replicas have other data; `expert` replicas side by side share the experts of a layer between
them. What a step computes is the formula of `workload.transformer`, in which all GPUs are in one server: tensor groups
at the speed of NVLink, no gradients. What ranks send each other is in addition (`patterns_of`), and takes as long as
the wires of a placement need.

A GPU holds 18 bytes per parameter (2 for the weight, 4 for its gradient, 12 for Adam's state in 32 bits: Rajbhandari et
al., "ZeRO", 2020, section 3.1, with gradients in 32 bits), what goes into each layer of each micro-batch in flight (`2
sequence micro_batch hidden` bytes), and the activations of the one layer at work (Korthikanti et al., "Reducing
activation recomputation", 2022, equation 2 without attention scores: `sequence micro_batch hidden (10 + 24 / tensor)`).
With `share_optimizer` replicas divide the 12 bytes between them, as ZeRO's first stage and Megatron-LM's distributed
optimizer do.

That is the least: activations are then computed a second time, which `compute_s` does not count. The first stage has
`pipeline` micro-batches in flight. All plans that vTrain measured on GPUs of 80 GB fit so, and most of the large ones
do not where all activations are kept.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from jaxsched.errors import UserError
from jaxsched.io.files import shorten
from jaxsched.io.schema import Positive, Size
from jaxsched.workload.jobs import WHOLE, JobList
from jaxsched.workload.models import ModelProfile
from jaxsched.workload.patterns import Patterns
from jaxsched.workload.transformer import MOST, VOCABULARY, Card, iteration_parts, make_plans

BYTES_PER_PARAMETER = 18
OPTIMIZER_BYTES = 12  # of them
GRADIENT_BYTES = 4  # of a parameter
ACTIVATION_BYTES = 2  # of a number between GPUs
ALL_REDUCES = 4  # of tensor groups, a layer and micro-batch: two forward, two backward; exchanges of experts likewise
SUMMED_BY = ("ring", "hierarchical", "tree")  # gradients
GPU_TYPE = "A100"  # that the shipped constants are of


class Transformer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model: layers of attention and of a feed-forward part, which may be one of several experts."""

    hidden: Size
    layers: Size
    heads: Size
    sequence: Size  # tokens
    kv_heads: Size | None = None  # of keys and values, where groups of heads share them (grouped queries); None: heads
    mlp: Size | None = None  # width of the feed-forward part, of an expert; gated ones count 1.5 times; None: 4 hidden
    experts: Size = 1  # of every layer
    top_k: Size = 1  # experts that a token goes through

    @property
    def expert_parameters(self) -> int:
        """Of the feed-forward part of a layer, or of one expert."""
        return 2 * self.hidden * (self.mlp or 4 * self.hidden)

    @property
    def attention_parameters(self) -> int:
        """Of a layer: queries and output, keys and values."""
        return 2 * self.hidden**2 + 2 * self.hidden**2 * (self.kv_heads or self.heads) // self.heads

    @property
    def parameters(self) -> int:
        """Of the whole model; embeddings of `VOCABULARY` tokens, which the output layer shares."""
        layer = self.attention_parameters + self.experts * self.expert_parameters
        return self.layers * layer + VOCABULARY * self.hidden


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a transformer is cut up."""

    global_batch: Size  # sequences a step
    tensor: Size = 1
    data: Size = 1
    pipeline: Size = 1
    expert: Size = 1  # replicas that share the experts of a layer
    micro_batch: Size = 1
    gpu_memory_gb: Positive = 80.0  # of the GPUs that it is for
    share_optimizer: bool = False  # replicas divide Adam's state between them
    all_reduce: str = "ring"  # of gradients; one of `SUMMED_BY`

    @property
    def gpus(self) -> int:
        """GPUs of a job."""
        return self.tensor * self.data * self.pipeline

    @property
    def micro_batches(self) -> int:
        """That a replica takes a step."""
        return self.global_batch // (self.micro_batch * self.data)


def gpu_parameters(model: Transformer, plan: Plan) -> tuple[float, float]:
    """Parameters of a GPU of the first stage: those that all replicas have, and those of experts that some have."""
    layers, mlp = model.layers / plan.pipeline, model.experts * model.expert_parameters / plan.expert
    same = layers * model.attention_parameters + VOCABULARY * model.hidden
    if plan.expert == 1:
        return (same + layers * mlp) / plan.tensor, 0.0
    return same / plan.tensor, layers * mlp / plan.tensor


def memory_bytes(model: Transformer, plan: Plan) -> float:
    """The least that a GPU of the first stage holds (see the module's docstring)."""
    numbers = plan.micro_batch * model.sequence * model.hidden
    # The feed-forward part leaves 16 of the 24 bytes that tensor groups divide; `top_k` experts leave each theirs.
    wide = model.top_k * model.expert_parameters / (8 * model.hidden**2)
    at_work = numbers * (10 + (8 + 16 * wide) / plan.tensor)
    kept = ACTIVATION_BYTES * numbers * model.layers / plan.pipeline * min(plan.pipeline, plan.micro_batches)
    copies = (plan.data, plan.data // plan.expert) if plan.share_optimizer else (1, 1)
    held = sum(
        parameters * (BYTES_PER_PARAMETER - OPTIMIZER_BYTES + OPTIMIZER_BYTES / count)
        for parameters, count in zip(gpu_parameters(model, plan), copies)
    )
    return held + kept + at_work


def check_plan(model: Transformer, plan: Plan) -> None:
    """UserError unless the degrees go into what they divide, and a GPU can hold its part."""
    make_plans(**_formula(model, plan))
    if plan.all_reduce not in SUMMED_BY:
        raise UserError(f"all_reduce {shorten(plan.all_reduce)!r}: should be one of {', '.join(SUMMED_BY)}")
    if plan.gpus > MOST:
        raise UserError(f"plan: {plan.gpus:,} GPUs; it should have at most {MOST:,}")
    if model.heads % (model.kv_heads or model.heads):
        raise UserError(f"kv_heads {model.kv_heads}: should divide heads, {model.heads}")
    if model.top_k > model.experts:
        raise UserError(f"top_k {model.top_k}: should be at most experts, {model.experts}")
    for name, whole in (("experts", model.experts), ("data", plan.data)):
        if whole % plan.expert:
            raise UserError(f"expert {plan.expert}: should divide {name}, {whole}")
    held = memory_bytes(model, plan) / 1e9
    if held > plan.gpu_memory_gb:
        raise UserError(f"plan: a GPU holds {held:.1f} GB; it should be at most gpu_memory_gb, {plan.gpu_memory_gb:g}")


def patterns_of(model: Transformer, plan: Plan) -> Patterns:
    """Who sends how many bytes a step: tensor fastest, then data, then pipeline, as Megatron-LM numbers ranks."""
    t, d, p, e = plan.tensor, plan.data, plan.pipeline, plan.expert
    ring = lambda ranks: 2 * (ranks - 1) / ranks
    activations = ACTIVATION_BYTES * plan.micro_batches * plan.micro_batch * model.sequence * model.hidden
    layers = model.layers / p
    same, own = (GRADIENT_BYTES * parameters for parameters in gpu_parameters(model, plan))
    rings = plan.all_reduce == "ring"
    return Patterns(
        gpus=plan.gpus,
        stride=(1, t, t * e, t * d, t),
        size=(t, d, d // e, p, e),
        nbytes=(
            ring(t) * ALL_REDUCES * layers * activations,
            ring(d) * same if rings else 0.0,
            ring(d // e) * own if rings else 0.0,
            activations / t if p > 1 else 0.0,
            ALL_REDUCES * layers * activations * model.top_k / (e * t) if e > 1 else 0.0,
        ),
        summed=(0.0, 0.0) if rings else (same, own),
        tree=plan.all_reduce == "tree",
    )


def compute_s(model: Transformer, plan: Plan, card: Card) -> float:
    """Seconds of a step where nothing but tensor groups takes time between GPUs, and these are joined by NVLink."""
    plans = make_plans(**_formula(model, plan))
    met = (model.attention_parameters + model.top_k * model.expert_parameters) / model.hidden**2
    parts = iteration_parts(card.constants, plans, server_gpus=MOST, met=met)
    return float(np.sum([part[0] for name, part in parts.items() if name != "gradients"]))


def profile_of(name: str, model: Transformer, plan: Plan, card: Card, gpu_type: str = GPU_TYPE) -> ModelProfile:
    """The model of the catalogue, on GPUs of the type that `card` is of. UserError if the plan does not fit it."""
    try:
        check_plan(model, plan)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    return ModelProfile(
        name=name,
        bottleneck="network",
        batch_size=max(plan.global_batch // plan.gpus, 1),
        compute_s=compute_s(model, plan, card),
        gradient_bytes=GRADIENT_BYTES * math.fsum(gpu_parameters(model, plan)),
        cpu_cores=1.0,  # assumption
        ps_cores=1.0,
        input_bytes=plan.global_batch / plan.gpus * model.sequence * 2 * 8,  # token ids and labels, int64
        sens_cpu=0.05,  # assumption
        gpu_type=gpu_type,
        patterns=patterns_of(model, plan),
    )


def check_jobs(models: Sequence[ModelProfile], jobs: JobList) -> None:
    """UserError unless all jobs of models with a plan have as many GPUs as it says, whole ones and no PS."""
    gpus = np.array([model.patterns.gpus if model.patterns else 0 for model in models])[jobs.model]
    wrong = (gpus > 0) & ((gpus != jobs.num_gpus) | (jobs.ps > 0) | (jobs.milli < WHOLE))
    if wrong.any():
        job = int(wrong.argmax())
        name = models[jobs.model[job]].name
        raise UserError(
            f"job {str(jobs.job_id[job])!r}: the plan of its model {name!r} has {gpus[job]} GPUs and no "
            f"parameter servers; the job has {jobs.num_gpus[job] * jobs.milli[job] / WHOLE:g} GPUs and "
            f"{jobs.ps[job]} parameter servers"
        )


def _formula(model: Transformer, plan: Plan) -> dict[str, int]:
    """As `workload.transformer` names it."""
    return {
        **{name: getattr(model, name) for name in ("hidden", "layers", "heads", "sequence")},
        **{name: getattr(plan, name) for name in ("global_batch", "micro_batch", "tensor", "data", "pipeline")},
    }
