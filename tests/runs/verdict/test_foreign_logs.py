import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.synthetic_curves import draw
from whet.cli.verdict import verdict
from whet.errors import DataError, UsageError
from whet.records import Evaluation, to_line
from whet.runs.verdict.foreign_logs import Constants, read_observed
from whet.runs.verdict.judge import judge

KNOWN = Constants(majority=0.5, classes=2, rows=400)
KEYS = {"verdict", "sentence", "step", "confidence", "numbers", "advice"}
OVERFITTED = [(0.58, 0.60), (0.45, 0.50), (0.33, 0.45), (0.2, 0.52), (0.1, 0.63), (0.04, 0.74), (0.02, 0.82)]


def csv_file(folder: Path, lines: list[str], header: str = "step,train_loss,eval_loss,metric") -> Path:
    path = folder / "curve.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def overfitted_csv(folder: Path) -> Path:
    return csv_file(folder, [f"{10 * at},{t},{e},0.8" for at, (t, e) in enumerate(OVERFITTED, 1)])


def trainer_state(folder: Path, **changes: object) -> Path:
    """The log of a stock Trainer: a training entry, then an evaluation."""
    log: list[dict[str, object]] = []
    for at, (train, evaluation) in enumerate(OVERFITTED, 1):
        log.append({"epoch": at, "loss": train, "grad_norm": 1.0, "learning_rate": 5e-5, "step": 10 * at})
        log.append({"epoch": at, "eval_loss": evaluation, "eval_runtime": 1.0, "eval_f1": 0.8, "step": 10 * at})
    path = folder / "trainer_state.json"
    path.write_text(json.dumps({"log_history": log, "num_train_epochs": 7, "train_batch_size": 8, **changes}))
    return path


def test_a_csv_is_judged(tmp_path: Path) -> None:
    found = judge(read_observed(overfitted_csv(tmp_path), KNOWN))
    assert (found.verdict, found.step, found.assumed) == ("overfitting", 30, ())


def test_a_csv_gives_what_the_same_arrays_give(tmp_path: Path) -> None:
    curve = draw("underfitting", 4)
    columns = zip(curve.steps, curve.train_loss, curve.eval_loss, curve.metric, strict=True)
    path = csv_file(tmp_path, [",".join(map(str, row)) for row in columns])
    found = read_observed(path, Constants(majority=max(curve.prior), classes=len(curve.prior), rows=curve.rows))
    assert found.steps.tolist() == curve.steps.tolist()
    assert found.training is not None
    assert found.training.tolist() == pytest.approx(curve.train_loss.tolist())
    assert judge(found).verdict == "underfitting"


def test_an_empty_cell_is_not_measured_and_nan_is_not_a_number(tmp_path: Path) -> None:
    gaps = csv_file(tmp_path, ["5,0.7,,", "10,,0.6,0.7", "15,0.5,,", "20,,0.5,0.75", "30,,0.4,0.8", "40,0.2,0.3,0.9"])
    found = read_observed(gaps, KNOWN)
    assert found.training is not None
    assert found.training.tolist() == [0.7, 0.5, 0.5, 0.2]
    broken = csv_file(tmp_path, ["10,0.7,0.6,0.5", "20,nan,nan,0.5"])
    assert judge(read_observed(broken, KNOWN)).verdict == "diverging"


def test_percent_is_understood(tmp_path: Path) -> None:
    found = read_observed(csv_file(tmp_path, ["10,0.6,0.6,71", "20,0.5,0.5,83.5"]), KNOWN)
    assert found.score is not None
    assert found.score.tolist() == [0.71, 0.835]


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        (["10,0.6,0.6,0.7", "20,0.5,oops,0.7"], "curve.csv:3:eval_loss"),
        (["inf,0.6,0.6,0.7"], "curve.csv:2:step"),
    ],
)
def test_a_bad_cell_is_named(tmp_path: Path, lines: list[str], where: str) -> None:
    with pytest.raises(DataError, match=where):
        read_observed(csv_file(tmp_path, lines), KNOWN)


def test_a_csv_without_the_column_says_which_it_has(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"eval_loss; found: step, loss"):
        read_observed(csv_file(tmp_path, ["1,0.5"], header="step,loss"), KNOWN)


