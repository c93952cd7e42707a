import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tests.run_folders import build_run
from whet.cli.compare import compare as compare_command
from whet.cli.runs import runs as runs_command
from whet.config import make_config
from whet.errors import UsageError
from whet.records import End, Evaluation, Start
from whet.runs.compare import compare
from whet.runs.folder import RunFolder
from whet.runs.summary import list_runs

ROWS = 200


def make_run(
    root: Path,
    name: str,
    right: int,
    *,
    wrong_first: bool = False,
    label_names: str = "no yes",
    **settings: Any,
) -> Path:
    """A run that answers so many of its rows right: the first ones, or the last ones."""
    folder = RunFolder.create(root / name, make_config({"source": "pairs.csv", **settings}))
    folder.append(
        Start(
            step=0,
            total_steps=40,
            steps_per_epoch=20,
            task="binary",
            labels=label_names.split(),
            rows={"train": 500, "validation": ROWS},
            prior={"train": [0.5, 0.5], "validation": [0.5, 0.5]},
            metric="accuracy",
            higher_is_better=True,
            majority={"label": "no", "accuracy": 0.5},
        )
    )
    score = {"accuracy": right / ROWS}
    for at in (10, 20, 30, 40):
        folder.append(
            Evaluation(
                step=at,
                epoch=1,
                split="validation",
                loss=0.7 - at / 100,
                metrics=score,
                rows=ROWS,
                best=at == 40,
            )
        )
    folder.append(End(step=40, reason="finished", best_step=40, best_score=right / ROWS, seconds=61))
    labels = np.arange(ROWS) % 2
    hit = np.arange(ROWS) >= ROWS - right if wrong_first else np.arange(ROWS) < right
    predictions(folder.path / "predictions.parquet", labels, np.where(hit, labels, 1 - labels))
    return folder.path


def predictions(path: Path, labels: Any, answers: Any) -> None:
    table = {
        "split": ["validation"] * len(labels),
        "row": list(range(1, len(labels) + 1)),
        "text": [f"text {row}" for row in range(len(labels))],
        "label": labels,
        "predicted": answers,
        "logits": [[1.0 - answer, float(answer)] for answer in answers],
    }
    pq.write_table(pa.table(table), path)


def test_a_clear_winner_is_named_with_its_margin(tmp_path: Path) -> None:
    found = compare([make_run(tmp_path, "a", 140), make_run(tmp_path, "b", 180)])
    assert found.differences[0].sentence.startswith("b is better than a by 20.0 ± ")
    assert found.differences[0].test is not None
    assert found.differences[0].test.n == ROWS


def test_the_first_run_can_win_too(tmp_path: Path) -> None:
    found = compare([make_run(tmp_path, "a", 180), make_run(tmp_path, "b", 140)])
    assert found.differences[0].sentence.startswith("a is better than b by 20.0")


def test_a_small_difference_is_called_luck(tmp_path: Path) -> None:
    found = compare([make_run(tmp_path, "a", 160), make_run(tmp_path, "b", 163, wrong_first=True)])
    assert found.differences[0].sentence.startswith("No difference between a and b that 200 validation rows can show")


def test_the_same_difference_is_visible_only_row_by_row(tmp_path: Path) -> None:
    found = compare([make_run(tmp_path, "a", 160), make_run(tmp_path, "b", 170)])
    first, second = (entry.score for entry in found.entries)
    assert first is not None
    assert second is not None
    assert first.high > second.low
    assert "b is better than a by 5.0" in found.differences[0].sentence


def test_only_settings_that_differ_are_shown(tmp_path: Path) -> None:
    a = make_run(tmp_path, "a", 160, learning_rate=5e-5, keep=2)
    b = make_run(tmp_path, "b", 160, learning_rate=2e-5, keep=9)
    assert compare([a, b]).settings == {"learning_rate": (5e-5, 2e-5)}


def test_rows_with_another_text_are_not_paired(tmp_path: Path) -> None:
    a, b = make_run(tmp_path, "a", 160), make_run(tmp_path, "b", 160)
    table = pq.read_table(b / "predictions.parquet")
    moved = table.set_column(2, "text", pa.array([f"other {row}" for row in range(ROWS)]))
    pq.write_table(moved, b / "predictions.parquet")
    sentence = compare([a, b]).differences[0].sentence
    assert sentence.startswith("a and b were not scored on the same validation rows: ")
    assert "may come from the rows" in sentence


