"""Two pictures of a report: margins of test rows, and what counts."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

import dask_odm as odm

data = load_breast_cancer(as_frame=True)
X, y = data.data.iloc[:, :8], data.target
model = odm.ODMClassifier(random_state=0).fit(X[::2], y[::2])
new, truth = X[1::2], y[1::2]
margins = (2 * truth - 1) * model.decision_function(new)

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
odm.plot_margin_distribution(margins, model.theta, left, bins=40)
found = odm.permutation_importance(model, new, truth, random_state=0)
order = np.argsort(found.importances_mean)
lost = pd.Series(found.importances_mean, X.columns).iloc[order]
right.barh(lost.index, lost)
right.set(title="Which features matter", xlabel="accuracy lost without")
