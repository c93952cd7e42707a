from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.runs.test_label_errors import lines_of
from whet.errors import ArtifactError, EnvironmentFault
from whet.runs.label_errors import Suspect
from whet.runs.review.decisions import Decisions
from whet.utils.review_file import COLUMNS

SUSPECTS = [Suspect(row=n, text=f"text {n}", pair=None, given="bad", likely="good", probability=0.9) for n in (7, 3, 9)]


def reviewed(path: Path) -> Decisions:
    return Decisions(path, SUSPECTS)


def test_each_decision_is_appended_and_the_last_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "reviewed.csv"
    decisions = reviewed(path)
    decisions.decide(7, "accept")
    before = path.read_bytes()
    decisions.decide(3, "keep")
    decisions.decide(7, "")
    assert path.read_bytes().startswith(before)
    assert [(line["row"], line["decision"]) for line in lines_of(path)] == [("7", "accept"), ("3", "keep"), ("7", "")]
    assert reviewed(path).decided == {3: "keep"}


def test_a_decision_is_synced_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = os.fsync

    def note(handle: int) -> None:
        sizes.append(os.fstat(handle).st_size)
        real(handle)

    monkeypatch.setattr(os, "fsync", note)
    decisions = reviewed(tmp_path / "reviewed.csv")
    decisions.decide(7, "accept")
    assert (tmp_path / "reviewed.csv").stat().st_size in sizes


def test_half_a_line_of_a_killed_process_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "reviewed.csv"
    reviewed(path).decide(7, "accept")
    whole = path.read_bytes()
    path.write_bytes(whole + b"3,text 3,,bad,go")
    decisions = reviewed(path)
    assert decisions.decided == {7: "accept"}
    assert path.read_bytes() == whole
    decisions.decide(9, "skip")
    assert reviewed(path).decided == {7: "accept", 9: "skip"}


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "reviewed.csv"
    decisions = reviewed(path)
    decisions.decide(7, "accept")
    whole, real = path.read_bytes(), os.write

    def full(handle: int, data: Any) -> int:
        real(handle, bytes(data)[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(Exception, match="No space left"):
        decisions.decide(3, "keep")
    assert path.read_bytes() == whole
    assert decisions.decided == {7: "accept"}


def test_decisions_about_another_text_are_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "reviewed.csv"
    reviewed(path).decide(7, "accept")
    other = Suspect(row=7, text="another text", pair=None, given="bad", likely="good", probability=0.9)
    assert Decisions(path, [other]).decided == {}


def test_a_link_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("half a line")
    (tmp_path / "reviewed.csv").symlink_to(tmp_path / "other.txt")
    with pytest.raises(EnvironmentFault, match="is a link"):
        reviewed(tmp_path / "reviewed.csv")
    assert (tmp_path / "other.txt").read_text() == "half a line"


@pytest.mark.parametrize(
    "content", ["text,label\na,b\n", ",".join(COLUMNS) + "\n7,t,,a,b,0.9,maybe,text-1\n", "\xff\n"]
)
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "reviewed.csv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ArtifactError, match="does not hold the decisions"):
        reviewed(path)
    assert path.read_bytes() == content.encode("latin-1")