def test_a_run_without_predictions_keeps_its_score_with_an_interval(tmp_path: Path) -> None:
    a, b = make_run(tmp_path, "a", 160), make_run(tmp_path, "b", 160)
    (b / "predictions.parquet").unlink()
    found = compare([a, b])
    assert "b has no predictions" in found.differences[0].sentence
    score = found.entries[1].score
    assert score is not None
    assert score.low < 0.8 < score.high


def test_test_rows_are_used_where_all_runs_have_them(tmp_path: Path) -> None:
    paths = [make_run(tmp_path, "a", 160), make_run(tmp_path, "b", 160)]
    assert compare(paths).split == "validation"
    for path in paths:
        tested = Evaluation(step=40, epoch=2, split="test", loss=0.4, metrics={"accuracy": 0.8}, rows=ROWS)
        RunFolder.open(path).append(tested)
    assert compare(paths).split == "test"


def test_runs_with_other_labels_are_refused_by_name(tmp_path: Path) -> None:
    a, b = make_run(tmp_path, "a", 160), make_run(tmp_path, "b", 160, label_names="bad good")
    with pytest.raises(UsageError, match=r"a has the labels 'no', 'yes' and b has 'bad', 'good'\."):
        compare([a, b])


def test_runs_of_another_task_are_refused_by_name(tmp_path: Path) -> None:
    a, b = build_run(tmp_path / "a").path, build_run(tmp_path / "b", task="multiclass").path
    with pytest.raises(UsageError, match="a is a binary task and b a multiclass one"):
        compare([a, b])


def test_a_run_is_not_compared_with_itself(tmp_path: Path) -> None:
    a, b = make_run(tmp_path, "a", 160), make_run(tmp_path, "b", 160)
    with pytest.raises(UsageError, match="a' is given twice"):
        compare([a, b, tmp_path / "b" / ".." / "a"])


def test_rows_that_only_one_run_has_are_left_out_and_said(tmp_path: Path) -> None:
    a, b = make_run(tmp_path, "a", 160), make_run(tmp_path, "b", 160)
    pq.write_table(pq.read_table(b / "predictions.parquet").slice(0, 150), b / "predictions.parquet")
    assert "that 150 validation rows that both have can show" in compare([a, b]).differences[0].sentence


def test_one_run_cannot_be_compared(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 2"):
        compare([make_run(tmp_path, "a", 160)])


def test_runs_of_one_name_are_told_apart_by_their_folder(tmp_path: Path) -> None:
    found = compare([make_run(tmp_path / "x", "a", 160), make_run(tmp_path / "y", "a", 160)])
    assert found.entries[0].name != found.entries[1].name


def test_the_command_prints_a_table_and_json(tmp_path: Path) -> None:
    paths = [
        str(make_run(tmp_path, "a", 140, learning_rate=5e-5)),
        str(make_run(tmp_path, "b", 180, learning_rate=2e-5)),
    ]
    shown = CliRunner().invoke(compare_command, paths).output
    assert "learning_rate  5e-05  2e-05" in shown
    assert "90.0%" in shown
    found = json.loads(CliRunner().invoke(compare_command, [*paths, "--json"]).output)
    assert found["differences"][0]["test"]["difference"] == pytest.approx(0.2)
    assert found["entries"][1]["verdict"]["verdict"]


def test_runs_are_listed_within_80_columns(tmp_path: Path) -> None:
    make_run(tmp_path, "a-name-that-is-much-too-long-for-a-line-of-a-terminal-001", 160)
    shown = CliRunner().invoke(runs_command, [str(tmp_path)]).output.splitlines()
    assert max(map(len, shown)) <= 80
    assert "accuracy 0.800" in shown[1]
    assert "1 min 1 s" in shown[1]
    assert "▁" in shown[1]


def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path) -> None:
    make_run(tmp_path, "good", 160)
    bad = make_run(tmp_path, "bad", 160)
    (bad / "records.jsonl").write_text("oops\n")
    assert {line.name: line.state for line in list_runs(tmp_path)} == {"good": "finished", "bad": "damaged"}


def test_an_empty_folder_says_how_to_start(tmp_path: Path) -> None:
    assert "whet train" in CliRunner().invoke(runs_command, [str(tmp_path)]).output


def test_a_table_is_cut_to_the_width_of_the_terminal() -> None:
    from whet.cli.compare import table

    rows = [["setting", "run-with-a-long-name-001", "run-with-a-long-name-002"], ["source", "a" * 60, "b" * 60]]
    assert max(map(len, table(rows, 80))) <= 80
    assert "run-with-a-long-name-001" in table(rows)[0]
