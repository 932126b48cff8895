"""What `fit` and `predict` refuse, by message; and that what is refused leaves the estimator as it was."""

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GroupKFold

from dask_odm import InputError, MDDRidge, MixingClassifier, ODMClassifier, ODMClassifierCV, OneClassODM, ingest
from dask_odm.estimators.inputs import checks
from estimators.odm_models import SETTINGS
from small_problems import blobs
from small_stores import store_of


def spoilt(X, value, rows, column) -> np.ndarray:
    X = X.copy()
    X[rows, column] = value
    return X


@pytest.mark.parametrize("form", [np.asarray, np.ndarray.tolist, lambda X: da.from_array(X, chunks=20)])
@pytest.mark.parametrize(("value", "what"), [(np.nan, r"missing values \(NaN\)"), (-np.inf, "infinity")])
def test_values_that_are_not_finite_have_a_place(rows, form, value, what):
    X = form(spoilt(rows[0], value, slice(5, 22), 2))
    with pytest.raises(InputError, match=rf"^X holds {what} in column 2 \(17 rows\), first in row 5; drop these"):
        ODMClassifier().fit(X, rows[1])


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("dtype", ["datetime64[s]", "timedelta64[h]"])
def test_arrays_of_times_are_told_the_way_out(rows, lazy, dtype):
    """scikit-learn takes the ticks of their unit, and NaT for a large number."""
    X = (1000 * rows[0]).astype(dtype)
    way_out = r"^X must be numbers\. Got .*64\[.\] instead; pass a frame, whose columns may hold dates\.$"
    with pytest.raises(InputError, match=way_out):
        ODMClassifier().fit(da.from_array(X) if lazy else X, rows[1])
    model = ODMClassifier().fit(pd.DataFrame(X), rows[1])
    assert len(model.predict(pd.DataFrame(X))) == len(X)
    with pytest.raises(InputError, match=way_out):
        ODMClassifier().fit(*rows).predict(da.from_array(X) if lazy else X)


WORDS = {
    "objects": lambda X: X.astype(object),
    "strings": lambda X: X.astype(str),
    "bytes": lambda X: X.astype("S"),
    "strings of any length": lambda X: X.astype(np.dtypes.StringDType()),
}


@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize("limit", [1 << 28, 100])
def test_numbers_that_dask_holds_as_objects_or_words_are_numbers(rows, kind, limit):
    X, y = rows
    lazy = da.from_array(WORDS[kind](X), chunks=(30, 2))
    with dask.config.set({"dask_odm.read-into-memory": limit}):
        model = ODMClassifier(**SETTINGS).fit(lazy, y)
    expected = model.decision_function(X)
    np.testing.assert_array_equal(model.decision_function(lazy), expected)
    np.testing.assert_allclose(ODMClassifier(**SETTINGS).fit(X, y).decision_function(X), expected, atol=1e-6)
    assert model.score(lazy, y) == model.score(WORDS[kind](X), y)


@pytest.mark.parametrize("limit", [1 << 28, 100])
@pytest.mark.parametrize(("value", "message"), [
    ("abc", "could not convert string to float: 'abc'; arrays hold numbers: pass a frame"),
    (None, r"X holds missing values \(NaN\) in column 1"),
    (pd.NA, r"X holds missing values \(NaN\) in column 1"),
])  # fmt: skip
def test_objects_that_are_no_numbers_are_told_alike_by_dask(rows, value, message, limit):
    X, y = rows
    words = X.astype(object)
    words[3, 1] = value
    model = ODMClassifier(**SETTINGS).fit(X, y)
    with dask.config.set({"dask_odm.read-into-memory": limit}):
        for given in (words, da.from_array(words, chunks=(30, 2))):
            for call in (lambda given=given: model.fit(given, y), lambda given=given: np.asarray(model.predict(given))):
                with pytest.raises(InputError, match=f"^(in a block of rows, )?{message}"):
                    call()


@pytest.mark.parametrize("limit", [1 << 28, 100])
@pytest.mark.parametrize("lazy", [False, True])
def test_complex_numbers_are_refused_in_a_line(rows, lazy, limit):
    X = rows[0].astype(complex)
    model = ODMClassifier().fit(*rows)
    given = da.from_array(X) if lazy else X
    with dask.config.set({"dask_odm.read-into-memory": limit}):
        for call in (lambda: model.fit(given, rows[1]), lambda: model.predict(given)):
            with pytest.raises(InputError, match=r"^Complex data not supported: .* Got complex128 instead\.$"):
                call()


