"""Which servers a partition has. Without JAX: what only reads about clusters does not wait for it."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int

from jaxsched.errors import UserError

SERVERS_PER_SCHEDULER = 16


def default_schedulers(num_servers: int) -> int:
    """Schedulers of a cluster that does not say: one per 16 servers, at least 2 (1 for a single server)."""
    return min(num_servers, max(2, -(-num_servers // SERVERS_PER_SCHEDULER)))


def partition_rows(num_servers: int, schedulers: int) -> Int[np.ndarray, "P N"]:
    """The servers of each partition, -1 = padding. `UserError` if a partition would be empty."""
    if isinstance(schedulers, bool) or not isinstance(schedulers, (int, np.integer)):
        raise UserError(f"schedulers is {schedulers!r}; it must be a whole number from 1 to {num_servers}")
    if not 1 <= schedulers <= num_servers:
        raise UserError(f"schedulers is {schedulers}; it must be from 1 to {num_servers}, the number of servers")
    block = -(-num_servers // schedulers)
    filled = -(-num_servers // block)
    if filled < schedulers:
        raise UserError(
            f"schedulers is {schedulers}, but {num_servers} servers in blocks of {block} fill only {filled} "
            f"partitions; {filled} schedulers would be right"
        )
    rows = np.arange(schedulers * block)
    return np.where(rows < num_servers, rows, -1).reshape(schedulers, block)


def named_rows(wanted: Mapping[str, int | Sequence[str]], names: Sequence[str], where: str) -> dict[str, list[int]]:
    """The servers of partitions that have names, in the order of `wanted`.

    Args:
        wanted: of each partition how many servers it has, or their names; those that are named nowhere are counted off
            in their order.
        names: of all servers.
        where: begins the message of a mistake.

    Raises:
        UserError: unless every server is in exactly one partition, and every partition has some.
    """
    row_of, owner = {name: row for row, name in enumerate(names)}, dict[int, str]()
    for partition, servers in wanted.items():
        for name in [] if isinstance(servers, int) else servers:
            if name not in row_of:
                raise UserError(f"{where}: {partition}: unknown server {name!r}; they are {names[0]} to {names[-1]}")
            if row_of[name] in owner:
                raise UserError(f"{where}: {partition}: {name} is in {owner[row_of[name]]} already")
            owner[row_of[name]] = partition
    left = [row for row in range(len(names)) if row not in owner]
    counts = {partition: servers for partition, servers in wanted.items() if isinstance(servers, int)}
    if sum(counts.values()) != len(left):
        named = f" that no partition names, of {len(names)}" if owner else ""
        total = sum(counts.values())
        raise UserError(f"{where}: the counts sum to {total}; they must sum to {len(left)}, the servers{named}")
    for partition, count in counts.items():
        owner |= dict.fromkeys(left[:count], partition)
        left = left[count:]
    return {partition: [row for row in range(len(names)) if owner[row] == partition] for partition in wanted}


def pad_rows(partitions: Sequence[Sequence[int]]) -> Int[np.ndarray, "P N"]:
    """As `partition_rows`, of partitions of any sizes."""
    size = max(map(len, partitions))
    return np.array([[*rows, *[-1] * (size - len(rows))] for rows in partitions])
