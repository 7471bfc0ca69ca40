"""The numbers that define the simulation (docs/semantics.md), read by all engines and by the oracle.

Plain Python, so that whoever compiles them needs no JAX.
"""

WORK_TOLERANCE = 1e-6  # of a job's duration; what is left below this is float noise, and the job is done
OVERDUE = 0.1  # a job that has outlived its estimate is taken to need this share of what it has done once more

# Scores and times are compared on a grid, `floor(GRID x + GRID_OFFSET)` clipped to [0, GRID_LIMIT]: ties are ties.
GRID, GRID_OFFSET, GRID_LIMIT = 1000.0, 0.123, 1e9
SAME_RATIO = (GRID + 1.0 - GRID_OFFSET) / GRID  # the ratio of two times that count as the same is below this

# Candidate placements of a job: anchor servers x most workers per GPU group.
ANCHORS = 4  # servers of each of two lists, by packing and by pressure
CAPS = (1024, 2, 1)  # the first is no limit