def test_frames_without_columns_are_refused_as_arrays_are(rows):
    frame = pd.DataFrame(rows[0]).add_prefix("x")
    model = ODMClassifier().fit(frame, rows[1])
    with pytest.raises(InputError, match=r"Found array with 0 feature\(s\)"):
        ODMClassifier().fit(frame[[]], rows[1])
    with (
        pytest.warns(UserWarning, match="X does not have valid feature names"),
        pytest.raises(InputError, match=r"Found array with 0 feature\(s\)"),
    ):
        model.predict(frame[[]])


def test_only_so_many_columns_are_listed(rows):
    X = np.tile(rows[0], 3)
    X[7] = np.nan
    with pytest.raises(InputError, match=r"column 4 \(1 row\), 4 more, first in row 7"):
        ODMClassifier().fit(X, rows[1])


def test_large_finite_values_are_not_called_infinite(rows):
    huge = np.full((4, 3), 1e308)
    checks.require_finite(huge)  # whose sum is not finite
    with pytest.raises(InputError, match="infinity in column 1"):
        checks.require_finite(spoilt(huge, np.inf, 2, 1))


@pytest.mark.parametrize(("weights", "message"), [
    ({0: "a"}, r"class_weight must be finite and not negative numbers\. Got 'a' for 0"),
    ({0: None}, "Got None for 0"), ({0: -1.0}, "Got -1.0 for 0"), ({1: np.nan}, "Got nan for 1"),
    ({1: np.inf}, "Got inf for 1"),
    ({0: 0}, "all rows with a positive weight are of one class, 1; a classifier needs two"),
    ({0: 0, 1: 0}, "all row weights are zero, given class_weight"),
    ({0: 1.0, 2: 1.0}, r"class_weight names 2, which is not among the classes \[0, 1\]"),
    ({"no": 1.0}, "class_weight names 'no'"),
], ids=str)  # fmt: skip
def test_class_weights_that_are_none(rows, tmp_path, weights, message):
    X, y = rows[0], (rows[1] > 0).astype(int)
    lazy = [da.from_array(a, chunks=(30, *a.shape[1:])) for a in (X, y)]
    for arguments in ((X, y), lazy, [store_of(tmp_path / "a.zarr", X, y).path]):
        with pytest.raises(InputError, match=message):
            ODMClassifier(class_weight=weights).fit(*arguments)


@pytest.mark.parametrize("callbacks", [[3], [print, "a"], (None,)], ids=str)
def test_callbacks_must_be_callable(rows, callbacks):
    with pytest.raises(InputError, match="callbacks must be callables that take an event"):
        ODMClassifier(callbacks=callbacks).fit(*rows)


WEIGHTS = {
    "negative": (lambda n: -np.ones(n), "[Nn]egative"),
    "nan": (lambda n: np.full(n, np.nan), "NaN|finite"),
    "infinite": (lambda n: np.full(n, np.inf), "infinity|finite"),
    "too few": (lambda n: np.ones(n - 1), "sample_weight"),
    "two columns": (lambda n: np.ones((n, 2)), "1D array|must have shape"),
    "nothing": (lambda n: np.zeros(n), "zero"),
    "text": (lambda n: np.full(n, "a"), "could not convert|must be numbers"),
}


@pytest.mark.parametrize("size", [None, 1 << 28, 100], ids=["arrays", "lazy", "spooled"])
@pytest.mark.parametrize("what", WEIGHTS)
def test_weights_that_are_none(rows, monkeypatch, what, size):
    make, message = WEIGHTS[what]
    X, y = rows
    if size is not None:
        monkeypatch.setitem(dask.config.config, "dask_odm", {"read-into-memory": size})
        X, y = (da.from_array(a, chunks=(30, *a.shape[1:])) for a in rows)
    with pytest.raises(InputError, match=message):
        ODMClassifier().fit(X, y, make(90))


