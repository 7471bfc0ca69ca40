"""A cluster and a state draw themselves: one square per GPU, in the colour of what it is or who holds it."""

import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp

from jaxsched.cluster.build import build
from jaxsched.cluster.hardware import FREE, MOST_SERVERS, hue
from jaxsched.cluster.presets import get_cluster
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.env.environment import initial_state
from jaxsched.env.state import EnvConfig, make_params
from jaxsched.workload.jobs import make_job_list, to_table


def squares(svg: str | None) -> list[str]:
    """Colours of the GPUs; the key comes last and is left out."""
    assert svg is not None
    root = ElementTree.fromstring(svg)
    rects = [rect.attrib for rect in root if rect.tag.endswith("rect")]
    end = max(i for i, rect in enumerate(rects) if "rx" in rect)
    inside = rects[end + 1 :]
    x, y, wide, tall = (float(rects[end][name]) for name in ("x", "y", "width", "height"))
    last = [r for r in inside if x < float(r["x"]) < x + wide and y < float(r["y"]) < y + tall]
    return [rect["fill"] for rect in rects[:end] if "rx" not in rect] + [rect["fill"] for rect in last]


def test_a_cluster_shows_its_types():
    servers = [Server(groups=(4, 4)), Server(groups=(2,), gpu_type="T4")]
    svg = build(servers, leaf_spine(2), 1)._repr_html_()
    assert svg is not None and svg.count("rx=") == 2
    assert squares(svg) == [hue(0)] * 8 + [hue(5)] * 2
    assert "1: " not in svg and "scheduler 0: 2 servers, 10 GPUs" in svg and ">T4<" in svg


def test_a_large_cluster_shows_its_first_servers():
    svg = get_cluster("leaf-spine-300", 2)._repr_html_()
    assert svg is not None and svg.count("rx=") == MOST_SERVERS and "and 44 more servers" in svg


def test_a_state_shows_who_holds_what():
    cluster = get_cluster("leaf-spine-2", 1)
    jobs = to_table(make_job_list([0.0, 0.0], [100.0, 100.0], [3, 1], gpus_per_worker=[1, 2]), 60.0)
    state = initial_state(EnvConfig(running_slots=4, queue_slots=4), make_params(cluster), jobs)
    assert squares(state._repr_html_()) == [FREE] * 16
    occupants = state.running.occupants
    slot = occupants.slot.at[0, 0, 1, 0].set(0).at[0, 1, 0, 2].set(1)
    workers = occupants.workers.at[0, 0, 1, 0].set(3).at[0, 1, 0, 2].set(1)
    running = state.running.replace(
        job=jnp.array([[0, 1, -1, -1]]),
        occupants=occupants.replace(slot=slot, workers=workers),
        gpus_per_worker=jnp.array([[1, 2, 0, 0]]),
    )
    free = state.free.at[0, 0, 1].add(-3).at[0, 1, 0].add(-2)
    svg = state.replace(running=running, free=free)._repr_html_()
    assert squares(svg) == [FREE] * 4 + [hue(0)] * 3 + [FREE] + [hue(1)] * 2 + [FREE] * 6
    assert svg is not None and "scheduler 0: 2 running, 2 queued" in svg


def test_what_is_batched_or_traced_has_no_picture():
    cluster = get_cluster("leaf-spine-2", 1)
    batched = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), cluster)
    assert batched._repr_html_() is None
    seen = []
    jax.jit(lambda traced: seen.append(traced._repr_html_()) or traced.reference)(cluster)
    assert seen == [None]
