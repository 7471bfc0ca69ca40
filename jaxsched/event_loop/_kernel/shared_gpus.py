"""GPUs that several jobs share: what fits, who gets which, how they slow each other (docs/semantics.md, 2 and 5)."""

import math

import numpy as np
from jaxtyping import Float64

from jaxsched.dynamics.resources import GPU
from jaxsched.dynamics.sharing import LARGEST
from jaxsched.event_loop._kernel.jit import compiled, inlined, special
from jaxsched.event_loop._kernel.records import Tables, World
from jaxsched.workload.jobs import WHOLE

Factors = Float64[np.ndarray, "models models"]  # of a job's model (row) and a co-runner's; without rows: all are 1


@compiled
def count_fitting(gpus: int, wide: int) -> int:
    """Workers of `wide` GPUs that fit so many; most have one, and a division takes as long as all else of a group."""
    return gpus if wide == 1 else gpus // wide


@compiled
def count_gang_gpus(w: World, j: int) -> int:
    """GPUs that a job lies on; a shared one counts whole."""
    return w.jobs[j].workers * w.jobs[j].wide


@compiled
def count_reserved_gpus(w: World, j: int) -> float:
    """GPUs that a job reserves: of a shared one its share, a 32-bit float."""
    return w.jobs[j].workers * w.jobs[j].wide * w.jobs[j].share


@inlined
def count_capacity(t: Tables, p: int, a: int, size: int) -> int:
    """Workers of that size that fit a group now; of a fraction 1 at most."""
    if size < 0:
        return 1 if t.free[p, a] > 0 or t.shared.room[p, a] >= -size else 0
    return count_fitting(t.free[p, a], size)


@compiled
def find_most_room(t: Tables, p: int) -> int:
    """The largest fraction that fits a shared GPU of a partition, in thousandths."""
    most = 0
    for a in range(t.free.shape[1]):
        most = max(most, t.shared.room[p, a])
    return most


@compiled
def choose_gpu(t: Tables, p: int, a: int, milli: int) -> int:
    """The GPU of a group that so many thousandths get: of the shared ones that with the least left, else a free one."""
    best, least, opened = -1, 2 * WHOLE, -1
    for gpu in range(t.shared.used.shape[2]):
        used = t.shared.used[p, a, gpu]
        if used == 0:
            opened = gpu if opened < 0 else opened
        elif milli <= WHOLE - used < least:
            best, least = gpu, WHOLE - used
    return best if best >= 0 else opened


@compiled
def index_gpu(w: World, t: Tables, p: int, slot: int) -> int:
    """Which of the partition's shared GPUs a footprint lies on, -1 = whole ones."""
    gpu = t.slots[p, slot].gpu
    return gpu if gpu < 0 else t.groups[p, slot, 0].group * w.shared_gpus + gpu


@compiled
def share_gpu(t: Tables, p: int, slot: int, milli: int, sign: int) -> None:
    """A fraction takes (`sign` 1) its part of the GPU of its footprint, or gives it back (-1)."""
    a, gpu, shared = t.groups[p, slot, 0].group, t.slots[p, slot].gpu, t.shared
    before = shared.used[p, a, gpu]
    shared.used[p, a, gpu] = before + sign * milli
    opened = (1 if before == 0 else 0) - (1 if shared.used[p, a, gpu] == 0 else 0)
    t.free[p, a] -= opened
    t.partitions[p].free_gpus -= opened
    if sign > 0:
        lie_on_gpu(t, p, slot)
    else:
        leave_gpu(t, p, slot)
    room = 0
    for other in range(shared.used.shape[2]):
        if shared.used[p, a, other] > 0:
            room = max(room, WHOLE - shared.used[p, a, other])
    shared.room[p, a] = room


@compiled
def lie_on_gpu(t: Tables, p: int, slot: int) -> None:
    """A footprint joins those on its GPU."""
    a, on = t.groups[p, slot, 0].group, t.slots[p, slot]
    on.next = t.shared.first[p, a, on.gpu]
    t.shared.first[p, a, on.gpu] = slot


@compiled
def leave_gpu(t: Tables, p: int, slot: int) -> None:
    """A footprint leaves those on its GPU."""
    a, on = t.groups[p, slot, 0].group, t.slots[p, slot]
    at = t.shared.first[p, a, on.gpu]
    if at == slot:
        t.shared.first[p, a, on.gpu] = on.next
        return
    while t.slots[p, at].next != slot:
        at = t.slots[p, at].next
    t.slots[p, at].next = on.next


@compiled
def count_beside(t: Tables, p: int, slot: int) -> int:
    """How many others lie on the GPU of a footprint, which does so."""
    others, at = -1, t.shared.first[p, t.groups[p, slot, 0].group, t.slots[p, slot].gpu]
    while at >= 0:
        others, at = others + 1, t.slots[p, at].next
    return others


@compiled
def average_factors(w: World, t: Tables, p: int, slot: int, factors: Factors) -> float:
    """The mean of the factors of a job beside each of those on its GPU, of which there must be some."""
    total, others, model = 0.0, 0, w.jobs[t.slots[p, slot].job].model
    at = t.shared.first[p, t.groups[p, slot, 0].group, t.slots[p, slot].gpu]
    while at >= 0:
        if at != slot:
            total, others = total + float(factors[model, w.jobs[t.slots[p, at].job].model]), others + 1
        at = t.slots[p, at].next
    return total / others


