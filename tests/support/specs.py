"""Policies under which random cases are played, by the shape of the case; each has one program with its row."""

# Compiled together, one program for each row, shape and configuration, which takes most of the time of a test: those of
# other tests, too, are from here if they can be. Every rule, order and switch is in there.
SPECS = {
    "one": (
        "first-fit:tenants",
        "pack:area+backfill",
        "load-balance",
        "tetris:tenants+backfill",
        "tetris:tenants+backfill+reserve",
        "least-interference:sjf+backfill",
        "contention-aware:area",
    ),
    "two": (
        "first-fit",
        "first-fit:sjf+backfill",
        "pack",
        "pack:area+backfill+forward",
        "load-balance:tenants+backfill",
        "load-balance:area+forward",
        "tetris:sjf+spread",
        "tetris:fifo+backfill+spread+reserve",
        "tetris:area+backfill",
        "least-interference",
        "least-interference:tenants+backfill+forward+faster",
        "contention-aware",
        "contention-aware:sjf+backfill+spread+faster",
        "contention-aware:sjf+backfill+spread+reserve",
    ),
    "three": (
        "first-fit:area+forward",
        "pack:tenants+backfill+spread",
        "load-balance:sjf+backfill",
        "tetris",
        "least-interference:area+forward",
        "least-interference:area+backfill+forward+reserve",
        "contention-aware:tenants+backfill+forward",
    ),
}
GREEDY = {
    "one": ("greedy-wait:p1", "greedy-wait:fifo+t1.3+p0.5"),
    "two": (
        "greedy-wait:p1",
        "greedy-wait:sjf+stay+t1.05+p0",
        "greedy-wait:sjf+spread+lifetime+p1",
        "greedy-wait:sjf+spread+lifetime+reserve+p1",
    ),
    "three": (
        "greedy-wait:t1.5+p2",
        "greedy-wait:tenants+t1.2",
        "greedy-wait:sjf+spread+p1",
        "greedy-wait:sjf+spread+reserve+p1",
        "greedy-wait:lifetime+p2",
    ),
}
# These look ahead.
AHEAD = {
    "one": ("greedy-wait", "greedy-wait:area"),
    "two": ("greedy-wait", "greedy-wait:fifo+consolidate+forward"),
    "three": ("greedy-wait", "greedy-wait:tenants+stay"),
}
# All of these stop jobs, in worlds that allow it. The event loop plays them; the environment does what the oracle did.
PREEMPTIVE = {
    "one": (
        "pack:srtf+backfill+preempt+consolidate",
        "first-fit:las+preempt+h0.2",
        "load-balance:tiresias+backfill+preempt+q900",
        "greedy-wait:srsf+preempt+lifetime",
    ),
    "two": (
        "pack:srsf+backfill+preempt+consolidate+spread",
        "pack:las+backfill+preempt+h0.1+spread",
        "tetris:mlfq+backfill+preempt+forward",
        "greedy-wait:tiresias+preempt+q2000+spread",
        "contention-aware:srtf+preempt+h1",
    ),
    "three": (
        "first-fit:las+backfill+preempt",
        "pack:srtf+backfill+preempt+spread+h0.3",
        "pack:tiresias+backfill+preempt+q5000",
        "greedy-wait:las+preempt+h0.5+consolidate+forward",
    ),
}

# Where models that share a GPU have factors, of which some learn.
SHARING = {
    "one": ("match:area+reserve+lifetime+observe", "greedy-wait:sjf+t2+observe", "match:mlfq+preempt+observe"),
    "two": (
        "pack:sjf+backfill+spread",
        "greedy-wait:sjf+spread+t2",
        "greedy-wait:sjf+spread+t2+observe",
        "match:sjf+spread",
        "match:sjf+spread+lifetime+observe",
        "match:area+reserve+t1.2+p0.5+observe",
        "pack:mlfq+backfill+preempt+spread",
        "match:las+preempt+h0.5+spread+observe",
    ),
}

# With levels out of a table, which `policy_of` draws.
TABLES = {
    "one": ("pack:table1+backfill+preempt+consolidate",),
    "two": ("pack:table2+backfill+preempt+consolidate+spread", "tetris:table3+preempt"),
    "three": ("first-fit:table4+backfill+preempt+h1",),
}

# These stop jobs, in worlds where policies know the history: run times are hidden.
INFORMED = {
    "one": (
        "pack:srsf+backfill+preempt+consolidate",
        "first-fit:gittins+preempt+h0.5",
        "load-balance:themis+backfill+preempt+h1",
    ),
    "two": ("pack:gittins+backfill+preempt+consolidate+spread", "contention-aware:themis+backfill+preempt+forward"),
}
# Of these jobs move to faster GPUs, also where no job is queued: no boundary may be passed over.
FASTER = {
    "one": ("pack:las+backfill+preempt+faster", "greedy-wait:srtf+preempt+faster"),
    "two": (
        "pack:mlfq+backfill+preempt+consolidate+spread+faster",
        "load-balance:srsf+backfill+preempt+forward+faster",
        "greedy-wait:tiresias+preempt+q2000+spread+faster",
    ),
    "three": ("first-fit:las+preempt+h0.5+spread+faster",),
}
GUESSING = {"three": ("tetris:area+backfill+reserve+forward", "greedy-wait:sjf+p2")}  # of these none stops jobs
