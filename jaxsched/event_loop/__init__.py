"""The event loop of docs/semantics.md compiled for a CPU, job by job, for hand-written policies.

It gives what the JAX environment gives, but only as a whole run: nothing in it can be vmapped, differentiated or
learned. Where the environment computes whole arrays, this follows the few resources that a job touches. The arrows:
`world` <- `speed`, `estimates`, `queues` <- `occupancy` <- `gpu_tiers` <- `rules`, `openings` <- `offers` <- `events`
<- `run`; only `run` and `covered` are for others. `jit` marks the functions, which are plain Python and can be played
so, on `rows`. `machine_code` compiles them, with `references` and `linking`: that needs Numba, the extra `compiled`.

Everywhere `w` is the `World`, `t` the `Tables` of a run, `p` a partition, `j` a job.
"""
