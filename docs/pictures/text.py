"""Words that speak for one topic or the other, by a linear model."""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

import dask_odm as odm

words = {
    "cooking": "stir bake simmer taste salt flour",
    "sailing": "mast tide harbour knot wind salt",
}
texts, topics = [], []
rng = np.random.default_rng(0)
for topic, some in words.items():
    for _ in range(100):
        texts.append(" ".join(rng.choice(some.split(), 4)))
        topics.append(topic)
vectors = TfidfVectorizer()
X = vectors.fit_transform(texts)
model = odm.ODMClassifier("linear", lam=200).fit(X, np.array(topics))

figure, ax = plt.subplots()
order = np.argsort(model.coef_.ravel())
weights = model.coef_.ravel()[order]
colours = np.where(weights > 0, "C0", "C1")
ax.barh(vectors.get_feature_names_out()[order], weights, color=colours)
ax.axvline(0, color="C3", linewidth=1)
ax.set_xlabel("← cooking · weight of the word · sailing →")
