"""Files of users and of runs: read strictly and within sizes, written whole or not at all."""
