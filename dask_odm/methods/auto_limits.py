"""The thresholds by which ``solver="auto"`` and the solvers choose their way, in one record."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AutoLimits:
    """Where one way to learn gives way to another. Each line says what measured it."""

    # multiplications of a pass over the whole kernel for "exact": some seconds of a fit (benchmarks/real_data.py)
    exact_work: int = 1 << 33
    # rows up to which "exact" leaves groups out in less than ten times the time of "landmark"; it takes rows³
    # multiplications: at 12,000 rows of 10 features 88 s where landmarks take 1 s
    grouped_rows: int = 5000
    # multiplications, rows³ of every class, from which a user who asks to leave rows out of "exact" is warned of
    # minutes: 8e11 took 3 s, and 7e13 did not end in 600 s
    leaving_work: int = 10**13
    # entries of the kernel matrix from which on a user who asks for "exact" is warned of hours
    many_entries: int = 10**10
    # kernel values of a store's rows at the landmarks up to which the rows are read into memory: 2 GiB in float64
    read_values: int = 1 << 28
    # multiplications for the kernel values of all pairs that take some seconds (benchmarks/many_classes.py)
    pairs_work: int = 1 << 36
    # rows per class from which pairs leave rows out about as soon as one-vs-rest, and as well (benchmarks/MEASURED.md)
    class_rows: int = 125
    # bytes of matrices and model of all pairs that "auto" takes if no limit is set
    pairs_bytes: int = 1 << 30
    # rows of a pair whose kernel matrix is formed; larger ones take longer than landmarks (benchmarks/many_classes.py)
    pair_rows: int = 6000
    # bytes of sparse rows that are made dense for pairs
    dense_bytes: int = 1 << 28
    # Nyström features of many classes that are kept for descent: 512 MiB in float64 (benchmarks/many_classes.py)
    descent_values: int = 1 << 26
    # bytes of the coordinates of machines that learn at once over landmarks; a sum of a pass has as many
    machine_bytes: int = 8 << 20
    # bytes of the means of classes for preconditioners, of their samples and factors
    means_bytes: int = 512 << 20
    # rows per landmark from which a machine's factor costs less than the products that it saves
    means_rows: int = 4
    # times rows / mean ‖x‖²: a larger λ takes hundreds of passes over scaled texts, which a warning says
    large_lam: float = 100.0
    # times the γ of a search over landmarks: few landmarks cannot show what a narrow kernel gains
    narrower: float = 8.0
    # share of the rows outside the largest class, below which a search has found next to nothing
    found_nothing: float = 0.05
    # rows, at most, of which a part is learned in trials of solvers, and the rest predicted: half a second of a fit
    # of five (benchmarks/choices.py)
    trial_rows: int = 1 << 16
    # of so many parts of rows and landmarks a trial has one: of 4, cells have too few rows, and 2 take twice the time
    trial_part: int = 3
    # rows on which solvers differ, as a share of those outside the largest class, up to which the quicker may be taken
    agreeing: float = 0.05
    # passes of a trial of landmarks, times classes but one, from which agreeing cells are quicker: at 22 to 170 they
    # took .1 to .7 of the processor time, at 4 to 13 up to 4 times (benchmarks/flat.py)
    many_passes: int = 22
    # cells that settings are tried on
    trial_cells: int = 3


AUTO = AutoLimits()
