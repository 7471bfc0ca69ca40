"""What an operator can set; every default is documented in docs/kubernetes.md."""

import dataclasses
from collections.abc import Mapping

from jaxsched.cluster.gpu_types import GPU_SPEEDS
from jaxsched.errors import UserError
from jaxsched.workload.models import model_index


@dataclasses.dataclass(frozen=True)
class PlanSettings:
    """How a snapshot is read and planned."""

    scheduler_name: str = "jaxsched"
    gpu_resource: str = "nvidia.com/gpu"
    topology: tuple[str, ...] = ()  # labels, inner to outer; empty: the first preset whose rack label some node has
    partition_label: str = ""  # node label that names a partition; empty: partitions of equal size
    domain_block: int = 0  # racks are NVLink domains, of which a gang takes so many nodes at most; 0: they are none
    schedulers: int | None = None  # partitions; None: one per 16 GPU nodes
    default_model: str = "resnet50"
    default_duration_s: float = 3600.0
    interval_s: float = 60.0  # the scale of time that policies are trained with
    settle_s: float = 2.0  # a gang of unstated size is complete when its newest pod is this old
    oversubscription: float = 2.0  # of rack uplinks
    nic_gbits_s: float = 25.0
    pcie_gbytes_s: float = 12.0
    headroom: float = 1.25  # room for nodes that join, before array sizes change and the policy is compiled anew
    running_slots: int = 64  # running gangs of a partition that the policy sees; further ones only take their GPUs
    queue_slots: int = 64  # pending gangs of a partition that the policy sees at once
    tenants: int = 16  # namespaces told apart by the order `las`
    largest_worker: int = 8  # most GPUs of one pod; nodes with more raise it
    max_decisions: int = 256  # decision rounds of one plan
    preemption: bool = False  # gangs of lower priority are evicted for higher ones
    gpu_speeds: Mapping[str, float] = dataclasses.field(default_factory=dict)  # products or types, V100 = 1

    @property
    def all_gpu_speeds(self) -> Mapping[str, float]:
        """The known GPU types and those of one's own."""
        return {**GPU_SPEEDS, **self.gpu_speeds}

    def __post_init__(self) -> None:
        for name in ("default_duration_s", "interval_s", "oversubscription", "nic_gbits_s", "pcie_gbytes_s"):
            value = getattr(self, name)
            if not 1e-3 <= value <= 1e9:
                raise UserError(f"{name}: {value} should be a number from 1e-3 to 1e9")
        for name in ("running_slots", "queue_slots", "tenants", "largest_worker", "max_decisions"):
            if not 1 <= getattr(self, name) <= 4096:
                raise UserError(f"{name}: {getattr(self, name)} should be a whole number from 1 to 4096")
        if not 1.0 <= self.headroom <= 10.0:
            raise UserError(f"headroom: {self.headroom} should be from 1 to 10")
        if not 0 <= self.domain_block <= 4096:
            raise UserError(f"domain_block: {self.domain_block} should be from 0 to 4096")
        if self.domain_block and (self.partition_label or self.schedulers not in (None, 1)):
            raise UserError(f"domain_block: {self.domain_block} should go with one scheduler, whose gangs span domains")
        if self.schedulers is not None and not 1 <= self.schedulers <= 4096:
            raise UserError(f"schedulers: {self.schedulers} should be from 1 to 4096")
        for name in ("scheduler_name", "gpu_resource"):
            if not getattr(self, name):
                raise UserError(f"{name}: must not be empty")
        try:
            model_index(self.default_model)
        except UserError as error:  # which begins with `model: `
            raise UserError(f"default_{error}") from None
