"""Solver objects: in searches, clones, files and at the command line; what they refuse; how they are documented."""

import json
from inspect import getdoc, signature

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import dask_odm as odm
from cli.running import run
from dask_odm import InputError, ODMClassifier, ODMClassifierCV, SaddleSVC, load_model, solvers
from dask_odm.cli.options import help_texts
from dask_odm.learning.training.run import FitRun
from dask_odm.solvers import DSVRG, MNP, SODM, SVRG, DiP, Exact, Gilbert, Landmark
from small_problems import blobs
from small_stores import store_of

FAMILIES = {ODMClassifier: ODMClassifier._solvers, SaddleSVC: SaddleSVC._solvers}
OWNERS = {solver: family for family, classes in FAMILIES.items() for solver in classes}
# Another value of every parameter; not the default of any solver that has it.
OTHER = {
    "block_size": 2, "cell_rows": 30, "certify": True, "choice": "uniform", "coreset_size": 10, "early_stop": True,
    "fan_in": 3, "n_clients": 2, "n_clusters": 5, "n_landmarks": 20, "n_partitions": 3, "n_strata": 6, "overlap": 0.5,
    "settings": "each", "stage_steps": 7, "step_size": "bb", "stop_at": 2,
}  # fmt: skip
PAIRS = [(solver, name) for solver in OWNERS for name in signature(solver).parameters]
each_class = pytest.mark.parametrize("solver", OWNERS, ids=lambda solver: solver.__name__)
each_parameter = pytest.mark.parametrize(("solver", "name"), PAIRS, ids=[f"{s.__name__}-{name}" for s, name in PAIRS])


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    return blobs(80, 3, seed=0)


@pytest.fixture(scope="module")
def store(rows, tmp_path_factory) -> str:
    return store_of(tmp_path_factory.mktemp("stores") / "a.zarr", *rows).path


# Searches, clones, files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["landmark", Landmark(7, choice="uniform")], ids=str)
def test_a_search_reaches_the_parameters_of_a_solver(rows, solver):
    clf = ODMClassifier(solver=solver, random_state=0)
    search = GridSearchCV(clf, {"solver__n_landmarks": [2, 30]}, cv=3).fit(*rows)
    found = search.best_estimator_
    assert found.solver.n_landmarks == search.best_params_["solver__n_landmarks"]
    assert len(found.support_) == found.solver.n_landmarks
    assert found.solver.choice == getattr(solver, "choice", "support")
    assert str(clf.solver) == str(solver), "the estimator that was given is as it was"


def test_a_clone_has_a_solver_of_its_own():
    clf = ODMClassifier(solver=SODM(4, fan_in=2))
    copy = clone(clf).set_params(solver__n_partitions=8)
    assert repr(copy) == "ODMClassifier(solver=SODM(fan_in=2, n_partitions=8))"
    assert repr(clf) == "ODMClassifier(solver=SODM(fan_in=2, n_partitions=4))"
    assert clf.get_params()["solver__fan_in"] == 2
    assert "solver__fan_in" not in ODMClassifier(solver="sodm").get_params(), "a word has no parameters to get"


def test_objects_are_equal_by_kind_and_parameters():
    assert Landmark(5) == clone(Landmark(5)) != Landmark(6)
    assert DSVRG(n_partitions=3) != SODM(3)
    assert len({Landmark(5), Landmark(5), Landmark(6)}) == 2


def test_a_solver_and_its_parameter_are_set_together():
    clf = ODMClassifier().set_params(solver="landmark", solver__certify=True)
    assert repr(clf) == "ODMClassifier(solver=Landmark(certify=True))"
    assert repr(clf.set_params(solver=SVRG(), solver__step_size=0.5)) == "ODMClassifier(solver=SVRG(step_size=0.5))"


@each_class
def test_an_object_of_defaults_is_its_word(solver):
    family = OWNERS[solver]
    linear = {} if family is SaddleSVC else {"kernel": "linear"}
    identities = []
    for given in (solver.word, solver()):
        model = family(solver=given, **linear)
        identities.append(model._settings(FitRun.of(model)).identity())
    assert identities[0] == identities[1]


