"""What nodes have, and what is free of it: GPUs as the simulator's cluster, a ledger of all resources, filters."""
