"""Whether probabilities and sets of classes keep their word."""

import matplotlib.pyplot as plt
import numpy as np

import dask_odm as odm

X, y = odm.datasets.make_shells(2000, 5, noise=0.4)
X_new, y_new = odm.datasets.make_shells(8000, 5, noise=0.4, start=2000)
model = odm.ODMClassifier(scale="standard", loo=True).fit(X, y)

figure, (left, right) = plt.subplots(1, 2)
chance = model.predict_proba(X_new)[:, 1]
happened = y_new == model.classes_[1]
place = np.digitize(chance, np.linspace(0, 1, 11)[1:-1])
bins = [place == each for each in range(10) if (place == each).any()]
said = [chance[each].mean() for each in bins]
left.plot([0, 1], [0, 1], color="C3", linestyle="--", label="ideal")
left.plot(said, [happened[each].mean() for each in bins], "o-")
left.set(title="Probabilities", xlabel="said", ylabel="happened")
left.legend()

asked = np.linspace(0.7, 0.99, 8)
held = []
for coverage in asked:
    sets = model.predict_set(X_new, coverage=coverage)
    held.append(np.mean(sets[np.arange(len(sets)), happened.astype(int)]))
right.plot([0.7, 1], [0.7, 1], color="C3", linestyle="--")
right.plot(asked, held, "o-")
right.set(title="Sets of classes", xlabel="asked for")
right.set_ylabel("sets with the true class")
