"""What a row costs by its margin: an ODM beside the squared hinge."""

import numpy as np
from matplotlib import pyplot as plt

theta, upsilon = 0.2, 0.2
margin = np.linspace(-0.5, 2.5, 301)
below = np.maximum(0, 1 - theta - margin) ** 2
above = np.maximum(0, margin - 1 - theta) ** 2
odm = (below + upsilon * above) / (1 - theta) ** 2
hinge = np.maximum(0, 1 - margin) ** 2

figure, ax = plt.subplots(figsize=(6.5, 3.2))
ax.axvspan(1 - theta, 1 + theta, color="C2", alpha=0.3, label="band")
ax.plot(margin, odm, color="C3", label=f"ODM, θ = {theta}, υ = {upsilon}")
ax.plot(margin, hinge, "--", color="C0", label="squared hinge")
ax.set(xlabel="margin m", ylabel="cost", xlim=(-0.5, 2.5), ylim=(0, 2.4))
ax.legend()
