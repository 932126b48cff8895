"""Summaries of stores, models and checkpoints, as plain values for programs and as lines for people."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from dask.utils import format_bytes

from dask_odm.data.storage.locations import location_of
from dask_odm.data.storage.storage import current_storage
from dask_odm.data.store.column_recipe import HEAD
from dask_odm.data.store.records import Record
from dask_odm.data.store.statistics import listed
from dask_odm.data.store.store import Store
from dask_odm.html import MOST_LINES
from dask_odm.printing import printable, short

# facts of an evaluation that its table shows, or lines of their own
IN_TABLES = ("classes", "confusion", "other_labels", "sets", "intervals", "each")


def store_facts(store: Store) -> dict[str, Any]:
    """Return rows, classes, chunks, statistics and source of an open store as plain values."""
    counts = dict(zip(store.classes or (), store.class_counts or (), strict=True))
    statistics = store.statistics
    return {
        "kind": "store",
        "path": store.path,
        "rows": store.rows,
        "features": store.features,
        "entries": store.layout.entries.total if store.layout.entries is not None else None,
        "text": store.layout.text,
        "dtype": store.dtype.name,
        "y": store.y_kind,
        "classes": [{"label": label, "rows": n} for label, n in counts.items()] if store.y_kind == "classes" else None,
        "unlabelled_rows": store.rows - store.known_rows,
        "weights": store.has_weight,
        "chunks": {"count": store.n_chunks, "rows": store.chunk_rows, "bytes": store.chunk_nbytes},
        "bytes": folder_bytes(store.path),
        "compression": store.layout.compression,
        "values": {
            "minimum": float(statistics.minimum.min()),
            "maximum": float(statistics.maximum.max()),
            "mean": float(statistics.mean.mean()),
            "variance": statistics.total_variance,
        },
        "feature_names": None if store.feature_names is None else list(store.feature_names),
        "columns": None if store.column_recipe is None else store.column_recipe.facts(),
        "source": store.source,
    }


def model_facts(model: Any, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return parameters, classes, support, gap and history of a model at ``path``; None for what it does not have."""
    parameters = {name: value for name, value in model.get_params(deep=False).items() if name != "callbacks"}
    classes = getattr(model, "classes_", None)
    support = getattr(model, "support_", None)
    history = getattr(model, "history_", [])
    chosen = history[0] if history else {}
    recipe = getattr(model, "column_recipe_", None)
    return {
        "kind": "model",
        "path": location_of(path),
        "estimator": type(model).__name__,
        "kernel": parameters.get("kernel"),
        "parameters": parameters,
        "lam": getattr(model, "lam_", None),  # of the fit, as "auto" may have chosen
        "scale": (model.scale_ or "none") if hasattr(model, "scale_") else None,
        "classes": None if classes is None else listed(classes),
        "features": model.n_features_in_ if recipe is None else recipe.n_features,
        "columns": None if recipe is None else recipe.facts(),
        "text": model.text_recipe_.column if hasattr(model, "text_recipe_") else None,
        "support_rows": None if support is None else len(support),
        "solver": f"{chosen['solver']}: {chosen['why']}" if "solver" in chosen else None,
        "dual_gap": getattr(model, "dual_gap_", None),
        "loo_score": getattr(model, "loo_score_", None),
        "history": history,
        "bytes": folder_bytes(path),
    }


