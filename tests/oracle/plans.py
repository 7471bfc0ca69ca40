"""What the ranks of a plan send each other, one by one (docs/semantics.md, section 3, "Plans")."""

import dataclasses
import itertools

import numpy as np


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Of a model with a plan: its degrees, and the bytes a step of each kind of message."""

    n: int
    strides: tuple[int, ...]
    sizes: tuple[int, ...]
    nbytes: tuple[float, ...]
    summed: tuple[float, ...] = ()
    tree: bool = False

    def communicators(self, kind: int) -> list[list[int]]:
        """The ranks of each communicator of a pattern, in their order."""
        stride, size = self.strides[kind], self.sizes[kind]
        firsts = [i for i in range(self.n) if i // stride % size == 0]
        return [[i + k * stride for k in range(size)] for i in firsts]

    def rings(self, domain_of: list) -> list[tuple[list[int], float, bool]]:
        """Ranks, bytes, and whether it is one of gradients."""
        out = [(ranks, self.nbytes[kind], kind > 0) for kind in (0, 1, 2) for ranks in self.communicators(kind)]
        for nbytes, domains in self.apart(domain_of):
            out += [(ranks, 2 * (len(ranks) - 1) / len(ranks) * nbytes, True) for ranks in domains]
        return out

    def apart(self, domain_of: list) -> list[tuple[float, list[list[int]]]]:
        """Of gradients that domains sum up first: bytes, and the ranks of a communicator in each domain."""
        out = []
        for kind, nbytes in enumerate(self.summed, 1):
            for ranks in self.communicators(kind) if nbytes > 0 else ():
                out.append((nbytes, [list(near) for _, near in itertools.groupby(ranks, key=lambda i: domain_of[i])]))
        return out

    def exchanges(self, domains: int) -> list[tuple[int, int, float]]:
        """(position, position, share of the bytes) between so many domains."""
        if not self.tree:
            return [(i, (i + 1) % domains, 2 * (domains - 1) / domains) for i in range(domains) if domains > 1]
        out = []
        for i in range(1, domains):
            lowest = next(2**bit for bit in itertools.count() if i >> bit & 1)
            odd = next(above for above in (i - lowest, i + lowest) if above // (2 * lowest) % 2)
            parent = odd if odd < domains else i - lowest
            for turn in (0, 1):
                ends = (i + turn) % domains, (parent + turn) % domains
                out += [(*ends, 0.5), (*ends[::-1], 0.5)]
        return out

    def messages(self, domain_of: list) -> list[tuple[int, int, float]]:
        """(rank, rank, bytes) of all that is sent, by the domain of each rank."""
        out = []
        for ranks, nbytes, _ in self.rings(domain_of):
            if len(ranks) > 1:
                out += [(a, b, nbytes) for a, b in zip(ranks, ranks[1:] + ranks[:1])]
        for ranks in self.communicators(3):
            for a, b in itertools.pairwise(ranks):
                out += [(a, b, self.nbytes[3]), (b, a, self.nbytes[3])]
        for ranks in self.communicators(4):
            out += [(a, b, self.nbytes[4]) for a, b in itertools.permutations(ranks, 2)]
        for nbytes, domains in self.apart(domain_of):
            for i, k, share in self.exchanges(len(domains)):
                pairs = list(itertools.product(domains[i], domains[k]))
                out += [(a, b, share * nbytes / len(pairs)) for a, b in pairs]
        return out


def read_traffic(profiles, model: int) -> Traffic | None:
    """The model's, of the tables of profiles; None without a plan."""
    plans = profiles.plans
    if len(plans.gpus) == 0 or int(plans.gpus[model]) == 0:
        return None
    rows = [tuple(np.asarray(leaf[model]).tolist()) for leaf in (plans.stride, plans.size, plans.nbytes)]
    summed = tuple(np.asarray(plans.summed[model]).tolist())
    return Traffic(int(plans.gpus[model]), *rows, summed=summed, tree=bool(plans.tree[model]))


def inside(traffic: Traffic, group_of: list, server_of: list, domain_of: list) -> dict[tuple, float]:
    """Bytes on ("pcie", group), ("qpi", server) and ("nic", server), by the group, server and domain of each rank.

    Groups of a server are numbers, ascending in the order of ranks. A server of a domain has one.
    """
    out: dict[tuple, float] = {}

    def add(key: tuple, nbytes: float) -> None:
        out[key] = out.get(key, 0.0) + nbytes

    crossing: dict[tuple, float] = {}  # (server, group): from groups of the server before this one to it and later ones
    for a, b, nbytes in traffic.messages(domain_of):
        if group_of[a] != group_of[b]:
            add(("pcie", group_of[a]), nbytes)
        if domain_of[a] != domain_of[b]:
            add(("nic", server_of[a]), nbytes)
        elif server_of[a] != server_of[b]:
            add(("qpi", server_of[a]), nbytes)
        else:
            for g in range(group_of[a] + 1, group_of[b] + 1):
                crossing[server_of[a], g] = crossing.get((server_of[a], g), 0.0) + nbytes
    for server in {server for server, _ in crossing}:
        add(("qpi", server), max(nbytes for (s, _), nbytes in crossing.items() if s == server))
    for ranks, nbytes, gradients in traffic.rings(domain_of):
        if gradients and len(ranks) > 1 and len({group_of[i] for i in ranks}) == 1:
            add(("pcie", group_of[ranks[0]]), nbytes)
    return out


def placed(traffic: Traffic, hw, p: int, w: dict, g: int) -> tuple[list, list, list, list]:
    """The group, server, domain and rack of each rank: in order of rack, server and group."""
    order = sorted(w, key=lambda a: (hw.rack[p, a // hw.K], a))
    group_of = [a for a in order for _ in range(w[a] * g)]
    assert len(group_of) == traffic.n
    server_of = [a // hw.K for a in group_of]
    return group_of, server_of, [hw.domain(p, s) for s in server_of], [int(hw.rack[p, s]) for s in server_of]


def ideal_comm(traffic: Traffic, hw) -> float:
    """Communication in a step on the better of the ideal placements, on at most `N` servers."""
    return min(_comm_in_domains(traffic, hw, size) for size in hw.domain_sizes)


def _comm_in_domains(traffic: Traffic, hw, size: int) -> float:
    """The same where so many servers are a domain."""
    held = min(traffic.n, hw.N * hw.smax)
    server_of = [i // hw.smax for i in range(held)]
    group_of = [s * 10**6 + i % hw.smax // hw.gmax for i, s in enumerate(server_of)]
    # What is beyond the last server is outside of every one.
    beyond = [10**12] * (traffic.n - held)
    domain_of = [s // size for s in server_of]
    sent = inside(traffic, group_of + beyond, server_of + beyond, domain_of + beyond)
    speed = {"pcie": hw.pcie_max, "qpi": hw.qpi_max, "nic": hw.nic_max}
    return max((x / speed[key[0]] for key, x in sent.items() if key[1] != 10**12), default=0.0)