@compiled
def compute_gpu_stretch(w: World, t: Tables, p: int, slot: int, factors: Factors) -> float:
    """How much longer a job computes for those on its GPU, of which its footprint is one; 1 alone."""
    others = count_beside(t, p, slot)
    if others == 0:
        return 1.0
    kind = w.sharing.kind[p, t.groups[p, slot, 0].group]
    stretch = 1.0 + w.law[GPU].kappa * others if kind < 0 else _apply_law(w, t, p, slot, kind)
    return stretch if len(factors) == 0 else 1.0 + average_factors(w, t, p, slot, factors) * (stretch - 1.0)


@compiled
def _apply_law(w: World, t: Tables, p: int, slot: int, kind: int) -> float:
    """The stretch of the fitted law, see `dynamics.sharing`."""
    law, model = w.sharing, w.jobs[t.slots[p, slot].job].model
    throughput: float = 0.0
    members, units = law.gain.shape
    for member in range(members):
        _add_pressures(w, t, p, slot, member, kind)
        rise = 0.0
        for h in range(units):
            pushed, at = 0.0, law.stands[member, kind, model, h]
            for c in range(len(t.shared.sums)):
                pushed += law.reach[member, kind, model, c] * t.shared.sums[c] * law.mix[member, c, h]
            pushed = min(pushed, LARGEST)
            if h < units // 2:
                grown = _compute_softplus(at + pushed) - _compute_softplus(at)
            else:
                grown = math.tanh(at + pushed) - math.tanh(at)
            rise += max(grown * law.gain[member, h], 0.0)
        throughput += 1.0 / (1.0 + rise)
    return members / throughput


@compiled
def _add_pressures(w: World, t: Tables, p: int, slot: int, member: int, kind: int) -> None:
    """Fill `SharedGPUs.sums` with the pressures of the others on the GPU of a footprint, added up."""
    sums = t.shared.sums
    sums[:] = 0.0
    at = t.shared.first[p, t.groups[p, slot, 0].group, t.slots[p, slot].gpu]
    while at >= 0:
        if at != slot:
            model = w.jobs[t.slots[p, at].job].model
            for c in range(len(sums)):
                sums[c] += w.sharing.pressure[member, kind, model, c]
        at = t.slots[p, at].next
    for c in range(len(sums)):
        sums[c] = min(sums[c], LARGEST)


@compiled
def _compute_softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@special
@compiled
def observe(w: World, t: Tables, seconds: float) -> None:
    """Note what runs beside each other for so long; where the policy goes by it."""
    for p in range(len(t.partitions)):
        for i in range(t.partitions[p].running):
            slot = t.running[p, i].slot
            if t.slots[p, slot].gpu < 0:
                continue
            others = count_beside(t, p, slot)
            if others > 0:
                _note_pairs(w, t, p, slot, seconds / others)


@compiled
def _note_pairs(w: World, t: Tables, p: int, slot: int, each_s: float) -> None:
    """So many seconds for the pair of a job's model and that of each of those on its GPU."""
    model, factor = w.jobs[t.slots[p, slot].job].model, average_factors(w, t, p, slot, w.sharing.factors)
    at = t.shared.first[p, t.groups[p, slot, 0].group, t.slots[p, slot].gpu]
    while at >= 0:
        if at != slot:
            other = w.jobs[t.slots[p, at].job].model
            t.shared.seen_s[model, other] += each_s
            t.shared.seen[model, other] += each_s * factor
            t.shared.believed[model, other] = t.shared.seen[model, other] / t.shared.seen_s[model, other]
        at = t.slots[p, at].next


@compiled
def copy_shared(t: Tables, p: int) -> None:
    """Fill `SharedGPUs.without` with the shared GPUs of a partition."""
    for a in range(t.shared.without.shape[0]):
        for gpu in range(t.shared.without.shape[1]):
            t.shared.without[a, gpu] = t.shared.used[p, a, gpu]


@compiled
def share_without(t: Tables, p: int, slot: int, milli: int, sign: int) -> None:
    """Give back (`sign` 1) what a fraction holds in `without` and `SharedGPUs.without`, or take it (-1)."""
    a, gpu, without = t.groups[p, slot, 0].group, t.slots[p, slot].gpu, t.shared.without
    before = without[a, gpu]
    without[a, gpu] = before - sign * milli
    t.scratch.without[a] += (1 if without[a, gpu] == 0 else 0) - (1 if before == 0 else 0)


@compiled
def count_capacity_without(t: Tables, a: int, size: int) -> int:
    """Workers of that size that fit a group in `without`; of a fraction 1 at most."""
    if size > 0:
        return count_fitting(t.scratch.without[a], size)
    if t.scratch.without[a] > 0:
        return 1
    for gpu in range(t.shared.without.shape[1]):
        if 0 < t.shared.without[a, gpu] <= WHOLE + size:
            return 1
    return 0
