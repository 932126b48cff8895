"""SODM's linear acceleration: SVRG, CSVRG, and DSVRG on a ring of workers.

Source: Wang, Cao, Zhang, Shi, Jin, *Scalable Optimal Margin Distribution Machine*, IJCAI-23, section 3.3 and algorithm
2. The stochastic steps and CSVRG's coreset are `solver`, those over sparse rows `sparse_steps`, the ring `workers`.

Wrong in print: algorithm 2 never refills the sets R_j that workers draw rows from, so that its steps would end after
one pass; here all are refilled when every one is empty. The paper cited for CSVRG was not at hand; `solver` says how it
is read. It stalls at the optimum of its coreset.
"""
