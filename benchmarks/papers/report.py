"""Markdown tables of a benchmark's records: methods side by side, levels, SODM's ingredients, speed-up, what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import mean
from typing import Any

from benchmarks.papers.machine import machine_line
from benchmarks.papers.matrix import Results
from benchmarks.papers.methods import ALL_METHODS, INGREDIENTS
from benchmarks.papers.papers import reported

Record = dict[str, Any]
NONE = "–"


def markdown(results: Results, command: str) -> str:
    """All tables, with the command that made them and the machine."""
    done = [r for r in results.done if r["cell"]["method"] in ALL_METHODS]
    whole = [r for r in done if r["cell"]["cores"] is None]
    parts = [f"# Benchmark\n\n```sh\n{command}\n```\n\n{machine_line(results.machine)}" if results.machine else ""]
    parts.append(
        "Fits stop at a relative duality gap of 1e-3; the gap shown is that of the whole problem. Seconds are wall "
        "time in a process that has fitted a few rows before. *Before* is the time until the first partition or step "
        "is begun: landmarks, strata or clusters, and partitions. *CPU* adds up the cores a fit used, and says more "
        "than wall time where a machine has other work. Settings were chosen on a part of the training rows."
    )
    parts.append(_codes(list(results.records.values())))
    for kernel in ("rbf", "linear"):
        own = [r for r in whole if r["cell"]["kernel"] == kernel and r["cell"]["method"] not in INGREDIENTS]
        parts.append(_section(f"Methods, {kernel} kernel", methods_table(own)))
        parts.append(_section(f"Levels, {kernel} kernel", levels_table(own)))
        tried = [r for r in whole if r["cell"]["kernel"] == kernel and r["cell"]["method"] in INGREDIENTS]
        parts.append(_section(f"SODM's ingredients, {kernel} kernel", levels_table(tried)))
    parts.append(_section("Speed-up of SODM over cores", speed_up_table(done)))
    parts.append(_section("Settings", settings_table(results.records.values())))
    failed = [r for r in results.records.values() if "error" in r]
    parts.append(_section("What failed", failures_table(failed)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _codes(records: Sequence[Record]) -> str:
    """A warning where records were made by different code: seconds of one table are then not of one program."""
    counts = Counter(record.get("code", "not known") for record in records)
    if len(counts) < 2:
        return ""
    told = ", ".join(f"{code} ({count})" for code, count in counts.items())
    return f"**Records were made by different code**, by its digest (and how many): {told}."


def _section(title: str, table: str) -> str:
    return f"## {title}\n\n{table}" if table else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; empty without rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines]) if lines else ""


def grouped(records: Iterable[Record], *names: str) -> list[tuple[tuple[Any, ...], list[Record]]]:
    """Records by some fields of their cells, in order of appearance."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(record["cell"][name] for name in names), []).append(record)
    return list(found.items())


def average(records: Sequence[Record], value: Callable[[Record], float | None]) -> float | None:
    """Mean over splits; None where one of them has no value."""
    values = [value(record) for record in records]
    return None if None in values or not values else mean(v for v in values if v is not None)


def _shown(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def methods_table(records: Sequence[Record]) -> str:
    """Accuracy, gap, seconds and memory of every method, the papers' figures beside."""
    head = (
        "data", "train rows", "method", "threads", "accuracy", "gap", "before, s", "solve, s", "fit, s", "CPU, s",
        "predict, s", "peak, MB", "paper: accuracy", "paper: s",
    )  # fmt: skip
    rows = []
    for (data, method, kernel), own in grouped(records, "data", "method", "kernel"):
        paper = reported(data, method, kernel)
        figures = [_shown(average(own, lambda r, n=name: r[n]), ".2f") for name in ("prepare", "solve", "fit", "cpu")]  # type: ignore[misc]
        peak = average(own, lambda r: r["peak_bytes"])
        rows.append([
            data,
            f"{own[0]['train_rows']:,}",
            method,
            ALL_METHODS[method].threads,
            _shown(average(own, lambda r: r["accuracy"]), ".4f"),
            _shown(average(own, lambda r: r["gap"]), ".0e"),
            *figures,
            _shown(average(own, lambda r: r["predict"]), ".3f"),
            _shown(None if peak is None else peak / 1e6, ".0f"),
            _shown(paper and paper[0], ".3f"),
            _shown(paper and paper[1], ".1f"),
        ])  # fmt: skip
    return table(head, rows)


def levels_table(records: Sequence[Record]) -> str:
    """Levels of the trees, of the first split: where each started, what it took, and what it is worth as a model."""
    head = (
        "data", "method", "partitions", "rows", "start gap", "gap", "sweeps", "seconds", "until its end, s", "accuracy",
    )  # fmt: skip
    rows = []
    for record in (own[0] for _, own in grouped(records, "data", "method") if len(own[0]["levels"]) > 1):
        accuracies = record.get("level_accuracy") or [None] * len(record["levels"])
        for level, accuracy in zip(record["levels"], accuracies, strict=True):
            rows.append([
                record["cell"]["data"],
                record["cell"]["method"],
                str(level["partitions"]),
                f"{level['rows']:,}",
                _shown(level["start_gap"], ".1e"),
                _shown(level["gap"], ".1e"),
                str(level["sweeps"]),
                _shown(level["seconds"], ".2f"),
                _shown(level["ended"], ".2f"),
                _shown(accuracy, ".4f"),
            ])  # fmt: skip
    return table(head, rows)


def speed_up_table(records: Sequence[Record]) -> str:
    """Seconds of a fit on so many cores, and how often faster that is than on the fewest."""
    rows = []
    for (data, kernel), own in grouped((r for r in records if r["cell"]["cores"] is not None), "data", "kernel"):
        seconds = {cores: average(some, lambda r: r["fit"]) or 0.0 for (cores,), some in grouped(own, "cores")}
        fewest = seconds[min(seconds)]
        rows += [[data, kernel, str(c), f"{seconds[c]:.2f}", f"{fewest / seconds[c]:.2f}"] for c in sorted(seconds)]
    return table(("data", "kernel", "cores", "fit, s", "times as fast"), rows)


def settings_table(records: Iterable[Record]) -> str:
    """What was chosen, split by split."""
    rows = []
    for record in records:
        if record["cell"]["method"] == "tune" and "error" not in record:
            chosen = ", ".join(f"{name} {value:g}" for name, value in record["settings"].items())
            rows.append([record["cell"]["data"], str(record["cell"]["seed"]), record["cell"]["kernel"], chosen])
    return table(("data", "split", "for", "chosen"), rows)


def failures_table(records: Iterable[Record]) -> str:
    """Cells that did not end, and why."""
    rows = [[*(str(r["cell"][name]) for name in ("data", "seed", "method", "kernel")), r["error"]] for r in records]
    return table(("data", "split", "method", "kernel", "why"), rows)
