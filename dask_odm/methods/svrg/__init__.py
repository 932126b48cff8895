"""Stochastic variance-reduced gradients: SVRG, CSVRG, and DSVRG on a ring of workers."""