@each_parameter
def test_every_parameter_makes_another_fit(solver, name):
    identities = []
    for given in (solver(), solver(**{name: OTHER[name]})):
        model = OWNERS[solver](solver=given)
        identities.append(json.dumps(model._settings(FitRun.of(model)).identity()))
    assert identities[0] != identities[1]


@pytest.mark.parametrize(
    "given",
    [Landmark(np.int64(9)), SODM(np.int32(2), early_stop=np.True_), SVRG(np.float32(0.5))],
    ids=lambda solver: type(solver).__name__,
)
def test_numbers_of_numpy_are_those_of_python(given):
    model = ODMClassifier(solver=given)
    settings = model._settings(FitRun.of(model))
    json.dumps(settings.identity())


@each_class
def test_every_object_is_saved_and_loaded(solver, rows, tmp_path):
    family, own = OWNERS[solver], {name: OTHER[name] for name in signature(solver).parameters}
    model = family().fit(*rows).set_params(solver=solver(**own))
    model.save(tmp_path / "m.zarr")
    again = load_model(tmp_path / "m.zarr")
    assert type(again.solver) is solver
    assert again.solver == solver(**own)


def test_one_of_several_kernels_may_be_linear(rows):
    grid = {"lams": [100.0], "upsilons": [0.2], "thetas": [0.1], "gammas": [1e-9], "scoring": "accuracy"}
    found = ODMClassifierCV(["linear", "rbf"], solver=Landmark(20), random_state=0, **grid).fit(*rows)
    assert found.best_params_["kernel"] == "linear"


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("solver", "message"), [
    (Landmark(0), "The 'n_landmarks' parameter of Landmark must be an int in the range [1, inf). Got 0 instead."),
    (Landmark(choice="no-such-way"), "The 'choice' parameter of Landmark must be a str among"),
    (Landmark(certify="no"), "The 'certify' parameter of Landmark must be an instance of 'bool'"),
    (SODM(0), "The 'n_partitions' parameter of SODM must be an int in the range [1, inf) or None. Got 0 instead."),
    (SODM(fan_in=1), "The 'fan_in' parameter of SODM must be an int in the range [2, inf). Got 1 instead."),
    (SODM(early_stop="no"), "The 'early_stop' parameter of SODM must be an instance of 'bool'"),
    (DiP(n_clusters=0), "The 'n_clusters' parameter of DiP must be an int in the range [1, inf). Got 0 instead."),
    (DSVRG(0.0), "The 'step_size' parameter of DSVRG must be a str among"),
    (DSVRG(stage_steps=0), "The 'stage_steps' parameter of DSVRG must be an int in the range [1, inf) or None."),
], ids=str)  # fmt: skip
def test_values_out_of_range(rows, solver, message):
    with pytest.raises(InputError) as error:
        ODMClassifier(solver=solver).fit(*rows)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("solver", [MNP(), Landmark, 3, None, "lbfgs"], ids=str)
def test_what_is_no_solver_of_the_estimator(rows, solver):
    names = "Exact, Landmark, Cells, Newton, SODM, Cascade, DiP, DC, DSVRG, SVRG, CSVRG"
    message = rf"'solver' parameter of .* must be .* or a solver object of dask_odm\.solvers \({names}\)\. Got"
    with pytest.raises(InputError, match=message):
        ODMClassifier(solver=solver).fit(*rows)
    with pytest.raises(InputError, match=r"or a solver object of dask_odm\.solvers \(MNP, Saddle, Gilbert\)\. Got"):
        SaddleSVC(solver=Exact()).fit(*rows)


def test_parameters_that_there_are_not():
    with pytest.raises(TypeError, match="unexpected keyword argument 'n_partitions'"):
        Landmark(n_partitions=3)
    with pytest.raises(ValueError, match=r"Invalid parameter 'n_partitions' for estimator Landmark\(\)"):
        ODMClassifier(solver="landmark").set_params(solver__n_partitions=3)
    with pytest.raises(InputError, match=r"solver__n_landmarks: solver='auto' has no parameters; .* 'landmark'"):
        ODMClassifier().set_params(solver__n_landmarks=3)


