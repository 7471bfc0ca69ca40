"""Plans of jobs: tables, and what their ranks send."""
