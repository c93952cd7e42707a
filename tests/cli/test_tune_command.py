from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from whet.cli import main
from whet.cli.commands import root
from whet.cli.tune import COMMON, SHOWN, trial_rows
from whet.experiments.outcome import Outcome, TrialLine


def outcome(count: int) -> Outcome:
    """So many trainings of which the default is the worst, and one that was pruned."""
    settings = {"learning_rate": 1.234e-4, "batch_size": 16}
    lines = [
        TrialLine(
            name=f"trial-{number:03d}" if number else "default",
            state="pruned" if number == 1 else "finished",
            score=0.5 + number / 100,
            seconds=75.0,
            settings=settings,
        )
        for number in range(count)
    ]
    return Outcome(
        metric="accuracy",
        higher_is_better=True,
        held_out_rows=100,
        held_out_from="drawn",
        trials=tuple(lines),
        held_out=(),
        p_value=0.5,
        shipped="default",
        sentence="Not better than the default.",
        importance={},
        seconds=1.0,
    )


def test_help_shows_the_common_flags_and_the_way_to_the_others() -> None:
    text = CliRunner().invoke(root, ["tune", "--help"]).output
    flags = [line.split()[0].rstrip(",") for line in text.splitlines() if line.startswith("  -")]
    assert len(flags) == len(COMMON) + 1
    assert {"--minutes", "--models", "--trials", "--help-all"} <= set(flags)


def test_the_best_trainings_are_shown_and_always_the_default() -> None:
    rows = trial_rows(outcome(20))
    names = [row[0] for row in rows[1:]]
    assert len(names) == SHOWN
    assert names[0] == "trial-019"
    assert names[-1] == "default"
    assert rows[0] == ["run", "accuracy", "time", "rate", "batch"]
    assert rows[1] == ["trial-019", "0.6900", "1 min 15 s", "0.0001234", "16"]


def test_a_training_that_was_pruned_stands_last_and_says_so() -> None:
    assert [row[:2] for row in trial_rows(outcome(3))[1:]] == [
        ["trial-002", "0.5200"],
        ["default", "0.5000"],
        ["trial-001", "pruned"],
    ]


def test_a_missing_source_and_a_wrong_list_of_models_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tune"]) == 2
    assert "Missing SOURCE" in capsys.readouterr().err
    assert main(["tune", "rows.csv", "--models", "minilm,minilm", "--trials", "4"]) == 2
    assert "names a model twice" in capsys.readouterr().err
