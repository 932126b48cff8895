"""Scenarios found by reading, on small sizes; run with a name."""
import sys, os, faulthandler, tempfile, warnings
sys.path[:0]=['/tmp/w/review/tests','/tmp/w/review']
faulthandler.dump_traceback_later(int(os.environ.get('T','60')), exit=True)
import numpy as np, dask
from dask.system import CPU_COUNT
from dask_odm import ODMClassifier
from dask_odm.solvers import Cells
from pathlib import Path
S={"gamma":3.0,"lam":1e4,"upsilon":.2,"theta":.2,"tol":1e-2,"random_state":0,"scale":None}
def board(n,k=2,seed=0):
    rng=np.random.default_rng(seed); X=rng.random((n,2)); return X,(np.floor(4*X).astype(int).sum(axis=1)%k)
def main(what):
    if what=='pairs':
        X,y=board(1500,3)
        for scheme in ('ovr','ovo'):
            try:
                ODMClassifier(**S,solver=Cells(1500),multi_class=scheme,memory_limit=CPU_COUNT*50_000_000).fit(X,y); print(scheme,'fits')
            except Exception as e: print(scheme,type(e).__name__,str(e)[:300])
    if what=='loo':
        rng=np.random.default_rng(0); X=rng.random((2000,2)); y=rng.integers(0,2,2000)
        for loo in (False,True):
            try:
                ODMClassifier(**S|{'lam':10.},solver=Cells(2000),loo=loo,memory_limit=CPU_COUNT*70_000_000).fit(X,y); print(loo,'fits')
            except Exception as e: print(loo,type(e).__name__,str(e)[:300])
    if what in ('client','held'):
        import dask_odm.learning.training.memory_data as md
        import dask_odm.learning.distributed_products as dp
        md.WORKER_ROWS=50
        from small_stores import store_of
        from distributed import Client, LocalCluster
        X,y=board(400)
        old=md.products_of_file
        def told(*a,**k):
            print('workers are asked for products of a cell',flush=True); return old(*a,**k)
        md.products_of_file=told
        with tempfile.TemporaryDirectory() as t, LocalCluster(n_workers=1,threads_per_worker=1,processes=False,dashboard_address=None) as c, Client(c):
            if what=='held':
                ODMClassifier(**S,solver=Cells(100)).fit(X,y)
            else:
                p=store_of(Path(t)/'r.zarr',X,y,chunk_rows=100).path
                with dask.config.set({"dask_odm.read-into-memory":0}): ODMClassifier(**S,solver=Cells(100)).fit(p)
            print('done')
    if what=='zeros':
        # 96 % equal rows: nothing divides the node, though the rest differ
        from dask_odm.methods.cells.growing import grow
        rng=np.random.default_rng(0); X=np.zeros((10000,5)); X[:400]=rng.normal(size=(400,5))
        tree,_,_=grow(X,50,0); c=tree(X); print('cells',tree.count,'most distinct rows in a cell',max(len(np.unique(X[c==k],axis=0)) for k in range(tree.count)))
    if what=='narrow':
        import tracemalloc
        from dask_odm.methods.cells import workers as w
        from dask_odm.learning.training.memory_data import MemoryData
        from dask_odm.learning.training.run import FitRun
        n=400_000; rng=np.random.default_rng(0); X=rng.random((n,2)).astype(np.float32); y=np.where(np.floor(4*X).astype(int).sum(axis=1)%2,1.,-1.)
        model=ODMClassifier(**S,solver=Cells(4000)); run=FitRun.of(model); fit=model._settings(run)
        from dataclasses import replace
        # stop before any cell is solved
        class Stop(Exception): pass
        def stop(*a,**k): raise Stop
        w.run_threads=stop
        data=MemoryData.of(run,X,y,np.ones(n),(1.,1.))
        st=w.CellSettings(replace(fit,own=None),(1.,1.),False,float(n),4000,0.0)
        tracemalloc.start()
        try: w.solve_bin(data,st,0,1)
        except Stop: pass
        print('peak of the tree and of numbers, bytes a row', tracemalloc.get_traced_memory()[1]/n, 'projected for all of a bin', 3*2*4)
    if what=='cv':
        from dask_odm import ODMClassifierCV
        X,y=board(2000); cv=[(np.flatnonzero(X[:,0]<.5),np.flatnonzero(X[:,0]>=.5))]
        for solver in ('auto',Cells(300)):
            try: print(ODMClassifierCV(solver=solver,cv=cv,gammas=[3.,30.],lams=[1e4],upsilons=[.2],thetas=[.2],random_state=0).fit(X,y).best_params_)
            except Exception as e: print(type(e).__name__,e)
main(sys.argv[1])
