from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.cli import main
from whet.config import make_config
from whet.errors import Diverged, Interrupted, Stopped, UsageError
from whet.experiments import tune as module
from whet.experiments.folder import TuningFolder
from whet.experiments.search import Search
from whet.experiments.space import FACTORS
from whet.runs.folder import RunFolder
from whet.runs.summary import list_runs


def texts(path: Path, column: str = "review") -> set[str]:
    return {json.loads(line)[column] for line in path.read_text().splitlines()}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Any:
    """One tuning that several tests look at."""
    from tests.experiments.conftest import write_reviews

    place = tmp_path_factory.mktemp("tuning")
    source = write_reviews(place / "reviews.csv")
    settings = {"epochs": 1, "learning_rate": 0.01, "precision": "float32"}
    return whet.tune(source, minutes=600, trials=3, model=str(tiny_model_folder), run=place / "tuned", **settings)


def test_no_trial_sees_the_rows_that_are_held_out(done: Any) -> None:
    folder = TuningFolder(done.path)
    held_out = texts(folder.held_out)
    seen = texts(folder.rows / "train.jsonl") | texts(folder.rows / "validation.jsonl")
    assert len(held_out) == done.outcome.held_out_rows == 24
    assert done.outcome.held_out_from == "drawn"
    assert not held_out & seen
    for line in done.outcome.trials:
        assert RunFolder(done.path / line.name).config.data.source == str(folder.rows)


def test_the_first_trial_is_the_default_and_given_settings_stay(done: Any) -> None:
    first, *others = done.outcome.trials
    assert first.name == "default"
    assert first.settings == {"batch_size": 16, "warmup": 0.0, "weight_decay": 0.0, "contrastive": 0.0}
    assert len(others) == 2
    assert any(line.settings != first.settings for line in others)
    assert {RunFolder(done.path / line.name).config.train.epochs for line in done.outcome.trials} == {1.0}


def test_adapters_are_searched_around_a_rate_of_their_own() -> None:
    config = make_config({"recipe": "course", "lora": True})
    assert module._settled(config, module.Asked()).train.learning_rate == pytest.approx(5e-4)


def test_every_trial_is_an_ordinary_run(done: Any) -> None:
    listed = list_runs(done.path)
    assert {line.name for line in listed} == {line.name for line in done.outcome.trials}
    assert all(line.metric == "accuracy" for line in listed)
    assert main(["compare", *(str(done.path / line.name) for line in done.outcome.trials)]) == 0


def test_what_is_shipped_predicts_and_finds_the_columns_of_the_source(done: Any, tmp_path: Path) -> None:
    assert done.shipped.predict("good film").label in ("up", "down")
    assert done.shipped.predictor.columns["text"] == "review"
    assert done.settings == next(line.settings for line in done.outcome.trials if line.name == done.outcome.shipped)


def test_the_page_has_every_trial_and_the_answer(done: Any) -> None:
    page = done.page.read_text()
    assert all(line.name in page for line in done.outcome.trials)
    assert done.sentence.partition(".")[0] in page


