"""SODM, the merging tree of stratified partitions, and its rivals cascade, DiP and DC.

Sources: Wang, Cao, Zhang, Shi, Jin, *Scalable Optimal Margin Distribution Machine*, IJCAI-23, and its earlier version
*Distributed Optimal Margin Distribution Machine*. Strata and partitions (section 3.2) are in
`dask_odm.engine.partitioners`, algorithm 1 is `workers`, a node and its merge rule `node_workers`, the dual problem of
a partition `partition_solver`, the rivals of section 4.1 `recipe`.

Wrong in print: a merger starts from its children's plain concatenation, too large by the fan-in (divided here); theorem
1's second bound lacks a factor of ½; figures 1 and 3 say training accuracy for test accuracy. The published code never
solves the root, and returns the mean of four models.
"""
