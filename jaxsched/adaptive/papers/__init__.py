"""Published tables of jobs that adapt, played again."""
