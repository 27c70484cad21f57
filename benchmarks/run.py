"""All the benchmarks, one after another, each in a process of its own.

python benchmarks/run.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from common import HERE, is_missed, show

NAMES = ("streams", "parts", "growth", "latency", "short", "startup", "uploads", "many")


def table_of(name: str) -> dict[str, object]:
    command = [sys.executable, str(HERE / f"{name}.py"), "--json"]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    return {"name": name, **json.loads(output)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Run every benchmark.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="a file for all the tables")
    file = parser.parse_args().json
    tables = []
    for name in NAMES:
        tables.append(table_of(name))
        show(tables[-1])
    if file is not None:
        file.write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")
    rows = [row for table in tables for row in table["rows"]]
    targets = [row for row in rows if row["target"] is not None]
    print(f"{len(list(filter(is_missed, targets)))} of {len(targets)} targets missed")


if __name__ == "__main__":
    main()
