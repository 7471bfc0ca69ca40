"""The numbers that define the simulation (docs/semantics.md), read by all engines and by the oracle.

Plain Python, so that whoever compiles them needs no JAX.
"""

WORK_TOLERANCE = 1e-6  # of a job's duration; what is left below this is float noise, and the job is done
SHORTEST_S, LONGEST_S = 1e-9, 1e12  # of run times: float32 holds them and what is computed of them
OVERDUE = 0.1  # a job that has outlived its estimate is taken to need this share of what it has done once more

# Scores and times are compared on a grid, `floor(GRID x + GRID_OFFSET)` clipped to [0, GRID_LIMIT]: ties are ties.
GRID, GRID_OFFSET, GRID_LIMIT = 1000.0, 0.123, 1e9
SAME_RATIO = (GRID + 1.0 - GRID_OFFSET) / GRID  # the ratio of two times that count as the same is below this

# Candidate placements of a job: anchor servers x most workers per GPU group.
ANCHORS = 4  # servers of each of two lists, by packing and by pressure
CAPS = (1024, 2, 1)  # the first is no limit
GPUS, OPENED = 20, 4  # shared and free GPUs that `match` looks at for a fraction

# Seeking: partitions are compared for a job by an index, the weighted sum of so many inputs.
SEEK_INPUTS = 4
SEEK_JOBS = 16  # of a queue, that are looked at
SEEK_LAST = 2  # forwards of a job for which doubt counts, divided by those it has left
SEEK_S, SEEK_LONGEST_S = 60.0, 1e7  # added to times whose logarithm is taken; the longest wait
SEEK_MOST = 4.0  # of GPUs that wait over those of a partition
SEEK_DOUBT, SEEK_MOST_DOUBT = 100.0, 10.0  # times the share of busy GPUs whose jobs have outlived their estimates

# Preemption. Jobs are compared by levels, so many per factor e of what is left or received (at least SMALLEST seconds).
LEVELS_PER_E, LEVEL_OFFSET, SMALLEST = 100.0, 0.123, 1e-3
MLFQ_FIRST_S, MLFQ_RATIO, MLFQ_LEVELS = 3600.0, 4.0, 8  # run times at which a job falls to the next of the queues
RUN_BINS, FIRST_RUN_S = 21, 60.0  # of run time so far, each but the first as wide as all before; of tables of levels
WIDTH_CLASSES = 8  # 1, 2 to 3, 4 to 7, ... GPUs; likewise
HIGHEST_LEVEL = 100_000  # of such a table
CHECKPOINT_TOLERANCE = 1e-3  # of a checkpoint interval: work that is short of a checkpoint by less counts as there
STOP_TOLERANCE = 1e-6  # of an interval, likewise of the least run time
LEAST_GAIN_S = 1e-3  # of work that a job must have gained since its last start before it may be stopped
FASTER, RESTARTS = 1500, 5.0  # jobs move to GPUs faster by so much, on GRID; restarts that they must make up for

# What policies know of run times, and how often a job may be handed on: that is counted in 8 bits.
RUNTIMES, ESTIMATES, HISTORY, NOTHING = KNOWLEDGE = ("runtimes", "estimates", "history", "nothing")
MOST_FORWARDS = 127

# History. Run times are noted, and ratios compared, on a grid of STEPS per factor of 2, up to MOST_STEPS; whole numbers
# from there on, so that independent implementations agree to the last bit.
STEPS, MOST_STEPS = 16, 432
PARTS = 64  # of a step, to which means are rounded down
PRIOR_STEPS, PRIOR_JOBS = 189, 8  # an hour is expected of a class without jobs; which counts as much as so many
SIZES = 16  # classes of gangs: 1, 2, 3 to 4, 5 to 8, ... GPUs
OUTLIVED = 2.0  # a job that has run for so long is taken to run at least for this many times as long in all
SERVICE_BINS, FIRST_BIN_S, BINS_AHEAD = 32, 64.0, 8  # of attained service, each as wide as all before; see `gittins`