@pytest.mark.parametrize("what", ["nan", "infinite", "too few", "two columns", "text"])
@pytest.mark.parametrize("lazy", [False, True])
def test_weights_that_are_none_to_score(rows, what, lazy):
    X, y = (da.from_array(a, chunks=(30, *a.shape[1:])) for a in rows) if lazy else rows
    weight = WEIGHTS[what][0](90)
    with pytest.raises(InputError, match=r"sample_weight|could not convert"):
        ODMClassifier().fit(*rows).score(X, y, weight)


def test_texts_are_told_the_way_out_and_not_repeated():
    with pytest.raises(InputError, match=r"could not convert .{80,100}…; arrays hold numbers: .*TfidfVectorizer\.$"):
        ODMClassifier("linear").fit([["a text of many words " * 100], ["another"]], [0, 1])


def test_type_errors_of_scikit_learn_are_ours_too(rows):
    X = rows[0].astype(object)
    X[0, 0] = {"a": 1}
    with pytest.raises(InputError, match="argument must be") as error:
        ODMClassifier().fit(X, rows[1])
    assert isinstance(error.value, TypeError)


OVERFLOWS = pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")


@OVERFLOWS
@pytest.mark.parametrize("gamma", ["scale", 0.5])
@pytest.mark.parametrize("kernel", ["rbf", "poly"])
def test_the_way_out_of_an_overflow(rows, kernel, gamma):
    X = (rows[0] * 1e37).astype(np.float32)
    with pytest.raises(InputError, match=r"scale='minmax'|power of ten"):
        ODMClassifier(kernel, gamma=gamma, scale=None).fit(X, rows[1])
    assert ODMClassifier(kernel, gamma=gamma, scale="minmax").fit(X, rows[1]).score(X, rows[1]) > 0.8


@OVERFLOWS
def test_rows_far_larger_than_those_trained_on(rows):
    model = ODMClassifier("poly").fit(rows[0].astype(np.float32), rows[1])
    X = np.full((5, 3), 1e-3, np.float32)
    X[3:] = 1e37
    for given in (X, da.from_array(X)):
        with pytest.raises(InputError, match=r"kernel of 2 rows overflows float32, first in row 3 .*minmax"):
            np.asarray(model.predict(given))


def test_newton_does_not_ask_for_sweeps():
    ended = "(stopped|Rounding leaves the model, as it predicts,) at a relative gap"
    with pytest.warns(ConvergenceWarning, match=ended) as heard:
        ODMClassifier(lam=1e12, tol=1e-300).fit(*blobs(300, 3))  # too many to be solved to rounding
    assert "max_iter" not in str(heard[0].message)


@pytest.mark.parametrize("form", [np.asarray, csr_array, pd.DataFrame], ids=["array", "sparse", "frame"])
@pytest.mark.parametrize("method", ["predict", "decision_function"])
def test_no_rows_are_refused_as_scikit_learn_does(rows, form, method):
    X, y = rows
    model = ODMClassifier().fit(X, y)
    with pytest.raises(InputError, match="Found array with 0 sample"):
        getattr(model, method)(form(X)[:0])


def _masked(X):
    """Rows of which one entry in ten of column 1 is masked, with a number behind the mask that is far away."""
    found = np.ma.array(X, mask=False, copy=True)
    found[::10, 1] = -9999
    found[::10, 1] = np.ma.masked
    return found


def _hidden(X):
    """Masked chunks of an array that Dask takes for a plain one."""
    lazy = da.from_array(_masked(X), chunks=(20, 3))
    return da.map_blocks(lambda block: block, lazy, dtype=X.dtype, meta=np.empty((0, 0), X.dtype))


MASKED = {
    "NumPy": _masked,
    "whole numbers": lambda X: _masked(np.round(10 * X).astype(int)),
    "a list": lambda X: list(_masked(X)),
    "Dask": lambda X: da.from_array(_masked(X), chunks=(20, 3)),
    "Dask, unknown to it": _hidden,
    "xarray": lambda X: xr.DataArray(_masked(X), dims=("sample", "feature")),
    "lazy xarray": lambda X: xr.DataArray(_hidden(X), dims=("sample", "feature")),
}


