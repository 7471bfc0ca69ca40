"""How the event loop works, private to `jaxsched.event_loop`.

The arrows: `records` <- `ideal` <- `build`; `records` <- `shared_gpus`, `plans` <- `speed`, `estimates` <- `occupancy`,
`queues` <- `tiers_and_racks`, `stopping` <- `rules`, `openings` <- `candidates`, `displacement` <- `looking`; all <-
`events`.
`jit` marks the functions, which are plain Python and can be played so. `machine_code` compiles them: that alone needs
Numba, the extra `compiled`.

Everywhere `w` is the `World`, `t` the `Tables` of a run, `p` a partition, `j` a job.
"""
