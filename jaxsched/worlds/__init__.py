"""Random worlds: families of clusters with jobs, drawn by seed."""
