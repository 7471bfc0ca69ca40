"""Tasks in this process, on a Ray cluster, or as Slurm jobs."""
