"""Which servers a partition has. Without JAX: what only reads about clusters does not wait for it."""

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