def test_a_stock_trainers_log_is_judged(tmp_path: Path) -> None:
    found = judge(read_observed(trainer_state(tmp_path)))
    assert (found.verdict, found.step) == ("overfitting", 30)
    assert "f1" in found.sentence
    assert "keep this model" in found.advice
    assert len(found.assumed) == 3


def test_a_loss_that_the_stock_trainer_hid_is_found(tmp_path: Path) -> None:
    log = [{"step": 5, "loss": 0.0, "grad_norm": float("nan")}, {"step": 5, "eval_loss": 0.7}]
    assert judge(read_observed(trainer_state(tmp_path, log_history=log))).verdict == "diverging"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("{}", "no log_history"),
        ('{"log_history": [{"step": 1, "loss": 1}]}', "no evaluation"),
    ],
)
def test_a_json_file_that_is_no_trainer_state_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_observed(path)


def records_file(folder: Path, last: str = "") -> Path:
    path = folder / "records.jsonl"
    lines = [
        to_line(Evaluation(step=at, epoch=1, split="validation", loss=loss, metrics={}, rows=9, probe_loss=probe))
        for at, (probe, loss) in enumerate(OVERFITTED, 1)
    ]
    path.write_text("\n".join(lines) + "\n" + last)
    return path


def test_bare_records_are_judged_although_the_last_line_is_torn(tmp_path: Path) -> None:
    found = judge(read_observed(records_file(tmp_path, last='{"v": 1, "ki')))
    assert (found.verdict, found.step) == ("overfitting", 3)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = records_file(tmp_path, last="oops\n")
    with pytest.raises(DataError, match=r"records\.jsonl:8: this line is not a record"):
        read_observed(path)


def test_constants_given_by_hand_win(tmp_path: Path) -> None:
    found = read_observed(records_file(tmp_path), Constants(classes=4, rows=50))
    assert found.chance == pytest.approx(1.386, abs=1e-3)
    assert found.rows == 50


@pytest.mark.parametrize("bad", [{"majority": 50}, {"classes": 1}, {"rows": 0}])
def test_constants_that_cannot_be_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=f"--{next(iter(bad))}"):
        Constants(**bad)  # type: ignore[arg-type]


def test_the_command_prints_json(tmp_path: Path) -> None:
    flags = ["--majority", "0.5", "--classes", "2", "--rows", "400", "--json"]
    shown = CliRunner().invoke(verdict, [str(overfitted_csv(tmp_path)), *flags])
    found = json.loads(shown.output)
    assert set(found) >= KEYS
    assert found["verdict"] == "overfitting"


def test_the_command_says_what_it_assumed(tmp_path: Path) -> None:
    shown = CliRunner().invoke(verdict, [str(overfitted_csv(tmp_path))])
    assert shown.output.startswith("overfitting  (step 30")
    assert "Assumed: 400 evaluation rows" in shown.output


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run or file"):
        read_observed(tmp_path / "nothing.csv")


@pytest.mark.parametrize(
    ("header", "separator"),
    [
        ("epoch,loss,val_loss,val_accuracy", ","),
        ("global_step;training_loss;validation_loss;accuracy", ";"),
        ("step\ttrain_loss\teval_loss\teval_f1", "\t"),
    ],
)
def test_columns_of_other_tools_are_known(tmp_path: Path, header: str, separator: str) -> None:
    rows = [separator.join(map(str, (at, t, e, 0.8))) for at, (t, e) in enumerate(OVERFITTED, 1)]
    path = csv_file(tmp_path, rows, header)
    found = read_observed(path, KNOWN)
    assert (judge(found).verdict, found.metric) == ("overfitting", "f1" if "f1" in header else "accuracy")


def test_a_decimal_comma_is_read_where_semicolons_separate(tmp_path: Path) -> None:
    path = csv_file(tmp_path, ["10;0,7;0,6;0,5", "20;0,5;0,4;0,8"], "step;train_loss;eval_loss;metric")
    assert read_observed(path, KNOWN).evaluation.tolist() == [0.6, 0.4]


