"""Job logs as their publishers and schedulers write them: one file per source, on top of one way to read tables."""
