"""Models of all pairs of classes, in which a row of a class supports the machines of this class alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dask_odm.models.kernel_model import KernelModel, Portion
from dask_odm.models.model import starts_divide
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False, kw_only=True)
class PairModel(KernelModel):
    """A kernel model of one-against-one machines, each over rows of its two classes.

    Support rows are in the order of the classes: class c has ``starts[c]:starts[c + 1]``. As in LIBSVM,
    ``coefficients`` are (classes − 1, n_support), since a row has one for each other class, in their order.
    """

    starts: Array  # (classes + 1,), int64
    kind: ClassVar[str] = "pairs"
    parts: ClassVar[tuple[str, ...]] = (*KernelModel.parts, "starts")

    @property
    def machine_coefficients(self) -> Array:
        out = np.zeros((len(self.intercept), self.coefficients.shape[1]))
        for some, machines, coefficients in self._portions(0, out.shape[1]):
            out[machines, some] = coefficients
        return out

    def _portions(self, first: int, last: int) -> Iterator[Portion]:
        classes = len(self.starts) - 1  # `pairs` is 0 where machines' values are asked for
        for code in range(classes):
            begin, end = np.clip(self.starts[code : code + 2], first, last).tolist()
            if begin < end:
                some = slice(begin, end)
                yield some, machines_of_class(code, classes), self.coefficients[:, some]

    def arrays(self) -> dict[str, Any]:
        return super().arrays() | {"starts": self.starts}

    @classmethod
    def from_parts(cls, description: dict[str, Any], arrays: dict[str, Any]) -> PairModel:
        """Build the model from its `arrays` and `description`; raise ValueError if they do not fit each other."""
        starts = arrays["starts"]
        found = cls._checked_parts(description, arrays, len(starts) - 2)
        pairs = found["pairs"]
        if not pairs or not starts_divide(starts, pairs, found["support"].shape[0]):
            raise ValueError("classes that do not divide the support vectors")
        return cls(**found, starts=starts)


def machines_of_class(code: int, classes: int) -> NDArray[np.int64]:
    """Return the numbers of a class's machines (classes − 1,), in the order of the other classes."""
    others = np.delete(np.arange(classes), code)
    low, high = np.minimum(others, code), np.maximum(others, code)
    return low * (2 * classes - low - 1) // 2 + high - low - 1