def column_lines(facts: Mapping[str, Any]) -> str:
    """Return the table of the columns among ``facts``, up to `MOST_LINES`; "" if there are none."""
    columns = facts.get("columns") or []
    rows = [(short(each["name"]), each["read_as"], printable(each["values"]), each["gaps"] or "") for each in columns]
    cells = [list(map(str, row)) for row in [HEAD, *rows[:MOST_LINES]]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    more = [f"… and {len(rows) - MOST_LINES} more"] if len(rows) > MOST_LINES else []
    return "\n".join([*lines, *more]) if rows else ""


def checkpoint_facts(record: Record) -> dict[str, Any]:
    """Return the progress of the fit that left a checkpoint. A fit with --resume continues from there."""
    record.check()
    history = record.attributes["history"]
    return {
        "kind": "checkpoint",
        "path": record.path,
        "steps": len(history),
        "history": history,
        "bytes": folder_bytes(record.path),
    }


def search_facts(model: Any) -> dict[str, Any]:
    """Return the settings that a search found and, unless the model is from a file, tried; empty for other models."""
    tried = ("best_index", "search_seconds", "cv_results") if hasattr(model, "cv_results_") else ()
    names = ("best_params", "best_score", "nested_score", *tried)
    return {name: getattr(model, f"{name}_") for name in names if hasattr(model, f"{name}_")}


def search_text(facts: Mapping[str, Any]) -> str:
    """Return a line on what a search found, by `search_facts`; without these the text is empty."""
    if "best_params" not in facts:
        return ""
    best = ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in facts["best_params"].items()
    )
    trials = len(facts["cv_results"]["params"])
    seconds = facts["search_seconds"]
    return (
        f"found {best}: score {facts['best_score']:.4f} by left-out rows, the best of {trials} trials "
        f"(nested score {facts['nested_score']:.4f}), in {seconds['taken']:.0f} s where {seconds['expected']:.0f} s "
        f"were expected\n"
    )


def coverage_lines(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return a line for each coverage: how often sets of classes hold their row's own, or intervals its target."""
    lines = {}
    for coverage, each in facts.get("sets", {}).items():
        held = f"{each['held']:.1%} hold the class of their row, with {each['size']:.3g} classes on average"
        lines[f"sets for {float(coverage):.0%}"] = f"{held}; {each['empty']:.1%} are empty"
    for coverage, each in facts.get("intervals", {}).items():
        held = f"{each['held']:.1%} hold the target of their row"
        lines[f"intervals for {float(coverage):.0%}"] = f"{held}, {each['width']:.4g} wide on average"
    return lines


class Results:
    """Results of an evaluation, which print as a table and a line for each fact."""

    facts: Callable[[], dict[str, Any]]
    table: Callable[[], str]

    def __str__(self) -> str:
        return self.text()

    def text(self, **further: Any) -> str:
        """Return the table and the facts, with ``further`` ones."""
        facts = self.facts()
        told = {name: value for name, value in facts.items() if name not in IN_TABLES}
        return f"{self.table()}\n\n{listing(told | coverage_lines(facts) | further)}"


def folder_bytes(path: str | os.PathLike[str]) -> int:
    """Return the bytes of all files below a folder."""
    return sum(current_storage(location_of(path)).sizes().values())


def plain(value: Any) -> Any:
    """Return facts as values for JSON: NumPy values become Python's, NaN and infinity None, anything else text."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def listing(facts: Mapping[str, Any]) -> str:
    """Return one line for each fact, without the tables of history and columns, and facts that are None."""
    tables = ("columns", "history")
    shown = {key: _cell(key, value) for key, value in facts.items() if key not in tables and value is not None}
    width = max(map(len, shown), default=0)
    return "\n".join(f"{key.replace('_', ' '):<{width}}  {value}" for key, value in shown.items())


def _cell(key: str, value: Any) -> str:
    if key == "bytes":
        return format_bytes(value)
    if key == "classes":
        return _some([f"{short(c['label'])} ({c['rows']} rows)" if isinstance(c, dict) else short(c) for c in value])
    if isinstance(value, Mapping):
        told = [f"{short(name)} {_cell(name, each)}" for name, each in value.items() if each is not None]
        return _some(told, 30)  # recalls of classes; parameters of an estimator are fewer
    if isinstance(value, list):
        return _some([short(each) for each in value])
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))


def _some(values: list[str], most: int = 8) -> str:
    """Return the first few of many values as text, and how many there are."""
    more = f", … ({len(values)})" if len(values) > most else ""
    return ", ".join(values[:most]) + more