@pytest.mark.parametrize(("estimator", "name", "hint"), [
    (ODMClassifier, "n_landmarks", "the solver has it now, solver=dask_odm.solvers.Landmark(n_landmarks=…)."),
    (
        ODMClassifier,
        "n_partitions",
        "the solver has it now, solver=dask_odm.solvers.SODM(n_partitions=…) (also Cascade, DiP, DC, DSVRG).",
    ),
    (ODMClassifier, "landmarks", "its name is choice, and the solver has it now: solver=dask_odm.solvers.Landmark"),
    (ODMClassifier, "certify", "the solver has it now, solver=dask_odm.solvers.Landmark(certify=…)."),
    (ODMClassifier, "coreset_size", "the solver has it now, solver=dask_odm.solvers.CSVRG(coreset_size=…)."),
    (ODMClassifierCV, "n_landmarks", "the solver has it now, solver=dask_odm.solvers.Landmark(n_landmarks=…); a l"),
    (SaddleSVC, "n_clients", "the solver has it now, solver=dask_odm.solvers.Saddle(n_clients=…) (also Gilbert)."),
    (SaddleSVC, "landmarks", "its name is choice, and the solver has it now: solver=dask_odm.solvers.MNP(choice"),
])  # fmt: skip
def test_parameters_of_the_last_version_are_told_where_they_went(estimator, name, hint):
    for call in (lambda: estimator(**{name: 3}), lambda: estimator().set_params(**{name: 3})):
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value).startswith(f"{estimator.__name__} has no parameter '{name}': {hint}")


# How they present themselves ----------------------------------------------------------------------------------------


def test_the_face_lists_all():
    assert sorted(solvers.__all__) == dir(solvers) == sorted(solver.__name__ for solver in OWNERS)
    assert odm.solvers.Gilbert is Gilbert
    with pytest.raises(AttributeError, match=r"module 'dask_odm.solvers' has no attribute 'Greedy'"):
        solvers.Greedy  # noqa: B018


@each_class
def test_every_parameter_is_documented_and_constrained(solver):
    names = set(signature(solver).parameters)
    assert set(help_texts(getdoc(solver))) == names
    assert set(solver._parameter_constraints) == names
    solver()._validate_params()
    assert getdoc(solver).split("\n")[0].endswith((".", ":")), "a whole statement"


def test_words_name_one_solver_each():
    for family, classes in FAMILIES.items():
        words = [solver.word for solver in classes]
        assert len(set(words)) == len(words)
        assert words == [solver.__name__.lower() for solver in classes], "messages turn objects into options by it"
        assert signature(family).parameters["solver"].default == "auto"


# The command line ---------------------------------------------------------------------------------------------------


def test_a_word_alone_stays_a_word(store, tmp_path):
    run("fit", store, tmp_path / "m.zarr", "--solver", "exact")
    assert load_model(tmp_path / "m.zarr").solver == "exact"


def test_an_option_of_another_solver_names_the_solver(store, tmp_path):
    shown = run("fit", store, tmp_path / "m.zarr", "--n-landmarks", 30, status=2).output
    assert "--n-landmarks is an option of --solver landmark, not of --solver auto." in shown
    shown = run("fit", store, tmp_path / "m.zarr", "--solver", "landmark", "--stage-steps", 30, status=2).output
    assert "--stage-steps is an option of --solver dsvrg, not of --solver landmark." in shown
    shown = run("fit", store, tmp_path / "m.zarr", "--landmarks", "rp", status=2).output
    assert "No option --landmarks: its name is choice, and the solver has it now: --solver landmark" in shown
    assert not (tmp_path / "m.zarr").exists()


def test_help_shows_every_option_and_its_solvers():
    shown = " ".join(run("fit", "--help").output.split())
    assert "--n-landmarks INTEGER Number of landmarks. (--solver landmark; default 1000.)" in shown
    assert "(--solver sodm, cascade, dip, dc, dsvrg.)" in shown
    assert "--certify / --no-certify" in shown
    assert "--n-clients" not in shown
    assert "--n-clients" in run("fit", "--estimator", "saddle", "--help").output
