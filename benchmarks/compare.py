"""Two result files of `jaxsched bench --json FILE`, row by row: python benchmarks/compare.py BEFORE.json AFTER.json

Run both on the same quiet machine; a ratio above 1 is faster (for compile_s and memory: more).
"""

import json
import sys
from pathlib import Path

COLUMNS = ("decisions_per_s", "jobs_per_cpu_s", "compile_s", "peak_memory_bytes")


def main() -> None:
    """Print the ratios after / before."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    tables = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    both = all("cluster" in row for rows in tables for row in rows)  # results of before do not say it
    before, after = (
        {(f"{row['name']} {row.get('cluster', '') * both}", row["num_envs"], row["servers"]): row for row in rows}
        for rows in tables
    )
    print(f"{'name':48s}{'envs':>6s}{'servers':>8s}" + "".join(f"{column:>20s}" for column in COLUMNS))
    for key in [key for key in after if key in before]:
        ratios = []
        for column in COLUMNS:
            old, new = before[key][column], after[key][column]
            ratios.append(f"{new / old:20.2f}" if old and new else f"{'–':>20s}")
        print(f"{key[0]:48s}{key[1]:6d}{key[2]:8d}" + "".join(ratios))
    for key in sorted(set(before) ^ set(after)):
        print(f"only in one file: {key}")


if __name__ == "__main__":
    main()
