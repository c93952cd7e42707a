from __future__ import annotations

from typing import Any

import pytest

from tests.data_files import labelled, load, text
from whet.config import DataConfig
from whet.data.audit.audit import Audit, Finding, audit
from whet.errors import DataError, UsageError


def table(rows: list[tuple[Any, ...]], names: tuple[str, ...] = ("text", "label")) -> dict[str, list[Any]]:
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def found(report: Audit, code: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.code == code]


def test_clean_data_has_no_findings() -> None:
    report = audit(load(table(labelled(200))))
    assert report.findings == ()
    assert report.splits["train"]["labels"] == {"bad": 80, "good": 80}


def test_rows_of_a_finding_are_those_of_the_source() -> None:
    rows = labelled(100)
    report = audit(
        load({"train": table([*rows, rows[6], rows[7]]), "validation": table(labelled(10))}, allow=("leak",))
    )
    assert found(report, "duplicate")[0].rows == (("train", 101), ("train", 102))


def test_few_repeated_validation_texts_warn_and_many_stop() -> None:
    rows = labelled(200)
    few = audit(load({"train": table(rows[:100]), "validation": table(rows[98:198])}))
    many = audit(load({"train": table(rows[:100]), "validation": table(rows[80:180])}))
    assert found(few, "leak")[0].severity == "warning"
    with pytest.raises(DataError, match="20 of 100 validation rows"):
        many.stop_unless_allowed()
    many.stop_unless_allowed(DataConfig(allow=("leak",)))
    assert many.overlap == {"validation": 0.2}


def test_allowing_what_is_not_known() -> None:
    with pytest.raises(UsageError, match="Did you mean 'conflict'"):
        audit(load(table(labelled(40)))).stop_unless_allowed(DataConfig(allow=("conflicts",)))


def test_conflict_of_numbers_needs_a_distance() -> None:
    rows = [(text(n), n / 10) for n in range(50)]
    near, far = (audit(load(table([*rows, (text(0), other)]))) for other in (0.3, 4.5))
    assert not found(near, "conflict")
    assert found(far, "conflict")[0].count == 2


def test_conflict_of_several_labels() -> None:
    rows = [(text(n), ["a"] if n % 2 else ["a", "b"]) for n in range(60)]
    report = audit(load(table([*rows, (text(0), ["b"]), (text(1), ["a"])])))
    assert found(report, "conflict")[0].count == 2


def test_imbalance_names_both_ends() -> None:
    rows = [(text(n), "rare" if n % 20 == 0 else "common") for n in range(400)]
    message = found(audit(load(table(rows))), "imbalance")[0].message
    assert "'common' has 304" in message
    assert "'rare' has 16" in message


def test_rare_labels_are_listed_at_once_as_not_measured() -> None:
    rows = [*labelled(100), *((text(200 + n), f"rare {n:02}") for n in range(11))]
    (finding,) = found(audit(load(table(rows))), "unmeasured-label")
    assert (finding.severity, finding.count) == ("warning", 11)
    assert "11 of 13 labels have too few different texts to be split" in finding.message
    assert "no validation or test row: 'rare 00' (1)," in finding.message
    assert finding.message.endswith("'rare 10' (1).")


def test_label_that_a_given_split_lacks_is_not_measured() -> None:
    rows = labelled(60, ["a", "b", "c"])
    given = [(text(90 + n), label) for n, label in enumerate("ababab")]
    (finding,) = found(audit(load({"train": table(rows), "validation": table(given)})), "unmeasured-label")
    assert finding.message == "1 of 3 labels have no validation row: 'c' (20)."


def test_label_in_the_text_gives_it_away() -> None:
    rows = [(f"{text(n)} {label}", label) for n, (_, label) in enumerate(labelled(100))]
    messages = " ".join(finding.message for finding in found(audit(load(table(rows))), "giveaway"))
    assert "'good'" in messages
    assert "last word" in messages


def test_other_column_that_settles_the_label() -> None:
    rows = [(text(n), label, label == "good") for n, (_, label) in enumerate(labelled(100))]
    report = audit(load(table(rows, ("text", "label", "liked"))))
    assert "'liked' settles the label" in found(report, "giveaway")[0].message


def test_near_duplicates_inside_and_across() -> None:
    words = "the quick brown fox jumps over the lazy dog near the old stone bridge at dawn"
    rows = labelled(60)
    train = [*rows, (words, "bad"), (words.replace("dawn", "noon"), "bad")]
    report = audit(load({"train": table(train), "validation": table([(f"{words} today", "bad"), (text(99), "good")])}))
    assert found(report, "near-duplicate")[0].rows == (("train", 62),)
    assert found(report, "near-leak")[0].rows == (("validation", 1),)


def test_as_dict_is_plain_json() -> None:
    import json

    facts = json.loads(json.dumps(audit(load(table(labelled(100)))).as_dict()))
    assert list(facts) == ["version", "source", "task", "labels", "splits", "overlap", "tokens", "findings"]
    assert list(facts["splits"]["train"]) == ["rows", "unlabelled", "labels", "words"]


def test_unlabelled_data_can_be_audited() -> None:
    from whet.data.examples import load_examples

    report = audit(load_examples({"text": [text(1), text(1)]}, labelled=False))
    assert found(report, "duplicate")[0].count == 1


def test_leak_is_found_wherever_the_made_split_put_the_row() -> None:
    rows = labelled(40)
    for seed in range(5):
        report = audit(load({"train": table(rows), "test": table([rows[0], (text(99), "bad")])}, split_seed=seed))
        assert [finding.code for finding in report.errors] == ["leak"]