def test_a_score_that_is_missing_is_taken_from_its_neighbours_and_said(tmp_path: Path) -> None:
    path = csv_file(tmp_path, ["1,1,1,0.5", "2,1,1,", "3,1,1,0.7", "4,1,1,nan"])
    found = read_observed(path, KNOWN)
    assert found.score is not None
    assert found.score.tolist() == pytest.approx([0.5, 0.6, 0.7, 0.7])
    assert "2 evaluations" in found.assumed[0]


def test_of_a_step_that_is_there_twice_the_last_counts(tmp_path: Path) -> None:
    path = csv_file(tmp_path, ["1,1,0.9,0.5", "2,1,0.8,0.6", "2,1,0.7,0.7"])
    assert read_observed(path, KNOWN).evaluation.tolist() == [0.9, 0.7]


def test_parts_of_epochs_are_numbered(tmp_path: Path) -> None:
    path = csv_file(tmp_path, ["0.5,1,0.9,0.5", "1.0,0.8,0.8,0.6", "1.5,0.6,0.7,0.7"], "epoch,loss,val_loss,acc")
    found = read_observed(path, KNOWN)
    assert found.steps.tolist() == [1, 2, 3]
    assert found.training is not None
    assert found.training.tolist() == [1, 0.8, 0.6]


@pytest.mark.parametrize(("row", "says"), [("1e19,1,1,1", "step can have"), ("1,1,1,1\n1,a,1,1", "'a' is not")])
def test_what_cannot_be_read_is_named(tmp_path: Path, row: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read_observed(csv_file(tmp_path, [row]), KNOWN)


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="eval_loss is there twice"):
        read_observed(csv_file(tmp_path, ["1,2,3"], "step,eval_loss,eval_loss"), KNOWN)


def test_a_majority_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match=r"at least 0\.333"):
        Constants(majority=0.2, classes=3)


def test_a_log_out_of_order_is_sorted(tmp_path: Path) -> None:
    path = trainer_state(tmp_path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "log_history": content["log_history"][::-1]}))
    assert judge(read_observed(path, KNOWN)).step == 30


def test_the_first_of_several_evaluation_sets_is_read(tmp_path: Path) -> None:
    path = trainer_state(tmp_path)
    path.write_text(path.read_text().replace('"eval_', '"eval_matched_'))
    found = read_observed(path, KNOWN)
    assert (judge(found).verdict, found.metric) == ("overfitting", "f1")


def test_the_score_before_anything_is_learnt_stands_in_for_the_majority(tmp_path: Path) -> None:
    """Two uneven classes, a model that always gives the commoner one, and nobody who says so."""
    path = csv_file(tmp_path, [f"{at},0.69,{0.69 + 0.003 * (at % 2)},0.68" for at in range(1, 9)])
    assert judge(read_observed(path)).verdict == "not-learning"


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([f"{at},0.5,0.5,1.3" for at in range(6)], "1 is the most"),
        ([f"{at},0.5,0.5,0.8,9" for at in range(6)], "more than the 4 cells"),
        (["7,0.5,0.5,0.8"] * 6, "1 different steps"),
    ],
)
def test_a_table_that_cannot_mean_what_it_says_is_refused(tmp_path: Path, lines: list[str], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        read_observed(csv_file(tmp_path, lines))


def test_a_score_in_percent_is_said_to_be_one(tmp_path: Path) -> None:
    seen = read_observed(csv_file(tmp_path, [f"{at},0.5,0.5,{50 + at}" for at in range(6)]))
    assert any("percent" in guess for guess in seen.assumed)


def test_a_checkpoint_or_an_output_folder_is_looked_into(tmp_path: Path) -> None:
    log = [
        {"step": step, "epoch": 1.0, key: value}
        for step in range(100, 700, 100)
        for key, value in (("loss", 0.7 - step / 2000), ("eval_loss", 0.7 - step / 2500))
    ]
    for step in (500, 600):
        place = tmp_path / "out" / f"checkpoint-{step}"
        place.mkdir(parents=True)
        kept = [entry for entry in log if entry["step"] <= step]
        (place / "trainer_state.json").write_text(json.dumps({"log_history": kept}))
    (tmp_path / "out" / "checkpoint-900").mkdir()
    assert read_observed(tmp_path / "out" / "checkpoint-500").steps[-1] == 500
    assert read_observed(tmp_path / "out").steps[-1] == 600
