"""How fast placed jobs run, in the oracle: traffic, demand, contention (sections 3 to 5 of `docs/semantics.md`)."""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from tests.oracle import plans
from tests.oracle.cluster import Hardware, Job, Resource

CHANNELS = ("cpu", "pcie", "qpi", "nic", "link", "gpu")

# ------------------------------------------------------------------------------------------------- section 3: traffic


def traffic(hw: Hardware, p: int, job: Job, w: dict, u: dict) -> dict[Resource, float]:
    """Bytes per step on each resource that the placement uses. `w`, `u`: workers and PS, group -> count."""
    out: dict[Resource, float] = {}

    def add(resource: Resource, nbytes: float) -> None:
        if nbytes > 0:
            out[resource] = out.get(resource, 0.0) + nbytes

    groups = sorted(set(w) | set(u))
    servers = sorted({a // hw.K for a in groups})
    racks = sorted({int(hw.rack[p, s]) for s in servers})
    w_s = {s: sum(w.get(a, 0) for a in hw.groups_of(s)) for s in servers}
    u_s = {s: sum(u.get(a, 0) for a in hw.groups_of(s)) for s in servers}
    w_r = {r: sum(w_s[s] for s in servers if hw.rack[p, s] == r) for r in racks}
    u_r = {r: sum(u_s[s] for s in servers if hw.rack[p, s] == r) for r in racks}

    def add_route(r: int, q: int, nbytes: float) -> None:
        for e in np.flatnonzero(hw.route[p, r, q]):
            add(("link", int(hw.link_id[p, e])), nbytes * hw.route[p, r, q, e])

    if job.traffic is not None:
        group_of, server_of, domain_of, rack_of = plans.placed(job.traffic, hw, p, w, job.g)
        for key, nbytes in plans.inside(job.traffic, group_of, server_of, domain_of).items():
            add((key[0], p, key[1]), nbytes)
        for i, k, nbytes in job.traffic.messages(domain_of):
            if rack_of[i] != rack_of[k]:
                add_route(rack_of[i], rack_of[k], nbytes)
    elif job.U == 0:
        b = job.ring_bytes
        for a in groups:
            if w.get(a, 0) > 0 and job.W * job.g > 1:
                add(("pcie", p, a), b)
        holders = [s for s in servers if w_s[s] > 0]
        for s in holders:
            together = [o for o in holders if hw.domain(p, o) == hw.domain(p, s)]
            if sum(w.get(a, 0) > 0 for a in hw.groups_of(s)) >= 2 or len(together) >= 2:
                add(("qpi", p, s), b)
            if len(together) < len(holders):
                add(("nic", p, s), b / len(together))
        ring = [r for r in racks if w_r[r] > 0]
        if len(ring) >= 2:
            for i, r in enumerate(ring):
                add_route(r, ring[(i + 1) % len(ring)], b)
    else:
        per = job.B / job.U
        for a in groups:
            add(("pcie", p, a), w.get(a, 0) * job.B)
        for s in servers:
            inside = sum(w.get(a, 0) * u.get(a, 0) for a in hw.groups_of(s))
            near, far = 0, 0
            for o in servers:
                pairs = w_s[s] * u_s[o] + u_s[s] * w_s[o] if o != s else 0
                near += pairs if hw.domain(p, o) == hw.domain(p, s) else 0
                far += pairs if hw.domain(p, o) != hw.domain(p, s) else 0
            add(("qpi", p, s), (w_s[s] * u_s[s] - inside + near) * per)
            add(("nic", p, s), far * per)
        for r in racks:
            for q in racks:
                if r != q:
                    add_route(r, q, (w_r[r] * u_r[q] + u_r[r] * w_r[q]) * per)
    return out


# ----------------------------------------------------------------------------------------- section 4: solo, utilisation


@dataclasses.dataclass
class Demand:
    """What a placed job asks of the hardware, whoever else runs."""

    own_cpu: dict[int, float]  # group -> own CPU use
    compute: dict[int, float]  # group with workers -> compute_a
    base: dict[Resource, float]  # seconds per step on each communication resource
    use: dict[Resource, float]  # utilisation of every resource
    solo: float


def demand(hw: Hardware, p: int, job: Job, w: dict, u: dict) -> Demand:
    """Section 4 for one placement."""
    nbytes = traffic(hw, p, job, w, u)
    base = {m: x / hw.capacity(m) for m, x in nbytes.items()}
    own_cpu = {
        a: (w.get(a, 0) * job.g * job.cpu_cores + u.get(a, 0) * job.ps_cores) / hw.cores[p, a]
        for a in sorted(set(w) | set(u))
    }
    compute = {a: job.compute_s / hw.speed_of(p, a, job) for a in sorted(w) if w[a] > 0}
    solo = max(x * (1 + job.sens_cpu * (max(1.0, own_cpu[a]) - 1)) for a, x in compute.items())
    solo += max(base.values(), default=0.0)
    use: dict[Resource, float] = {}
    for a, x in own_cpu.items():
        use["cpu", p, a] = x
        total = nbytes.get(("pcie", p, a), 0.0) + w.get(a, 0) * job.g * job.input_bytes
        use["pcie", p, a] = total / (hw.pcie[p, a] * solo)
    for m, x in base.items():
        if m[0] != "pcie":
            use[m] = x / solo
    return Demand(own_cpu=own_cpu, compute=compute, base=base, use=use, solo=solo)


# ----------------------------------------------------------------------------------------------- section 5: contention

Stretch = Callable[[str, int, float, float], float]
# (GPU type, model, models of the others on the same GPU) -> stretch, or None where the GPU type is not covered
Law = Callable[[int, int, list[int]], float | None]


def make_interference(interference, strengths=(1, 1, 1, 1, 1, 1)) -> Stretch:
    """The map (channel, model, own, others) -> stretch; any function of that signature may be given instead."""
    if not isinstance(interference, str):
        return interference
    if interference == "none":
        return lambda channel, model, own, others: 1.0
    if interference != "analytic":
        raise ValueError(interference)
    kappa = dict(zip(CHANNELS, (float(x) for x in strengths)))  # without the last one there can be no fractions

    def analytic(channel: str, model: int, own: float, others: float) -> float:
        if channel == "cpu":
            return 1 + kappa["cpu"] * (max(1.0, own + others) / max(1.0, own) - 1)
        return 1 + kappa[channel] * others

    return analytic


@functools.lru_cache(maxsize=1024)  # the hardware does not change, and a job is itself only
def ideal_comm(hw: Hardware, job: Job) -> float:
    """Communication in a step on the ideal placement."""
    if job.traffic is not None:
        return plans.ideal_comm(job.traffic, hw)
    gpus = job.W * job.g
    m_g, m_s = math.ceil(gpus / hw.gmax), math.ceil(gpus / hw.smax)
    m_d = math.ceil(m_s / hw.domain_sizes[0])
    few, many = m_s // m_d, math.ceil(m_s / m_d)
    if job.U == 0:
        b = job.ring_bytes
        pcie = b / hw.pcie_max if gpus > 1 else 0.0
        qpi = b / hw.qpi_max if m_g > m_s or many > 1 else 0.0
        nic = b / few / hw.nic_max if m_d > 1 else 0.0
    else:
        k = min(m_g, hw.kmax)
        pcie = job.W * job.B / m_g / hw.pcie_max
        qpi = job.B * job.W / m_s**2 * max(1 - 1 / k, 2 * (many - 1)) / hw.qpi_max
        nic = 2 * job.B * job.W / m_s * (1 - few / m_s) / hw.nic_max
    return max(pcie, qpi, nic)


def ideal_step(hw: Hardware, job: Job) -> float:
    """The step time on the ideal placement."""
    return job.compute_s + ideal_comm(hw, job)


def least_slowdown(hw: Hardware, job: Job, d: Demand) -> float:
    """The slowdown of the ideal placement on GPUs as slow as the slowest of this one."""
    return (max(d.compute.values()) + ideal_comm(hw, job)) / ideal_step(hw, job)


def slowdown(
    hw: Hardware, p: int, job: Job, d: Demand, total_use: dict[Resource, float], stretch: Stretch, on_gpu: float = 1.0
) -> float:
    """The slowdown of a job; `total_use` sums over all running jobs, this one included; `on_gpu` is stretch_gpu."""

    def stretch_of(m: Resource) -> float:
        own = d.use.get(m, 0.0)
        others = max(0.0, total_use.get(m, 0.0) - own)
        return stretch(m[0], job.model, own, others)

    compute = 0.0
    for a, compute_a in d.compute.items():
        cpu = job.sens_cpu * (max(1.0, d.own_cpu[a]) * stretch_of(("cpu", p, a)) - 1)
        pcie = job.sens_pcie * (stretch_of(("pcie", p, a)) - 1)
        compute = max(compute, compute_a * (1 + cpu + pcie))
    comm = max((x * stretch_of(m) for m, x in d.base.items()), default=0.0)
    return max(least_slowdown(hw, job, d), (on_gpu * compute + comm) / ideal_step(hw, job))
