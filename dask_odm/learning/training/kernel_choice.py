"""The kernel that an estimator's parameters ask for, made once the statistics of the rows are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.store.statistics import Statistics
from dask_odm.errors import InputError
from dask_odm.kernels import from_parameters
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.user_kernels import CallableKernel
from dask_odm.typing import Array


@dataclass(frozen=True)
class KernelChoice:
    """A kernel by name or the user's own function, with the scaling of its rows.

    ``gamma`` "scale" and "auto" depend on the data. ``bias`` is added to every kernel value.
    """

    kernel: str | Callable[[Array, Array], Array]
    gamma: float | str = "scale"
    degree: int = 3
    coef0: float = 1.0
    bias: float = 0.0
    scale: str | None = None

    @classmethod
    def of(cls, model: Any, bias: float = 0.0) -> KernelChoice:
        """Return the kernel of an estimator whose parameters were checked."""
        gamma = model.gamma if isinstance(model.gamma, str) else float(model.gamma)
        return cls(model.kernel, gamma, int(model.degree), float(model.coef0), bias, model.scale)

    @property
    def is_named(self) -> bool:
        """Whether workers can compute the kernel from rows: it is neither precomputed nor the user's function."""
        return isinstance(self.kernel, str) and self.kernel != "precomputed"

    def require_named(self, what: str) -> None:
        """Raise InputError if the kernel works in this process's memory only."""
        if not self.is_named:
            name = "a callable kernel" if callable(self.kernel) else "kernel='precomputed'"
            raise InputError(f"{name} needs rows in memory, not {what}; choose a kernel by its name.")

    def scaling(self, statistics: Statistics, *, sparse: bool = False) -> Scaling:
        """Return the scaling of rows. ``sparse`` rows of the linear kernel are not centred by "standard".

        This is scikit-learn's ``with_mean=False``: zeros stay zeros. Other kernels see dense rows anyway.
        """
        found = Scaling.from_statistics(statistics, self.scale, centre=self.kernel in ("rbf", "laplacian"))
        unmoved = sparse and self.scale == "standard" and self.kernel == "linear"
        return replace(found, shift=np.zeros_like(found.shift)) if unmoved else found

    def make(self, statistics: Statistics) -> Kernel:
        """Return the kernel on scaled rows; raise InputError if features or gamma are out of range."""
        scaling = self.scaling(statistics)
        variance = scaling.variance(statistics)
        varies = bool(((statistics.maximum > statistics.minimum) & (scaling.factor != 0)).any())
        underflows = varies and not variance > 0 and not callable(self.kernel)
        if not np.isfinite(scaling.factor).all() or not np.isfinite(variance) or underflows:
            raise InputError(
                "features are too large, too small or too uneven to be scaled; multiply them by a power of ten first."
            )
        if callable(self.kernel):
            return CallableKernel(self.bias, self.kernel)
        parameters: dict[str, Any] = {"name": self.kernel, "bias": self.bias}
        if self.kernel != "linear":
            parameters["gamma"] = gamma = self._gamma(scaling, statistics)
            if not float(np.finfo(np.float32).tiny) <= gamma <= float(np.finfo(np.float32).max):
                raise InputError(f"gamma={gamma:.3g} is out of range: scale the features, with scale='minmax'.")
        if self.kernel == "poly":
            parameters |= {"degree": self.degree, "coef0": self.coef0}
        return from_parameters(parameters)

    def _gamma(self, scaling: Scaling, statistics: Statistics) -> float:
        d = len(statistics.mean)
        if self.gamma == "auto":
            return 1.0 / d
        if self.gamma == "scale":
            variance = scaling.variance(statistics)
            return 1.0 / (d * variance) if variance > 0 else 1.0
        return float(self.gamma)
