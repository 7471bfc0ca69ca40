"""The model catalogue: what one training step of a job costs, per model.

The catalogue is chosen for different bottlenecks (network, CPU, GPU). Every figure carries its source:

- *Muri*: per-stage step times measured on V100s at 1 to 32 GPUs, from the columns of the public Muri traces
  (Rivendile/Muri 4e69a78c, Apache-2.0). `resource_time_0` is loading and preprocessing (for RL: playing), `_1` the GPU
  stage, `_2` synchronisation, milliseconds. We read the 8-GPU rows: 1-GPU rows overlap the stages differently.
- *Gavel*: steps/s on one V100 (stanford-futuredata/gavel c4fa4009, MIT); *Pollux*: step times on one T4
  (pkusys/ElasticFlow 04a0109a from petuum/adaptdl, Apache-2.0), divided by 15.7 / 8.1, the ratio of the peak FP32
  rates of V100 and T4 in NVIDIA's data sheets (an assumption: that these models scale with it).
- Speeds on other GPU types: Gavel's steps/s on one P100 and one K80 over those on one V100, where it has the model.
- Parameter counts: torchvision's documentation (`num_params`), Hugging Face checkpoints, or counted from layer shapes.
- *assumption*: ours, plausible and unmeasured. `ps_cores` is one throughout (1, 2 or 4 by gradient size).

Derived CPU figures of the ImageNet models: Muri's loader takes 5.1 to 6.1 ms per image whatever the model, with its
default of 2 loader processes per GPU, hence `IMAGE_CORE_S` = 0.011 core-seconds per image (about 90 images/s per core;
assumption: the default was used). A GPU has `CORES_PER_GPU` = 6 cores at most (assumption: 48 cores for 8 GPUs), so a
model that would want more is bound by them: `compute_s = images * 0.011 / 6`.

`sens_cpu`: 1 means that CPU oversubscription stretches the whole compute phase. About 0.9 or more where measured
(Muri's stage 0 over the step: a2c 0.99, dqn 0.91, resnet18 0.91, shufflenet_v2 0.88), an assumption elsewhere.
`sens_pcie`: the share of the compute phase in which inputs are copied to the GPU, `input_bytes / (6 GB/s * compute_s)`
with pageable PCIe 3.0 copies that are not overlapped (assumption), at least 0.01.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jax import Array
from jaxtyping import Float32

from jaxsched.errors import UserError
from jaxsched.io.files import shorten
from jaxsched.pytree import Pytree, on_device
from jaxsched.workload.patterns import Patterns, PatternTable, make_table

IMAGE_CORE_S = 0.011
CORES_PER_GPU = 6.0
_COPY_BYTES_S = 6e9
_IMAGE_BYTES = 3 * 224 * 224 * 4  # one float32 ImageNet crop
_V100_OVER_T4 = 15.7 / 8.1
_SAME_CHIP = {"V100M16": "V100", "V100M32": "V100"}  # openb tells V100s by their memory


class Profiles(Pytree):
    """Per-step costs of each model of the catalogue."""

    compute_s: Float32[Array, "models"]  # one step on one GPU of the cluster's reference type, seconds
    gradient_bytes: Float32[Array, "models"]  # bytes of gradients (and of parameters) exchanged per step
    cpu_cores: Float32[Array, "models"]  # CPU cores that keep one GPU fed
    ps_cores: Float32[Array, "models"]  # CPU cores of one parameter server
    input_bytes: Float32[Array, "models"]  # host-to-GPU bytes per GPU and step
    sens_cpu: Float32[Array, "models"]  # share of the compute phase that stretches with CPU oversubscription, 0..1
    sens_pcie: Float32[Array, "models"]  # share of the compute phase that stretches with PCIe contention, 0..1
    # Measured speed on each GPU type, V100 = 1, 0 = not measured; the last column is 0, for types that have none.
    speed: Float32[Array, "models types"] | None = None
    plans: PatternTable = dataclasses.field(default_factory=make_table)


@dataclasses.dataclass(frozen=True)
class ModelProfile:
    """One row of the catalogue; the seven numbers have the units of `Profiles`.

    speeds: measured on a GPU type over one V100; what is not in there has the speed of section 4 of docs/semantics.md.
    gpu_type: the type that `compute_s` is on; empty: the cluster's reference type, whatever it is.
    patterns: of a model with a plan (`workload.plans`): who sends what; the gang has as many GPUs as they say.
    """

    name: str
    bottleneck: str  # 'network', 'cpu' or 'gpu'
    batch_size: int  # samples per GPU and step
    compute_s: float
    gradient_bytes: float
    cpu_cores: float
    ps_cores: float
    input_bytes: float
    sens_cpu: float
    aliases: tuple[str, ...] = ()
    speeds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    gpu_type: str = ""
    patterns: Patterns | None = None

    @property
    def sens_pcie(self) -> float:
        """Share of the compute phase that copies inputs, 0.01..1 (see the module's docstring)."""
        return float(np.clip(self.input_bytes / (_COPY_BYTES_S * self.compute_s), 0.01, 1.0))


def _fp32(parameters: int) -> float:
    """Bytes of float32 gradients."""
    return 4.0 * parameters


CATALOGUE: tuple[ModelProfile, ...] = (
    ModelProfile(
        name="vgg16",
        bottleneck="network",
        batch_size=16,
        compute_s=0.075,  # Muri, GPU stage
        gradient_bytes=_fp32(138_357_544),  # torchvision
        cpu_cores=16 * IMAGE_CORE_S / 0.075,  # 2.3, derived
        ps_cores=4.0,  # assumption
        input_bytes=16 * _IMAGE_BYTES,
        sens_cpu=0.5,  # Muri: stage 0 is 82 of the 157 ms of stages 0 and 1
    ),
    ModelProfile(
        name="vgg19",
        bottleneck="network",
        batch_size=16,
        compute_s=0.088,  # Muri, GPU stage
        gradient_bytes=_fp32(143_667_240),  # torchvision
        cpu_cores=16 * IMAGE_CORE_S / 0.088,  # 2.0, derived
        ps_cores=4.0,  # assumption
        input_bytes=16 * _IMAGE_BYTES,
        sens_cpu=0.5,  # Muri: stage 0 is 82 of the 170 ms of stages 0 and 1
    ),
    ModelProfile(
        name="resnet18",
        bottleneck="cpu",
        batch_size=128,
        compute_s=128 * IMAGE_CORE_S / CORES_PER_GPU,  # 0.235, derived; the GPU stage alone is 0.117 (Muri)
        gradient_bytes=_fp32(11_689_512),  # torchvision
        cpu_cores=CORES_PER_GPU,
        ps_cores=2.0,  # assumption
        input_bytes=128 * _IMAGE_BYTES,
        sens_cpu=0.91,  # Muri
        speeds={"P100": 11.675 / 17.995, "K80": 1.807 / 17.995},  # Gavel, 'ResNet-18 (batch size 128)'
    ),
    ModelProfile(
        name="resnet50",
        bottleneck="gpu",
        batch_size=64,
        compute_s=0.2275,  # Gavel, 'ResNet-50 (batch size 64)', V100
        gradient_bytes=_fp32(25_557_032),  # torchvision
        cpu_cores=64 * IMAGE_CORE_S / 0.2275,  # 3.1, derived
        ps_cores=2.0,  # assumption
        input_bytes=64 * _IMAGE_BYTES,
        sens_cpu=0.5,  # assumption
        speeds={"P100": 2.619 / 4.395, "K80": 0.619 / 4.395},  # Gavel, 'ResNet-50 (batch size 64)'
    ),
    ModelProfile(
        name="shufflenet_v2",
        bottleneck="cpu",
        batch_size=128,
        compute_s=128 * IMAGE_CORE_S / CORES_PER_GPU,  # 0.235, derived; the GPU stage alone is 0.057 (Muri)
        gradient_bytes=_fp32(2_278_604),  # torchvision, shufflenet_v2_x1_0
        cpu_cores=CORES_PER_GPU,
        ps_cores=1.0,  # assumption
        input_bytes=128 * _IMAGE_BYTES,
        sens_cpu=0.88,  # Muri, 1 GPU
        aliases=("shufflenet_v2_x1_0",),
    ),
    ModelProfile(
        name="bert",
        bottleneck="network",
        batch_size=4,
        compute_s=0.167,  # Muri, GPU stage, BERT-base masked language modelling
        gradient_bytes=_fp32(109_482_240),  # Hugging Face, bert-base-uncased
        cpu_cores=1.0,  # assumption; Muri's stage 0 takes 0.5 ms
        ps_cores=4.0,  # assumption
        input_bytes=4 * 512 * 2 * 8,  # token ids and labels, int64
        sens_cpu=0.05,  # assumption
    ),
    ModelProfile(
        name="gpt2",
        bottleneck="gpu",
        batch_size=4,
        compute_s=0.419,  # Muri, GPU stage
        gradient_bytes=_fp32(124_439_808),  # Hugging Face, gpt2
        cpu_cores=1.0,  # assumption; Muri's stage 0 takes 0.6 ms
        ps_cores=4.0,  # assumption
        input_bytes=4 * 1024 * 2 * 8,
        sens_cpu=0.05,  # assumption
    ),
    ModelProfile(
        name="textcnn",  # Kim (2014), filters of 3, 4, 5 words x 100: the text CNN ('CTC') that is known as CPU-heavy
        bottleneck="cpu",
        batch_size=256,  # assumption
        compute_s=0.05,  # assumption
        gradient_bytes=_fp32(6_360_902),  # counted: trained 20,000 x 300 embedding (assumption) and the filters
        cpu_cores=CORES_PER_GPU,  # assumption: tokenisation and embedding on the CPU
        ps_cores=1.0,  # assumption
        input_bytes=256 * 64 * 300 * 4,  # assumption: 64 words, embedded on the CPU
        sens_cpu=0.9,  # assumption
        aliases=("ctc",),
    ),
    ModelProfile(
        name="a2c",
        bottleneck="cpu",
        batch_size=64,  # environments, 5 steps each
        compute_s=0.517,  # Muri, whole step on 1 GPU: playing alternates with learning
        gradient_bytes=_fp32(1_686_693),  # counted: Nature CNN, 4 actions, and a value head
        cpu_cores=4.0,  # assumption
        ps_cores=1.0,  # assumption
        input_bytes=64 * 5 * 4 * 84 * 84 * 4,  # float32 frames, 4 stacked
        sens_cpu=0.99,  # Muri, 1 GPU
        speeds={"P100": 5.681 / 7.176, "K80": 3.439 / 7.176},  # Gavel, 'A3C': the same network and loop
    ),
    ModelProfile(
        name="dqn",
        bottleneck="cpu",
        batch_size=128,
        compute_s=0.490,  # Muri, whole step on 1 GPU
        gradient_bytes=_fp32(1_686_180),  # counted: Nature CNN, 4 actions
        cpu_cores=4.0,  # assumption
        ps_cores=1.0,  # assumption
        input_bytes=(128 * 2 + 50) * 4 * 84 * 84 * 4,  # a replay batch (state, next) and 50 played steps
        sens_cpu=0.91,  # Muri, 1 GPU
    ),
    ModelProfile(
        name="deepspeech2",
        bottleneck="gpu",
        batch_size=20,
        compute_s=0.681 / _V100_OVER_T4,  # Pollux
        gradient_bytes=_fp32(41_179_776),  # counted: 2 convolutions, 5 x 800 bidirectional GRU (assumption)
        cpu_cores=3.0,  # assumption: spectrograms
        ps_cores=2.0,  # assumption
        input_bytes=20 * 161 * 350 * 4,  # assumption: 3.5 s utterances
        sens_cpu=0.2,  # assumption
        speeds={"T4": 1 / _V100_OVER_T4},  # Pollux's own step
    ),
    ModelProfile(
        name="ncf",
        bottleneck="cpu",
        batch_size=32768,
        compute_s=0.021 / _V100_OVER_T4,  # Pollux
        gradient_bytes=_fp32(1_602_657),  # counted: NeuMF-end on MovieLens-1M, 32 factors, 3 layers
        cpu_cores=4.0,  # adaptdl's example: 4 loader processes
        ps_cores=1.0,  # assumption
        input_bytes=32768 * (8 + 8 + 4),  # user, item, label
        sens_cpu=0.6,  # assumption
        speeds={"T4": 1 / _V100_OVER_T4},  # Pollux's own step
    ),
    ModelProfile(
        name="lstm_lm",
        bottleneck="network",
        batch_size=80,
        compute_s=0.0354,  # Gavel, 'LM (batch size 80)', V100
        gradient_bytes=_fp32(13_987_678),  # counted: 2 x 200 LSTM, 33,278 words untied (Gavel's defaults)
        cpu_cores=1.0,  # assumption
        ps_cores=2.0,  # assumption
        input_bytes=80 * 35 * 2 * 8,
        sens_cpu=0.1,  # assumption
        aliases=("lm",),
        speeds={"P100": 21.158 / 28.240, "K80": 6.054 / 28.240},  # Gavel, 'LM (batch size 80)'
    ),
    ModelProfile(
        name="vit_l",  # ViT-L/16, mixed precision, float32 gradients
        bottleneck="network",
        batch_size=32,
        compute_s=32 * 3 * 2 * 61.55e9 / 40e12,  # GMAC by torchvision, backward = 2 forward; 40 TFLOP/s: assumption
        gradient_bytes=_fp32(304_326_632),  # torchvision, vit_l_16
        cpu_cores=1.2,  # 32 images per 0.295 s, derived
        ps_cores=4.0,  # assumption
        input_bytes=32 * _IMAGE_BYTES,
        sens_cpu=0.2,  # assumption
        aliases=("vit_l_16", "vit-l"),
    ),
    ModelProfile(
        name="llama_1b",  # Llama-3.2-1B fine-tuning, DDP, 4 x 2,048 tokens, half-precision gradients
        bottleneck="network",
        batch_size=4,
        compute_s=6 * 1_235_814_400 * 4 * 2048 / 40e12,  # 6 N tokens; 40 TFLOP/s: assumption
        gradient_bytes=2.0 * 1_235_814_400,  # counted from the published configuration; 2 bytes each
        cpu_cores=1.0,  # assumption
        ps_cores=4.0,  # assumption
        input_bytes=4 * 2048 * 2 * 8,
        sens_cpu=0.05,  # assumption
        aliases=("llama-1b", "llama-3.2-1b"),
    ),
)

MODEL_NAMES: tuple[str, ...] = tuple(model.name for model in CATALOGUE)
_INDEX = {name: i for i, model in enumerate(CATALOGUE) for name in (model.name, *model.aliases)}


def profiles(gpu_types: Sequence[str] = (), models: Sequence[ModelProfile] = CATALOGUE) -> Profiles:
    """The models as arrays in their order, with measured speeds on `gpu_types` (names, as in `Cluster.gpu_types`)."""
    fields = [field.name for field in dataclasses.fields(Profiles) if field.name not in ("speed", "plans")]
    columns = {f: on_device([getattr(m, f) for m in models], np.float32) for f in fields}
    speed = [[_measured_speed(model, name) for name in (*gpu_types, "")] for model in models]
    return Profiles(
        **columns,
        speed=on_device(speed, np.float32) if gpu_types else None,
        plans=make_table([model.patterns for model in models]),
    )


def _measured_speed(model: ModelProfile, gpu_type: str) -> float:
    """On a GPU type over one V100; 0 if it was not measured."""
    name = _SAME_CHIP.get(gpu_type, gpu_type)
    return model.speeds.get(name, 1.0 if name == "V100" and model.speeds else 0.0)


def model_index(name: str) -> int:
    """Index of a model in `MODEL_NAMES`; takes aliases, ignores case. UserError if there is no such model."""
    key = name.strip().lower()
    if key not in _INDEX:
        raise UserError(f"model: unknown model {shorten(name)!r}; known models are {', '.join(MODEL_NAMES)}")
    return _INDEX[key]
