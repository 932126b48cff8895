"""Recipes of columns: their features are those of scikit-learn's encoders, and what cannot be one is refused."""

import json
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import OneHotEncoder

from dask_odm import Store, StoreError, ingest
from dask_odm.data.store.column_recipe import Column, ColumnRecipe
from dask_odm.data.store.layout import crc32c
from small_stores import forge

WORDS = Column("colour", "words", gaps=2, tells_gaps=True, levels=("red", "blue"), more_levels=3)
AGE = Column("age", "number", gaps=1, tells_gaps=True, fill=30.0, least=1.0, most=90.0)
DATE = Column("day", "date", fill=86400.0, most=864000.0, cycles=("hour", "weekday", "month"))
RECIPE = ColumnRecipe((AGE, WORDS, Column("name", "id"), DATE, Column("well", "boolean", most=1.0)))


def test_words_become_those_of_a_one_hot_encoder():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, 50)  # red, blue, another, a gap
    values = np.array([0.0, 1.0, -1.0, np.nan])[codes]
    expected = OneHotEncoder(categories=[np.arange(4)], sparse_output=False).fit_transform(codes[:, None])
    np.testing.assert_array_equal(ColumnRecipe((WORDS,)).encode(values[:, None]), expected)


def test_words_that_have_no_feature_are_zeros():
    plain = replace(WORDS, tells_gaps=False, more_levels=0)
    np.testing.assert_array_equal(
        ColumnRecipe((plain,)).encode(np.array([[-1.0], [np.nan], [1.0]])), [[0, 0], [0, 0], [0, 1]]
    )


def test_gaps_of_numbers_are_filled_and_told():
    found = ColumnRecipe((AGE,), "float64").encode(np.array([[5.0], [np.nan]]))
    np.testing.assert_array_equal(found, [[5.0, 0.0], [30.0, 1.0]])


def test_dates_are_days_and_places_on_circles():
    moments = pd.date_range("1969-11-05", periods=400, freq="31h")
    seconds = (moments - pd.Timestamp("1970")).total_seconds().to_numpy()
    recipe = ColumnRecipe((replace(DATE, least=seconds[0]),), "float64")
    found = recipe.encode(seconds[:, None])
    shares = [moments.hour / 24 + moments.minute / 1440, moments.day_of_week / 7, (moments.month - 1) / 12]
    circles = [turn(2 * np.pi * share) for share in shares for turn in (np.sin, np.cos)]
    np.testing.assert_allclose(
        found, np.column_stack([(moments - moments[0]) / pd.Timedelta("1D"), *circles]), atol=1e-9
    )
    filled = recipe.encode(np.array([[np.nan]]))  # the median day, at the centre of all circles
    np.testing.assert_allclose(filled[0], [(86400.0 - seconds[0]) / 86400.0, *6 * [0.0]])


def test_features_have_their_columns_and_marks():
    assert RECIPE.names == ("age", "colour", "name", "day", "well")
    assert [len(span) for span in RECIPE.spans] == [2, 4, 0, 7, 1]
    marked = [RECIPE.feature_names[i] for i in RECIPE.marks]
    assert marked == ["age (missing)", "colour=red", "colour=blue", "colour (other)", "colour (missing)"]
    assert RECIPE.encode(np.zeros((3, 5))).shape == (3, RECIPE.n_features)


def test_names_that_look_alike_stay_different():
    recipe = ColumnRecipe(
        (Column("a", "words", levels=("b=c",)), Column("a=b", "words", levels=("c",)), Column("a=b=c", "number"))
    )
    assert recipe.feature_names == ("a=b=c", "a=b=c #2", "a=b=c #3")


def test_json_and_back():
    assert ColumnRecipe.from_json(RECIPE.json()) == RECIPE


def broken(**facts):
    return {"dtype": "float32", "columns": [{"name": "a", "kind": "number"} | facts]}


@pytest.mark.parametrize(
    "found",
    [
        broken(kind="numbers"), broken(name=3), broken(gaps="1"), broken(gaps=-1), broken(fill=float("nan")),
        broken(kind="words", levels=["a", "a"]), broken(kind="words", levels=[1]),
        broken(kind="words", levels="ab"), broken(kind="date", cycles=["year"]),
        broken(kind="date", cycles=["hour", "hour"]),
        broken(most=10**400), broken(gap_words=None),
        broken(size=1), broken(kind="id"), {"dtype": "float32"}, broken() | {"dtype": "int8"},
        broken() | {"columns": 1},
        {"dtype": "float32", "columns": 2 * broken()["columns"]},
    ],
)  # fmt: skip
def test_what_is_no_recipe_is_refused(found):
    with pytest.raises((TypeError, ValueError, KeyError)):
        ColumnRecipe.from_json(found)


def test_a_store_that_lies_about_its_columns_is_refused(tmp_path):
    store = ingest(pd.DataFrame({"a": list("xyx") * 9, "b": range(27), "y": list("uvu") * 9}), tmp_path / "a.zarr")
    assert Store.open(store.path).column_recipe == store.column_recipe
    file = tmp_path / "a.zarr" / "zarr.json"
    whole = json.loads(file.read_text())
    for change in (lambda columns: columns.pop(), lambda columns: columns[0].update(kind="colours")):
        told = deepcopy(whole)
        change(told["attributes"]["columns"]["columns"])
        text = json.dumps(told).encode()
        file.write_bytes(text)
        forge(tmp_path / "a.zarr", lambda m, text=text: m["documents"].update({"zarr.json": [len(text), crc32c(text)]}))
        with pytest.raises(StoreError, match="its recipe of columns"):
            Store.open(tmp_path / "a.zarr")