@pytest.mark.parametrize("form", MASKED)
def test_what_is_masked_is_missing(rows, form, tmp_path):
    X, y = rows
    masked = MASKED[form](X)
    model = ODMClassifier(**SETTINGS).fit(X, y)
    for call in (
        lambda: ODMClassifier().fit(masked, y),
        lambda: OneClassODM().fit(masked),
        lambda: MDDRidge().fit(masked, y),
        lambda: np.asarray(model.predict(masked)),
        lambda: np.asarray(model.decision_function(masked)),
        lambda: model.score(masked, y),
        lambda: ingest((masked, y), tmp_path / "a.zarr"),
    ):
        with pytest.raises(InputError, match="missing values"):
            call()
    with dask.config.set({"dask_odm.read-into-memory": 1}), pytest.raises(InputError, match="missing values"):
        ODMClassifier().fit(masked, y)
    assert ingest((masked, y), tmp_path / "b.zarr", drop_missing=True).rows == 81


def test_a_mask_that_hides_nothing_changes_nothing(rows):
    X, y = rows
    plain = ODMClassifier(**SETTINGS).fit(X, y)
    model = ODMClassifier(**SETTINGS).fit(np.ma.array(X), np.ma.array(y), sample_weight=np.ma.array(np.ones(len(y))))
    np.testing.assert_array_equal(model.decision_function(np.ma.array(X)), plain.decision_function(X))


@pytest.mark.parametrize(("lazy", "lazy_rows"), [(False, False), (True, True), (True, False)])
@pytest.mark.parametrize("labels", [np.array([3, 7]), np.array([0.5, 1.5]), np.array(["no", "yes"])])
def test_what_is_masked_in_labels_and_weights_is_missing(rows, labels, lazy, lazy_rows, tmp_path):
    X, y = rows
    known = np.arange(len(y)) % 5 > 0
    column = np.ma.array(np.where(known, labels[(y > 0).astype(int)], labels[0]), mask=~known)
    weight = np.ma.array(np.where(known, 1.0, -9999.0), mask=~known)
    given = [da.from_array(each, chunks=20) if lazy else each for each in (column, weight)]
    rows_given = da.from_array(X, chunks=(30, 3)) if lazy_rows else X
    with pytest.raises(InputError, match=r"y holds missing labels .* 18 rows, first in row 0; drop these rows"):
        ODMClassifier().fit(rows_given, given[0])
    with pytest.raises(InputError, match="sample_weight contains NaN"):
        ODMClassifier().fit(rows_given, y, sample_weight=given[1])
    with pytest.raises(InputError, match=r"missing values in the label, y \(18 rows\)"):
        ingest((rows_given, given[0]), tmp_path / "a.zarr")
    with pytest.raises(InputError, match=r"missing values in the weight \(18 rows\)"):
        ingest((rows_given, y), tmp_path / "a.zarr", weight=given[1])
    model = ODMClassifier(**SETTINGS).fit(X[known], column[known])
    expected = model.score(X[known], column[known].data)
    assert model.score(rows_given, given[0]) == pytest.approx(expected)
    assert model.calibrate(rows_given, given[0]).calibration_rows_ == known.sum()
    with pytest.raises(InputError, match="sample_weight must be finite"):
        model.score(rows_given, given[0].data if not lazy else column.data, sample_weight=given[1])


@pytest.mark.parametrize(("lazy", "lazy_rows"), [(False, False), (True, True), (True, False)])
def test_masked_targets_do_not_count(rows, lazy, lazy_rows):
    X, y = rows
    target = np.ma.array(np.where(np.arange(len(y)) % 5, y, 1e6), mask=np.arange(len(y)) % 5 == 0)
    model = MDDRidge().fit(X, y)
    known = ~target.mask
    given = da.from_array(target, chunks=20) if lazy else target
    assert model.score(da.from_array(X, chunks=(30, 3)) if lazy_rows else X, given) == pytest.approx(
        model.score(X[known], y[known])
    )
    with pytest.raises(InputError, match="missing labels"):
        MDDRidge().fit(X, given)


def test_masked_groups_and_senders_are_missing(rows):
    X, y = rows
    groups = np.ma.array(np.arange(len(y)) % 6, mask=np.arange(len(y)) == 4)
    for call in (
        lambda: ODMClassifier(loo=True).fit(X, y, groups=groups),
        lambda: ODMClassifierCV(cv=GroupKFold(3)).fit(X, y, groups=groups),
    ):
        with pytest.raises(InputError, match=r"groups must be one for each row, or name|groups: missing"):
            call()
    with pytest.raises(InputError, match="shard: missing for 1 rows, first for row 4; give one"):
        MixingClassifier().fit(X, y, shard=groups)
