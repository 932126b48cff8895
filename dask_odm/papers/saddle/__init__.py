"""Nearest points of two reduced hulls (ν-SVM, hard margin): Saddle-SVC, Saddle-DSVC, Gilbert, and Wolfe's method.

Source: Jin, Huang, Li, *SVM via Saddle Point Optimization: New Bounds and Distributed Algorithms*. Its saddle-point
method, with clients or without, is `saddle_point`; Gilbert's algorithm `nearest_point`; clients' rows and rounds
`client_rows` and `client_hulls`; whether the hulls overlap `feasibility`. Wolfe's method of 1976, the default, is also
in `nearest_point`.

Wrong in print: footnote 3 divides rows by their largest squared norm; the transform lacks 1/√d; rule 2 has no index if
no weight is above its cap; the footnote's offset is right for the hard margin only (for the ν-SVM it lies between two
order statistics of the scores); appendix D's ratio is inverted; β, which γ depends on, cannot be known beforehand (here
γ falls with the gap).
"""
