"""Every row of the promises about bad input, through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data_files import as_csv, labelled, text, write
from whet.cli import main

ROWS = labelled()


class Check:
    """Runs `whet check` and keeps what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str | Path) -> tuple[int, str]:
        code = main(["check", *map(str, arguments)])
        captured = self._capsys.readouterr()
        self.out = captured.out
        return code, captured.err

    def facts(self, *arguments: str | Path) -> dict[str, Any]:
        code, err = self(*arguments, "--json")
        assert code == 0, err
        facts: dict[str, Any] = json.loads(self.out)
        return facts

    def codes(self, *arguments: str | Path) -> dict[str, str]:
        return {finding["code"]: finding["severity"] for finding in self.facts(*arguments)["findings"]}


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    return Check(capsys)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("empty.csv", "", "is empty"),
        ("blank.csv", "\n\n \n", "is empty"),
        ("header.csv", "text,label\n", "a header (text, label) and no rows"),
        ("empty.jsonl", "", "is empty"),
        ("list.json", "[]", "no rows"),
        ("one.csv", "text,label\nonly one,a\n", "every row has the label 'a'"),
        ("class.csv", as_csv((t, "a") for t, _ in ROWS), "every row has the label 'a'"),
        ("small.csv", as_csv([*((t, "a") for t, _ in ROWS), ("odd one", "rare")]), "split in 3: 'rare' (1)"),
        ("ragged.csv", as_csv(ROWS[:5]) + "a,b,c\n" + as_csv(ROWS[5:], header=()), "ragged.csv:6: the row has 3"),
        ("short.csv", as_csv(ROWS[:5]) + "alone\n" + as_csv(ROWS[5:], header=()), "short.csv:6: the row has 1 column"),
        ("quote.csv", as_csv(ROWS) + '"never closed,bad\n', "quote.csv:41: a quote that opens"),
        ("after.csv", as_csv(ROWS) + '"closed" early,bad\n', "after.csv:41: text follows a closing quote"),
        ("nul.csv", as_csv(ROWS[:7]) + "a\0b,bad\n", "nul.csv:8: there is a NUL byte"),
        ("nul.jsonl", '{"text": "a\\u0000b", "label": "x"}\n', "every row"),
        ("double.csv", "text,text,label\na,b,c\n", "names 'text' more than once"),
        ("cut.jsonl", '{"text": "a", "label": "b"}\n{"text": "c", "lab', "cut.jsonl:2: this is not JSON"),
        ("twice.jsonl", '{"text": "a", "text": "b", "label": 1}\n', "occurs twice in one object"),
        ("deep.json", "[" * 100_000, "deep.json:1: this is not JSON"),
        ("rows.jsonl", "[1, 2]\n", "not an object"),
        ("fake.parquet", "PAR1 but not really", "cannot be read as Parquet"),
        ("mixed.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": "x"}\n', "'label' holds objects or mixed"),
    ],
)
def test_refused_with_one_line(check: Check, tmp_path: Path, name: str, content: str, message: str) -> None:
    arguments = ["--label", "label"] if name == "mixed.jsonl" else []
    code, err = check(write(tmp_path / name, content), *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert len(err.splitlines()) - err.count("\n      Go on: whet check ") <= 2


def test_missing_column_lists_the_columns(check: Check, tmp_path: Path) -> None:
    code, err = check(write(tmp_path / "a.csv", as_csv(ROWS)), "--text", "body")
    assert code == 2
    assert "Columns: text, label" in err


def test_folder_without_splits_says_what_it_holds(check: Check, tmp_path: Path) -> None:
    write(tmp_path / "notes.md", "nothing")
    code, err = check(tmp_path)
    assert code == 2
    assert "it holds notes.md" in err


def test_no_such_file(check: Check, tmp_path: Path) -> None:
    code, err = check(tmp_path / "reviews.csv")
    assert code == 2
    assert "There is no file or folder" in err


def test_byte_order_mark_is_read(check: Check, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"\xef\xbb\xbf" + as_csv(ROWS).encode())
    assert check.facts(path)["columns"]["text"] == "text"


@pytest.mark.parametrize(
    "encoding, offset", [("utf-16", "byte 0 "), ("latin-1", "byte 15 "), ("utf-16-le", "byte 30 ")]
)
def test_other_encodings_name_the_byte_and_the_flag(check: Check, tmp_path: Path, encoding: str, offset: str) -> None:
    content = "text,label\nabcdé,bad\n" + as_csv(ROWS, header=())
    path = write(tmp_path / "a.csv", content.encode(encoding))
    code, err = check(path)
    assert code == 2
    assert offset in err
    assert "--encoding" in err
    assert check.facts(path, "--encoding", encoding)["splits"]["train"]["rows"] > 20


def test_offset_is_right_beyond_the_first_block(check: Check, tmp_path: Path) -> None:
    content = as_csv((f"{text(n)} {'é' * 300}", n % 2) for n in range(4000)).encode()
    path = write(tmp_path / "a.csv", content + b"caf\xe9,1\n")
    code, err = check(path)
    assert code == 2
    assert f"byte {len(content) + 3} (line 4002) is 0xe9" in err


@pytest.mark.parametrize("quote", ['"', ""])
def test_field_over_a_megabyte(check: Check, tmp_path: Path, quote: str) -> None:
    path = write(tmp_path / "a.csv", as_csv(ROWS) + f"{quote}{'long ' * 300_000}{quote},bad\n")
    code, err = check(path)
    assert code == 2
    assert "a.csv:41: a field is larger than 1 MB" in err
    assert "--max-field-mb" in err
    splits = check.facts(path, "--max-field-mb", "2")["splits"].values()
    assert max(facts["words"]["text"]["max"] for facts in splits) == 300_000


def test_line_without_an_end_is_refused_early(check: Check, tmp_path: Path) -> None:
    code, err = check(write(tmp_path / "a.csv", "text,label\n" + "x" * 20_000_000))
    assert code == 2
    assert "larger than 1 MB" in err


@pytest.mark.parametrize("strange", ["NA", "null", "None", "001", "NaN", "true", "1e5"])
def test_odd_texts_stay_what_they_are(tmp_path: Path, strange: str) -> None:
    from whet.data.examples import load_examples

    path = write(tmp_path / "a.csv", as_csv([(strange, "bad"), *ROWS]))
    split = load_examples(path, labelled=False).splits["test"]
    assert split[0]["text"] == strange


def test_empty_text_counts_and_names_the_flag(check: Check, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", as_csv([*ROWS, ("", "bad"), ("  ", "good")]))
    code, err = check(path)
    assert code == 2
    assert "2 rows have an empty text (rows 41, 42)" in err
    assert "--drop-empty" in err
    assert check(path, "--drop-empty")[0] == 0


def test_null_text_counts_as_empty(check: Check, tmp_path: Path) -> None:
    table = pa.table({"text": [None, *(t for t, _ in ROWS)], "label": ["bad", *(y for _, y in ROWS)]})
    pq.write_table(table, tmp_path / "a.parquet")
    code, err = check(tmp_path / "a.parquet")
    assert code == 2
    assert "a.parquet:1:text: 1 row has an empty text" in err


def test_validation_label_that_training_never_saw(check: Check, tmp_path: Path) -> None:
    other = write(tmp_path / "v.csv", as_csv([(text(90), "bad"), (text(91), "strange")]))
    code, err = check(write(tmp_path / "a.csv", as_csv(ROWS)), "--validation", other)
    assert code == 2
    assert "training never saw: 'strange' (1)" in err


def test_test_label_that_training_never_saw_is_reported(check: Check, tmp_path: Path) -> None:
    other = write(tmp_path / "t.csv", as_csv([(text(90), "bad"), (text(91), "strange")]))
    codes = check.codes(write(tmp_path / "a.csv", as_csv(ROWS)), "--test", other)
    assert codes["unseen-label"] == "warning"


def test_test_rows_may_be_unlabelled(check: Check, tmp_path: Path) -> None:
    train = write(tmp_path / "a.csv", as_csv((t, n % 2) for n, (t, _) in enumerate(ROWS)))
    other = write(tmp_path / "t.csv", as_csv([(text(90), -1), (text(91), -1)]))
    assert check.codes(train, "--test", other) == {"unlabelled": "note"}


@pytest.mark.parametrize("missing", ["", "-1"])
def test_training_rows_may_not_be_unlabelled(check: Check, tmp_path: Path, missing: str) -> None:
    rows = [(t, str(n % 2)) for n, (t, _) in enumerate(ROWS)]
    code, err = check(write(tmp_path / "a.csv", as_csv([*rows, (text(90), missing)])))
    assert code == 2
    assert "no label in the train split" in err or "label -1, which means unlabelled" in err


def test_zero_point_zero_and_one_point_zero_are_classes(check: Check, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", as_csv((t, f"{n % 2}.0") for n, (t, _) in enumerate(ROWS)))
    assert check.facts(path)["task"] == "binary"
    assert check.facts(path, "--task", "regression")["task"] == "regression"


def test_labels_that_differ_by_case_or_blanks(check: Check, tmp_path: Path) -> None:
    rows = labelled(120, ("Good", "good", "bad", " bad"))
    path = write(tmp_path / "a.csv", as_csv(rows))
    finding = next(f for f in check.facts(path)["findings"] if f["code"] == "label-spelling")
    assert finding["severity"] == "warning"
    assert "'Good' and 'good'" in finding["message"]


def test_duplicates_and_conflicts_are_counted(check: Check, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", as_csv([*ROWS, ROWS[0], (ROWS[1][0].upper(), "bad")]))
    findings = {f["code"]: f for f in check.facts(path)["findings"]}
    assert findings["conflict"]["count"] == 2
    assert "duplicate" in findings


@pytest.mark.parametrize("swap", [False, True])
def test_leak_into_test_stops_unless_allowed(check: Check, tmp_path: Path, swap: bool) -> None:
    pairs = [(text(n), text(n + 200), label) for n, (_, label) in enumerate(ROWS)]
    leaked = (pairs[0][1], f" {pairs[0][0].upper()} ", "bad") if swap else pairs[0]
    header = ("sentence1", "sentence2", "label")
    train = write(tmp_path / "a.csv", as_csv(pairs, header))
    test = write(tmp_path / "t.csv", as_csv([leaked, (text(500), text(501), "good")], header))
    code, err = check(train, "--test", test)
    assert code == 2
    assert "--allow leak" in err
    assert check(train, "--test", test, "--allow", "leak")[0] == 0


def test_unknown_finding_cannot_be_allowed(check: Check, tmp_path: Path) -> None:
    code, err = check(write(tmp_path / "a.csv", as_csv(ROWS)), "--allow", "leaks")
    assert code == 2
    assert "'leak'" in err


@pytest.mark.parametrize("strange", ["👩‍👩‍👧 family", "שלום עולם", "نص‌ها", "a\u200bb", "e\u0301", "\u2028x", "=1+1"])
def test_unusual_characters_are_unchanged(tmp_path: Path, strange: str) -> None:
    from whet.data.examples import load_examples

    path = write(tmp_path / "a.csv", as_csv([(strange, "bad"), *ROWS]))
    assert load_examples(path, labelled=False).splits["test"][0]["text"] == strange


def test_lone_surrogates_are_replaced_and_counted(check: Check, tmp_path: Path) -> None:
    lines = [json.dumps({"text": t, "label": y}) for t, y in ROWS]
    lines.append('{"text": "half \\ud83d and whole \\ud83d\\ude00", "label": "bad"}')
    facts = check.facts(write(tmp_path / "a.jsonl", "\n".join(lines)))
    assert facts["origin"]["surrogates"] == 1
    assert any(f["code"] == "surrogate" and f["count"] == 1 for f in facts["findings"])


def test_surrogates_in_a_table_are_replaced_too(check: Check, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", as_csv(ROWS).encode() + b"half \xed\xa0\xbd a character,bad\n")
    assert check.facts(path)["origin"]["surrogates"] == 1


def test_markup_does_not_reach_the_terminal_as_markup(check: Check, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", as_csv(labelled(40, ("[red]<script>", "\x1b[31mevil"))))
    assert check(path)[0] == 0
    assert "[red]<script>" in check.out
    assert "\x1b" not in check.out


@pytest.mark.parametrize(
    "value, expected",
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("＝1", "'＝1"),
        ("\n=1", "'\n=1"),
        ("-1.5", "-1.5"),
        ("fine", "fine"),
    ],
)
def test_cells_that_a_spreadsheet_would_run(value: str, expected: str) -> None:
    from whet.utils.text import harmless_cell

    assert harmless_cell(value) == expected
