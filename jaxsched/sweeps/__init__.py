"""Many trainings from one file, on executors: shared programs, tasks, tables, rankings."""
