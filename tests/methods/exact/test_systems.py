"""The system of a step: one preconditioner after another ends at the solution, and its scores cost no product."""

import numpy as np

from dask_odm.methods.exact.systems import ActiveSystem


class Counted:
    """A matrix that counts the products with it."""

    def __init__(self, K: np.ndarray) -> None:
        self.K, self.n, self.products = K, len(K), 0

    def matvec(self, v: np.ndarray) -> np.ndarray:
        self.products += 1
        return self.K @ v


def test_one_preconditioner_goes_on_where_the_other_ended():
    rng = np.random.default_rng(0)
    B, root, b = rng.normal(size=(60, 60)), rng.uniform(0.1, 2.0, 60), rng.normal(size=60)
    gram = Counted(B @ B.T)
    A = np.eye(60) + root[:, None] * gram.K * root
    system = ActiveSystem(gram.matvec, root, b)
    system.go_on(lambda r: r, least=1e-16, most=5)
    assert system.products == gram.products == 5
    np.testing.assert_allclose(system.left, b - A @ system.z, atol=1e-9)
    inverse = np.linalg.inv(A)
    system.go_on(lambda r: inverse @ r, least=1e-16, most=9)
    assert 5 < system.products == gram.products < 9
    np.testing.assert_allclose(system.z, np.linalg.solve(A, b), atol=1e-8)
    np.testing.assert_allclose(system.solution(False).Kx, gram.K @ (root * system.z), atol=1e-8)
