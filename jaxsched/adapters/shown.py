"""What a scheduler is shown of a menu: all features in a row, its options, and which of them are legal; with names."""

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32

from jaxsched.env.observation import Menu, Observation

# `features`: float32[P, F], `options`: float32[P, A, O] and `mask`: bool[P, A] of the options that are legal.
# In place of `features`, a `graph` (`adapters.graph.Graph`) where that is the observation.
Seen = dict[str, Any]


def show_menu(observation: Observation, menu: Menu, may_wait: bool = True) -> Seen:
    """Of every scheduler all features in a row, its options, and which of them are legal.

    The length of a row of features depends on the cluster's size. That of an option does not. Who may not wait has that
    in the mask only if nothing else is legal.
    """
    acts = jnp.concatenate([menu.mask, observation.forward_mask], -1)
    mask = jnp.concatenate([acts, may_wait | ~acts.any(-1, keepdims=True)], -1)
    return {"features": _features(observation, menu), "options": _options(observation, menu, mask), "mask": mask}


def action_names(placements: int, schedulers: int) -> list[str]:
    """What each number of an action stands for."""
    return [
        *(f"placement {i}" for i in range(placements)),
        *(f"forward to scheduler {i}" for i in range(schedulers)),
        "wait",
    ]


def _features(obs: Observation, menu: Menu) -> Float32[Array, "P F"]:
    others = jnp.broadcast_to(obs.scheduler.mean(0), obs.scheduler.shape)
    parts = [
        obs.scheduler, others, obs.group * obs.group_mask[..., None], obs.server, obs.rack, obs.job,
        obs.job_mask.astype(jnp.float32), menu.features, menu.rank / 4.0, menu.order / 8.0,
    ]  # fmt: skip
    return jnp.concatenate([part.reshape(part.shape[0], -1) for part in parts], -1)


def _options(obs: Observation, menu: Menu, mask: Bool[Array, "P A"]) -> Float32[Array, "P A O"]:
    """What is known of each option, zeros where there is nothing to say or the option is not legal.

    In this order: whether it is a placement, a forward, to wait (3 columns); of a placement the menu's features (see
    `policies.menu`), the job's place in the window over 4, the placement's place in greedy-wait's order over 8, whether
    the job would be done before any that runs (3); the job (`env.observation.job_features`); the scheduler that would
    have the job (`env.observation.scheduler_features`).
    """
    p, k = menu.mask.shape
    own, numbers = obs.scheduler[:, None], jnp.stack([menu.rank / 4.0, menu.order / 8.0, menu.brief], -1)
    placed = jnp.concatenate([menu.features, numbers], -1)
    nowhere = jnp.zeros((p, 1, placed.shape[-1]))
    rows = [
        _rows(k, 0, placed, jnp.take_along_axis(obs.job, menu.rank[..., None], 1), own),
        _rows(p, 1, nowhere, obs.job[:, -1:], obs.scheduler[None]),
        _rows(1, 2, nowhere, jnp.zeros_like(obs.job[:, :1]), own),
    ]
    return jnp.where(mask[..., None], jnp.concatenate(rows, 1), 0.0)


def _rows(count: int, kind: int, *parts: Float32[Array, "..."]) -> Float32[Array, "P count O"]:
    """So many options of one kind, each with all parts."""
    p = parts[0].shape[0]
    return jnp.concatenate([jnp.broadcast_to(x, (p, count, x.shape[-1])) for x in (jnp.eye(3)[kind], *parts)], -1)
