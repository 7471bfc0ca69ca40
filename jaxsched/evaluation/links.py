"""How full the links between racks were, over time."""

import dataclasses

import jax
import numpy as np
from jaxtyping import Float

from jaxsched.cluster.hardware import Cluster
from jaxsched.dynamics.resources import layout_of
from jaxsched.evaluation.replay import Footprints
from jaxsched.evaluation.usage import Steps, steps
from jaxsched.simulation.attempts import Attempts


@dataclasses.dataclass(frozen=True)
class LinkUse:
    """The links that were used at all, the busiest first."""

    names: list[str]
    use: Float[np.ndarray, "L T"]  # mean share of its capacity that jobs ask for, in T equal parts of the run


def link_steps(attempts: Attempts, cluster: Cluster, prints: Footprints) -> dict[str, Steps]:
    """The use of every link that was used, by its name: the share of its capacity that jobs ask for.

    That is what they would send alone: it may exceed 1. `prints` are the `footprints_of` the run.
    """
    first = cluster.shape[0] * layout_of(cluster).link.start
    pieces: dict[int, list[tuple[float, float, float]]] = {}
    for start_s, end_s, (resources, amounts) in zip(attempts.start_s, attempts.end_s, prints.used):
        for resource, amount in zip((resources - first).tolist(), amounts.tolist()):
            if resource >= 0:
                pieces.setdefault(resource, []).append((start_s, end_s, amount))
    names = link_names(cluster)
    return {names[link]: steps(tuple(np.array(rows).T)) for link, rows in sorted(pieces.items())}


def link_use(attempts: Attempts, cluster: Cluster, prints: Footprints, parts: int, end_s: float) -> LinkUse:
    """`link_steps` from time 0 to `end_s`, in so many equal parts."""
    edges = np.linspace(0.0, end_s, parts + 1)
    used = link_steps(attempts, cluster, prints)
    found = {name: np.diff(use.integral(edges)) / (end_s / parts) for name, use in used.items()}
    names = sorted(found, key=lambda name: -found[name].sum())
    return LinkUse(names, np.array([found[name] for name in names]).reshape(-1, parts))


def link_names(cluster: Cluster) -> list[str]:
    """What to call each link, by the routes that use it; the last name is of the dummy."""
    racks, links, route = (
        np.asarray(leaf) for leaf in jax.device_get((cluster.rack_id, cluster.link_id, cluster.route))
    )
    sources: dict[int, set[int]] = {}
    targets: dict[int, set[int]] = {}
    for p, t, u, e in np.argwhere(route > 0).tolist():
        sources.setdefault(int(links[p, e]), set()).add(int(racks[p, t]))
        targets.setdefault(int(links[p, e]), set()).add(int(racks[p, u]))

    def name(link: int) -> str:
        out, into = sources.get(link, set()), targets.get(link, set())
        if len(out) == 1 and len(into) != 1:
            return f"link {link}, out of rack {min(out)}"
        if len(into) == 1 and len(out) != 1:
            return f"link {link}, into rack {min(into)}"
        if len(out) == len(into) == 1:
            return f"link {link}, rack {min(out)} to {min(into)}"
        return f"link {link}"

    return [name(link) for link in range(cluster.link_bytes_s.shape[0])]
