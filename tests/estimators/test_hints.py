"""What users of scikit-learn bring along: the message names the way that works, and that way works."""

import pickle
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from dask_odm import InputError, MDDKernelRidge, ODMClassifier, ODMClassifierCV, OneClassODM, SaddleSVC, ingest
from dask_odm.datasets import make_shells
from dask_odm.solvers import SODM


@pytest.fixture(scope="module")
def rows(make_rings):
    X, y = make_rings(n=80)
    return X.astype(np.float32), y


def test_a_parameter_of_others_is_told_by_what_takes_its_place():
    with pytest.raises(InputError, match=r"ODMClassifier has no parameter 'C': lam is .*docs/coming_from\.md"):
        ODMClassifier(C=1)
    with pytest.raises(InputError, match="no parameter 'C': lam"):
        ODMClassifier().set_params(C=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        ODMClassifier(colour=1)
    with pytest.raises(TypeError, match="'C'"):
        SaddleSVC(C=1)
    model = ODMClassifier(lam=3.0)
    assert clone(model).lam == pickle.loads(pickle.dumps(model)).lam == 3.0


def test_predictions_of_a_frame_keep_the_lengths_that_it_knows(rows):
    pandas, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    plain = pandas.DataFrame(rows[0], columns=["a", "b"])
    frame, model = dd.from_pandas(plain, npartitions=3), ODMClassifier().fit(plain, rows[1])
    found = model.predict(frame.assign(b=frame.b * 1.0))
    assert found.shape == (80,)
    assert sum(found.chunks[0]) == 80
    np.testing.assert_array_equal(found.compute(), model.predict(plain))
    some = model.predict(frame[frame.a > 0])
    assert np.isnan(some.shape[0])
    assert len(some.compute()) == (rows[0][:, 0] > 0).sum()


@pytest.mark.parametrize(("parameters", "said"), [
    ({"solver": SODM(stop_at=4)}, r"stop_at=4 changes nothing: 80 rows make one partition.*SODM\(n_partitions=…\)"),
    ({"solver": SODM(stop_at=2, early_stop=True)}, r"stop_at=2 and early_stop=True change nothing"),
    ({"lam": 1e-3}, r"next to nothing was learned with lam=0\.001"),
    ({"kernel": "linear", "lam": 1e-4}, r"next to nothing was learned"),
])  # fmt: skip
def test_what_changes_nothing_is_said_once(rows, parameters, said, caplog):
    ODMClassifier(**parameters).fit(*rows)
    (message,) = caplog.messages
    assert re.match(said, message)


def test_features_that_say_nothing_are_said_to_and_no_larger_lam_is_advised(caplog):
    X, y = np.tile([[0.0], [0.0], [1.0], [1.0]], (20, 1)), np.tile([0, 1], 40)
    ODMClassifier(lam=1e5).fit(X, y)
    (message,) = caplog.messages
    assert re.match(r"next to nothing was learned with lam=100000: .*The features seem to say nothing", message)


def test_a_column_that_hides_the_others_is_named(caplog, tmp_path):
    X, y = make_shells(400, 4, noise=0.2)
    frame = pd.DataFrame(X).add_prefix("x").assign(id=np.arange(400))
    hidden = ODMClassifier(lam=30.0, scale=None).fit(frame, y)
    assert re.search(
        r"Column 'id' has nearly all of the variance.*scale='standard'.*leave it out, as by drop= \(--drop\)",
        caplog.text,
    )
    assert "larger lam" not in caplog.text
    for advised in (
        ODMClassifier(lam=30.0, scale="standard").fit(frame, y).score(frame, y),
        ODMClassifier(lam=30.0, scale=None).fit(frame.drop(columns="id"), y).score(frame.drop(columns="id"), y),
    ):
        assert advised > hidden.score(frame, y) + 0.1
    caplog.clear()
    ODMClassifier("linear", lam=1e-4, scale=None).fit(ingest((frame, y), tmp_path / "a.zarr"))
    assert "Column 'id' has nearly all" in caplog.text
    caplog.clear()
    ODMClassifier(lam=1e-3, scale="standard").fit(frame, y)
    assert "Choose a larger lam, such as 'auto', which is 800, twice the number of rows" in caplog.text


@pytest.mark.parametrize("classes", [2, 3])
def test_a_column_that_hides_the_others_is_named_whatever_was_learned(caplog, classes):
    """Rows that are sorted are learned by their numbers."""
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(90, 2)), columns=["a", "b"])
    y = np.arange(90) * classes // 90
    ODMClassifier(scale=None).fit(frame.assign(b=5 * frame["b"]), y)
    ODMClassifier(scale="standard").fit(frame.assign(id=np.arange(90), c=1.0), y)
    ODMClassifier("linear", scale=None).fit(frame.assign(id=np.arange(90)), y)
    ODMClassifier(scale=None).fit(frame[["a"]].assign(c=1.0), y)
    assert not caplog.messages
    ODMClassifier(scale=None).fit(frame.assign(id=np.arange(90)), y)
    OneClassODM(scale=None).fit(frame.assign(id=np.arange(90)))
    ODMClassifierCV(scale=None, lams=[100.0], gammas=[1.0], cv=None).fit(frame.assign(id=np.arange(90)), y)
    MDDKernelRidge().fit(frame.assign(id=np.arange(90)), y)
    SaddleSVC(kernel="rbf").fit(frame.assign(id=np.arange(90)), y)
    assert len(caplog.messages) == 5
    assert all(re.match("Column 'id' has nearly all of the variance", each) for each in caplog.messages)


NAMED = "have nearly all of the variance"
HIDDEN = {
    "two": ([1000.0, 900.0, 1.0, 1.0, 1.0], f"Columns 'a' and 'b' together {NAMED}.*, leave them out"),
    "three": ([1.0, 500.0, 900.0, 1.0, 800.0], f"Columns 'b', 'c' and 'e' together {NAMED}"),
    "one of them alone": ([1e5, 900.0, 1.0, 1.0, 1.0], "Column 'a' has nearly all of the variance"),
    "four": ([1000.0, 900.0, 800.0, 700.0, 1.0], None),
    "like spread": ([1.0, 2.0, 3.0, 0.5, 1.0], None),
}


@pytest.mark.parametrize("case", HIDDEN)
def test_a_few_columns_that_together_hide_the_others_are_named(caplog, case):
    spread, message = HIDDEN[case]
    X = np.random.default_rng(0).normal(size=(90, 5)) * spread
    model = ODMClassifier(scale=None).fit(pd.DataFrame(X, columns=list("abcde")), np.arange(90) % 2)
    found = [each for each in caplog.messages if "nearly all of the variance" in each]
    assert model.scale_ is None
    assert len(found) == (message is not None)
    assert message is None or re.match(message, found[0])


def test_columns_of_0_and_1_hide_no_rare_one(caplog):
    """Rare ones have a thousandth of the variance."""
    column = np.random.default_rng(0).choice(5, 4000, p=[0.495, 0.495, 0.008, 0.001, 0.001])
    for X in (np.eye(5)[column], np.eye(5)[column] * 255.0):
        ODMClassifier(scale=None, solver="landmark").fit(X, column > 0)
    assert not caplog.messages


def test_what_was_asked_for_is_not_commented(rows, caplog):
    ODMClassifier(solver=SODM(4, stop_at=2)).fit(*rows)
    ODMClassifier(solver=SODM(1, early_stop=True)).fit(*rows)
    assert caplog.messages == []