def test_a_finished_tuning_is_told_again_and_not_trained_again(done: Any, capsys: pytest.CaptureFixture[str]) -> None:
    source = done.path.parent / "reviews.csv"
    model = RunFolder(done.path / "default").config.model.model
    flags = ["--model", model, "--epochs", "1", "--lr", "0.01", "--set", "precision=float32"]
    again = ["tune", str(source), "--minutes", "600", "--trials", "3", "--run", str(done.path), *flags]
    assert main(again) == 0
    out, err = capsys.readouterr()
    assert "is finished already" in err
    assert "Shipped: " in out
    assert main([*again, "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["shipped"] == done.outcome.shipped
    assert main([*again, "--batch-size", "4"]) == 2
    assert "batch_size was 16, is 4" in " ".join(capsys.readouterr().err.split())


def test_too_little_time_is_one_line_and_leaves_nothing(
    reviews: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(reviews.parent.rglob("*"))
    assert main(["tune", str(reviews), "--minutes", "0.00001", "--model", str(tiny_model_folder)]) == 2
    err = capsys.readouterr().err
    assert "one training takes about" in err
    assert "--minutes" in err.splitlines()[-1]
    assert sorted(reviews.parent.rglob("*")) == before


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"minutes": 0}, "minutes is 0"),
        ({"trials": 1}, "trials is 1"),
        ({"models": ["minilm", "minilm"]}, "names a model twice"),
        ({"models": ["minilm", "other"], "model": "minilm"}, "both given"),
        ({"seeds": 2}, "seeds"),
        ({"folds": 3}, "one split"),
        ({"evaluations": 0}, "goes by evaluations"),
        (
            {"learning_rate": 0.01, "epochs": 1, "batch_size": 4, "warmup": 0, "weight_decay": 0, "contrastive": 0},
            "Every setting",
        ),
    ],
)
def test_what_a_tuning_cannot_do_is_refused(reviews: Path, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        whet.tune(reviews, **wrong)
    assert not Path("tuning").exists()


def test_an_interrupted_tuning_goes_on_with_the_trial_it_was_in(
    reviews: Path, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Any, record: Any, total: int) -> None:
        if self._trial.number == 1:
            raise Interrupted("Interrupted: in the middle of a trial.")

    with monkeypatch.context() as patched:
        patched.setattr(module._Watcher, "_judge", interrupt)
        with pytest.raises(Interrupted):
            whet.tune(reviews, **{**small, "trials": 2})
    begun = RunFolder(Path("tuning/reviews-001/trial-001"))
    assert not begun.finished
    settings = begun.config.train
    tuning = whet.tune(reviews, **{**small, "trials": 2})
    assert tuning.path == Path("tuning/reviews-001")
    assert [line.name for line in tuning.outcome.trials] == ["default", "trial-001"]
    assert begun.finished
    assert begun.config.train == settings


def test_time_for_the_default_alone_is_no_answer_and_more_time_goes_on(
    reviews: Path, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, "_refuse_too_little_time", lambda default, asked: None)
        with pytest.raises(UsageError, match="time for the default alone"):
            whet.tune(reviews, **{**small, "minutes": 0.001})
    assert not TuningFolder(Path("tuning/reviews-001")).result
    outcome = whet.tune(reviews, **{**small, "trials": 2}).outcome
    assert [line.name for line in outcome.trials] == ["default", "trial-001"]


def test_a_trial_that_diverges_or_is_stopped_does_not_end_the_tuning(
    reviews: Path, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = {1: Diverged("not finite"), 2: Stopped("pruned"), 3: Stopped("stopped")}

    def end(self: Any, record: Any, total: int) -> None:
        if self._trial.number in ends:
            raise ends[self._trial.number]

    monkeypatch.setattr(module._Watcher, "_judge", end)
    outcome = whet.tune(reviews, **{**small, "trials": 4}).outcome
    assert [line.state for line in outcome.trials] == ["finished", "diverged", "pruned", "out of time"]
    assert outcome.shipped == "default"
    assert outcome.p_value is None
    assert not list(Path("tuning/reviews-001").glob("*/checkpoints"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Any:
    """A tuning whose default rate is far too low for its model, and that gives trials up early."""
    from tests.experiments.conftest import write_reviews

    place = tmp_path_factory.mktemp("wide")
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(FACTORS, "learning_rate", (1.0, 200.0))
        patched.setattr("whet.experiments.search.NEVER_PRUNED", 2)
        source, model = write_reviews(place / "reviews.csv", 160), str(tiny_model_folder)
        settings = {"epochs": 3, "batch_size": 4, "contrastive": 0}
        return whet.tune(source, minutes=600, trials=7, model=model, run=place / "tuned", **settings)


def test_a_winner_that_held_out_rows_confirm_is_shipped(wide: Any) -> None:
    outcome = wide.outcome
    assert wide.better
    assert outcome.shipped == outcome.ranked()[0].name != "default"
    assert outcome.p_value < 0.05
    assert outcome.sentence.startswith(f"Better than the default. {outcome.shipped} is better than default by")
    default, winner = outcome.held_out
    assert winner.value > default.value
    assert wide.settings["learning_rate"] > 5e-5
    assert (wide.path / outcome.shipped / "model").is_dir()


def test_what_was_pruned_is_a_run_that_says_so(wide: Any) -> None:
    pruned = [line.name for line in wide.outcome.trials if line.state == "pruned"]
    assert pruned
    states = {line.name: line.state for line in list_runs(wide.path)}
    assert {states[name] for name in pruned} == {"pruned"}
    assert not any((wide.path / name / "model").exists() for name in pruned)


def test_the_importance_of_the_settings_is_told(wide: Any) -> None:
    assert set(wide.importance) == {"learning_rate", "warmup", "weight_decay"}
    assert next(iter(wide.importance)) == "learning_rate"
    assert sum(wide.importance.values()) == pytest.approx(1)
    assert "What explains the differences" in wide.page.read_text()


def test_the_same_points_come_after_a_kill(tmp_path: Path, tiny_model_folder: Path) -> None:
    from whet.config import make_config
    from whet.experiments.space import Space
    from whet.task import Task

    space = Space.around(make_config({}), ("minilm",), Task("binary", ("a", "b")))

    def points(journal: Path, kill_at: int) -> list[dict[str, Any]]:
        found = []
        for number in range(9):
            search = Search(journal, space, higher_is_better=True, seed=1)
            trial = search.next()
            found.append(space.suggested(trial))
            if number == kill_at:
                with open(journal, "a") as file:
                    file.write('{"op_code": 6, "torn')
                search = Search(journal, space, higher_is_better=True, seed=1)
                trial = search.next()
                assert space.suggested(trial) == found[-1]
            search.tell(trial, "finished", 1 / (1 + number), 1.0)
        return found

    assert points(tmp_path / "a", 99) == points(tmp_path / "b", 7)


def test_the_result_comes_back_as_it_was(done: Any) -> None:
    outcome = done.outcome
    assert type(outcome).from_dict(json.loads(json.dumps(outcome.as_dict()))) == outcome
    assert dataclasses.replace(outcome, shipped="trial-001").better


def test_of_a_source_with_validation_rows_a_share_is_held_out_and_its_test_rows_are(tmp_path: Path) -> None:
    from tests.experiments.conftest import write_reviews
    from whet.config import make_config
    from whet.data.examples import load_examples
    from whet.experiments.folder import prepared

    for name, rows in (("train", 100), ("validation", 20)):
        write_reviews(tmp_path / "data" / f"{name}.csv", rows)

    def held_out(name: str) -> tuple[set[str], set[str], str]:
        examples = load_examples(str(tmp_path / "data"), make_config({"folds": 0}).data)
        with prepared(TuningFolder(tmp_path / name), {}, examples, 1) as made:
            pass
        assert not made.path.exists()
        folder = TuningFolder(tmp_path / name)
        return texts(folder.held_out), texts(folder.rows / "train.jsonl"), folder.asked["held_out"]

    some, others, source = held_out("without")
    assert (len(some), len(others), source) == (20, 80, "drawn")
    assert not some & others
    given = write_reviews(tmp_path / "data" / "test.csv", 31)
    some, others, source = held_out("with")
    assert (len(some), len(others), source) == (31, 100, "test")
    assert all(text in given.read_text() for text in some)


def test_a_trial_is_stopped_at_its_deadline_between_two_steps() -> None:
    from whet.training.choice import Rule
    from whet.training.plan import StepDone

    rule = Rule("accuracy")
    module._Watcher(None, None, rule).on_event(StepDone(1), None)  # type: ignore[arg-type]
    module._Watcher(None, time.monotonic() + 600, rule).on_event(StepDone(1), None)  # type: ignore[arg-type]
    with pytest.raises(Stopped) as stopped:
        module._Watcher(None, time.monotonic() - 1, rule).on_event(StepDone(1), None)  # type: ignore[arg-type]
    assert stopped.value.reason == "stopped"
