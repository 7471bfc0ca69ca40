"""Large language models trained by data x tensor x pipeline parallelism, as kinds of gangs.

A worker is one stage of the pipeline of one replica: `tensor` GPUs that exchange activations all the time, so that they
lie in one GPU group and with it inside a server. A gang has `data * pipeline` workers. What a GPU exchanges with the
other replicas per step is the gradient of its own part of the model, `1 / (tensor * pipeline)` of it; what the tensor
part and the pipeline send is taken to be hidden in the compute phase (assumption).

Parameters are counted from published configurations (Llama 2: 7B, 13B, 70B); gradients have 2 bytes. A replica takes 16
sequences of 4,096 tokens per step and a GPU computes 40 TFLOP/s, as that of `llama_1b` (both assumptions).
"""

import dataclasses

from jaxsched.workload.models import ModelProfile

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


KINDS = (
    Kind("llm_7b", 6_738_415_616, pipeline=1),
    Kind("llm_13b", 13_015_864_320, pipeline=2),
    Kind("llm_70b", 68_976_648_192, pipeline=8),
)
MODELS = tuple(kind.profile for kind in KINDS)


def kinds_of(gpus: int) -> tuple[int, ...]:
    """Places in `KINDS` of those of which so many GPUs hold whole replicas."""
    return tuple(place for place, kind in enumerate(KINDS) if gpus % kind.replica_gpus == 0)
