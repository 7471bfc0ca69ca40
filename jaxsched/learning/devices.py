"""Data parallelism: environments in equal shards, each on a device of its own where there are enough devices.

A shard collects experience and estimates gradients by itself; what all of them share is a mean over the shards. Where
there are too few devices the shards are vmapped in one program: the same up to rounding.

A run may have several processes, on one or more machines. They meet, share the shards, and the first of them writes.
Every process computes the same; what differs are the shards that its devices hold. All must see the run's folder: Orbax
writes every process' part of a step into it.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
from jax import Array, lax
from jax.experimental import multihost_utils
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PRNGKeyArray, PyTree

from jaxsched.errors import UserError
from jaxsched.io.files import locked
from jaxsched.machine import cores

AXIS = "shard"
_FORCED = "--xla_force_host_platform_device_count"
EVERYWHERE, DIVIDED = PartitionSpec(), PartitionSpec(AXIS)
AUTO, MEET_S = "auto", 300
T = TypeVar("T", bound=PyTree)
Common = TypeVar("Common", bound=PyTree)
Own = TypeVar("Own", bound=PyTree)
Result = TypeVar("Result", bound=PyTree)
Part = TypeVar("Part", bound=PyTree)


def make_mesh(shards: int) -> Mesh | None:
    """A mesh of `shards` devices, as many of each process; None if there are not as many, or one shard needs none."""
    each, count = shards // jax.process_count(), jax.process_count()
    if shards == 1 or each * count != shards or each > jax.local_device_count():
        return None
    devices = [device for i in range(count) for device in jax.devices() if device.process_index == i]
    there = len(devices) // count
    return Mesh(np.array([devices[i * there + k] for i in range(count) for k in range(each)]), (AXIS,))


def provide_devices() -> None:
    """Have every CPU core count as a device, unless `XLA_FLAGS` say how many, or JAX has looked at its devices."""
    if _FORCED in os.environ.get("XLA_FLAGS", ""):
        return
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", cores())


def shared_devices(shards: int) -> str | None:
    """What to tell who asked for more shards than there are devices; None if each has one."""
    there = jax.device_count()
    if shards <= there:
        return None
    devices = "1 device" if there == 1 else f"{there} devices"
    more = f"; XLA_FLAGS={_FORCED}={shards} makes more of a CPU" if jax.default_backend() == "cpu" else ""
    return f"{shards} shards, but {devices}: all shards are computed on one, the same up to rounding{more}"


def map_shards(
    function: Callable[[Common, Own], tuple[Result, Part]], shards: int
) -> Callable[[Common, Own], tuple[Result, Part]]:
    """`function` of what is common and of one shard's own, as one of all shards' own.

    Leaves of the own argument and result have a leading axis of environments, which `shards` divides. The common result
    must be the same in every shard.
    """
    if shards == 1:
        return function
    mesh = make_mesh(shards)
    if mesh is not None:
        specs = (EVERYWHERE, DIVIDED)
        return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)

    def run(common: Common, own: Own) -> tuple[Result, Part]:
        own = jax.tree.map(lambda leaf: leaf.reshape(shards, len(leaf) // shards, *leaf.shape[1:]), own)
        result, part = jax.vmap(function, in_axes=(None, 0), axis_name=AXIS)(common, own)
        first = jax.tree.map(lambda leaf: leaf[0], result)
        return first, jax.tree.map(lambda leaf: leaf.reshape(shards * leaf.shape[1], *leaf.shape[2:]), part)

    return run


def place(common: Common, own: Own, shards: int) -> tuple[Common, Own]:
    """Both on the devices where `map_shards` leaves its results, so that it compiles once."""
    mesh = make_mesh(shards)
    if mesh is None:
        return common, own
    return _put(common, mesh, EVERYWHERE), _put(own, mesh, DIVIDED)


def _put(tree: T, mesh: Mesh, spec: PartitionSpec) -> T:
    """On these devices; of several processes each has the whole tree and puts its part, unless that is done."""

    def put(leaf: Array) -> Array:
        sharding = NamedSharding(mesh, spec if leaf.size else EVERYWHERE)  # where programs leave empty arrays
        if jax.process_count() == 1:
            return jax.device_put(leaf, sharding)
        if not leaf.is_fully_addressable:
            return leaf
        whole = np.asarray(leaf)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    return jax.tree.map(put, tree)


def mean_over_shards(tree: T, shards: int) -> T:
    """The mean over shards of every leaf, float32; inside `map_shards`."""
    if shards == 1:
        return tree
    flat, unravel = ravel_pytree(tree)
    return unravel(lax.pmean(flat, AXIS))


def sum_over_shards(tree: T, shards: int) -> T:
    """The sum over shards of every leaf; inside `map_shards`."""
    return tree if shards == 1 else lax.psum(tree, AXIS)


def shard_key(key: PRNGKeyArray, shards: int) -> PRNGKeyArray:
    """A key for this shard alone; inside `map_shards`."""
    return key if shards == 1 else jax.random.fold_in(key, lax.axis_index(AXIS))


def join(where: str) -> None:
    """Meets the other processes; before JAX looks at its devices.

    `where` is HOST:PORT,COUNT,NUMBER: the address of the first process, how many there are, and which one this is; or
    auto, where JAX finds that out (Slurm, Open MPI). UserError if they cannot meet.
    """
    try:
        if where == AUTO:
            jax.distributed.initialize(initialization_timeout=MEET_S)
            return
        address, count, number = where.split(",")
        host, _, port = address.rpartition(":")
        if not (host and port.isdigit() and 0 <= int(number) < int(count)):
            raise ValueError(where)
    except ValueError as error:
        what = "auto finds no other processes" if where == AUTO else f"{where!r} is not understood"
        raise UserError(f"--hosts: {what} ({error}); give HOST:PORT,COUNT,NUMBER, as in head:1234,2,0") from None
    except RuntimeError as error:
        raise _cannot_meet(error) from None
    try:
        jax.distributed.initialize(address, int(count), int(number), initialization_timeout=MEET_S)
    except RuntimeError as error:
        raise _cannot_meet(error) from None


def _cannot_meet(error: RuntimeError) -> UserError:
    return UserError(f"--hosts: the processes do not meet within {MEET_S} s: {' '.join(str(error).split())[:200]}")


def is_first() -> bool:
    """This process writes; True where there is only one."""
    return jax.process_index() == 0


def wait_for_all(where: str) -> None:
    """Waits until all processes are at this place."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)


@contextlib.contextmanager
def lock_by_first(folder: Path) -> Iterator[None]:
    """Holds the lock of `folder` for all processes. All enter and leave together."""
    with locked(folder) if is_first() else contextlib.nullcontext():
        wait_for_all(f"enter {folder}")
        yield
        wait_for_all(f"leave {folder}")


def check_shards(shards: int) -> None:
    """UserError if the shards cannot be shared out evenly among the devices of all processes."""
    count, each = jax.process_count(), jax.local_device_count()
    if count > 1 and (shards % count or shards > count * each):
        raise UserError(
            f"--shards {shards}: {count} processes of {each} devices each should have {count} to {count * each} "
            f"shards, a multiple of {count}"
        )
