"""Files that somebody else may have made."""

from __future__ import annotations

from pathlib import Path

import pytest

from whet.utils.untrusted_files import parse_json, read_text, replace_file, whole_lines


def test_a_file_is_replaced_and_what_a_link_leads_to_is_not(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "page").symlink_to(tmp_path / "mine")
    replace_file(tmp_path / "page", b"page")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "page").read_bytes() == b"page"
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "page"}


def test_a_link_that_comes_in_between_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".page.tmp").symlink_to(tmp_path / "mine")
    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
    with pytest.raises(FileExistsError):
        replace_file(tmp_path / "page", b"page")
    assert (tmp_path / "mine").read_text() == "mine"


def test_what_is_too_large_or_too_deep_is_a_value_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("12345")
    assert read_text(path, 5) == "12345"
    with pytest.raises(ValueError, match="at most 4"):
        read_text(path, 4)
    with pytest.raises(ValueError, match="too deeply"):
        parse_json("[" * 100_000)


def test_lines_without_an_end_are_left_out_and_endless_ones_refused(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\nthr")
    assert list(whole_lines(path, 10)) == [b"one\n", b"two\n"]
    path.write_bytes(b"one\n" + b"x" * 20)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        list(whole_lines(path, 10))
