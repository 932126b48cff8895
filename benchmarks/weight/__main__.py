"""Seconds of every special route with and without it, as the rows of benchmarks/weight/MEASURED.md.

    python -m benchmarks.weight                      # all of them
    python -m benchmarks.weight --only sparse        # those whose name or case has the word
    python -m benchmarks.weight --scale 0.1 --repeats 1

A module of this folder that has ``routes(scale)`` yields the routes of one folder of the package.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from benchmarks.weight.route import Routes


def all_routes(scale: float) -> Routes:
    """Yield the routes of every module beside this one."""
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        module = import_module(f"benchmarks.weight.{path.stem}")
        if hasattr(module, "routes"):
            yield from module.routes(scale)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a word of the name or case")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    print("| route | case | with, s | without, s | share |")
    print("|---|---|---|---|---|")
    for route in all_routes(options.scale):
        if options.only in f"{route.name} {route.case}":
            used, unused = route.seconds(options.repeats)
            print(f"| {route.name} | {route.case} | {used:.3g} | {unused:.3g} | {used / unused:.2f} |", flush=True)


if __name__ == "__main__":
    main()
