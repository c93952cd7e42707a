from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.run_folders import HOSTILE, build_run
from whet.errors import EnvironmentFault
from whet.records import End
from whet.runs.folder import RunFolder
from whet.runs.report.content import read_report
from whet.runs.report.html import as_data, markdown_escaped, write_markdown, write_report


class Parsed(HTMLParser):
    """Tags and visible text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.attributes: list[str] = []
        self._silent = False
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]
        self._silent = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._silent = False

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.text += data


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel", "regression"])
def test_every_part_of_a_finished_run_is_made(tmp_path: Path, task: str) -> None:
    report = read_report(build_run(tmp_path / "run", task=task))
    assert report.notes == []
    assert report.scores.main is not None
    assert report.scores.main.interval
    assert report.scores.splits == ["validation", "test"]
    assert report.worst
    assert (report.confusion is not None) == (task in ("binary", "multiclass"))
    assert (report.scatter is not None) == (task == "regression")


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel", "regression"])
def test_the_constant_answer_stands_beside_the_score_on_both_splits(tmp_path: Path, task: str) -> None:
    scores = read_report(build_run(tmp_path / "run", task=task, rows=40)).scores
    beside = {(each.split, each.metric) for each in scores.table if each.majority}
    assert {metric for split, metric in beside if split == "test"} == {
        metric for split, metric in beside if split == "validation"
    }


@pytest.mark.parametrize(
    "how",
    [
        {"finished": False},
        {"finished": False, "evaluations": 0},
        {"test": False},
        {"predictions": False},
        {"evaluations": 1},
        {"rows": 2},
        {"task": "multiclass", "labels": [f"class {k}" for k in range(40)]},
    ],
)
def test_a_partial_run_gets_a_report_without_gaps_in_it(tmp_path: Path, how: dict[str, object]) -> None:
    folder = build_run(tmp_path / "run", **how)  # type: ignore[arg-type]
    assert "Left out" not in Parsed(write_report(folder).read_text()).text
    assert write_markdown(folder).stat().st_size > 500


def test_a_run_that_has_only_settings_gets_a_report(tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run")
    for name in ("records.jsonl", "data.json", "environment.json", "predictions.parquet"):
        (folder.path / name).unlink()
    assert "Nothing was recorded yet." in write_report(folder).read_text()


def test_a_damaged_file_costs_its_part_and_is_named(tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run")
    (folder.path / "predictions.parquet").write_bytes(b"not parquet")
    (folder.path / "data.json").write_text("{")
    page = Parsed(write_report(folder).read_text()).text
    assert "Left out" in page
    assert "predictions:" in page
    assert "data.json" in page


def test_text_labels_and_names_are_shown_and_never_run(tmp_path: Path) -> None:
    plain = Parsed(write_report(build_run(tmp_path / "plain")).read_text())
    page = Parsed(write_report(build_run(tmp_path / "<b>run", hostile=True)).read_text())
    assert HOSTILE in page.text
    assert "<b>run" in page.text
    assert page.tags.count("script") == plain.tags.count("script") == 2
    assert "img" not in page.tags
    assert "b" not in set(page.tags) - set(plain.tags)
    assert "onerror" not in page.attributes


def test_data_in_the_page_cannot_end_its_script() -> None:
    text = as_data({"name": "</script><!-- &\u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"name": "</script><!-- &\ufffd"}


def test_the_page_asks_for_nothing_outside(tmp_path: Path) -> None:
    page = write_report(build_run(tmp_path / "run")).read_text()
    assert "default-src 'none'; script-src 'sha256-" in unescape(page)
    assert not re.findall(r"(?:src|href)=[\"'](?!#)", page)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


def test_a_typical_report_is_small(tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run", steps=2000, rows=1000)
    assert write_report(folder).stat().st_size < 400_000


def test_markdown_brings_its_plots(tmp_path: Path) -> None:
    path = write_markdown(build_run(tmp_path / "run"))
    plots = re.findall(r"\]\((\S+\.svg)\)", path.read_text())
    assert "report_files/loss.svg" in plots
    assert all((path.parent / plot).read_text().startswith("<svg") for plot in plots)


def test_markdown_shows_the_mistakes_as_the_page_does(tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run")
    mistake = read_report(folder).confusion.mistakes[0]
    assert f"{mistake.examples[0].row}: " in write_markdown(folder).read_text()


def test_markdown_shows_text_as_it_is() -> None:
    assert markdown_escaped("a|b\n<i> @me #1 *x* `y` [z](u)") == (
        "a&#124;b &lt;i&gt; &#64;me &#35;1 \\*x\\* \\`y\\` \\[z\\]\\(u\\)"
    )


def test_a_score_that_the_commonest_answer_reaches_is_said_to_be_no_better(tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run", predictions=False, rows=20)
    lines = (folder.path / "records.jsonl").read_text().splitlines()
    start = json.loads(lines[0])
    start["majority"]["accuracy"] = 0.97
    (folder.path / "records.jsonl").write_text("\n".join([json.dumps(start), *lines[1:]]) + "\n")
    assert any(remark.startswith("No better than always answering") for remark in read_report(folder).scores.remarks)


def test_early_stopping_says_what_it_saved(tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run", finished=False)
    folder.append(End(step=160, reason="patience", best_step=120, best_score=0.9, seconds=40.0))
    assert "That saved 80 steps, about 20 s." in read_report(folder).saved


def test_what_the_audit_found_is_told_with_its_rows(tmp_path: Path) -> None:
    page = Parsed(write_report(build_run(tmp_path / "run")).read_text()).text
    assert "3 texts stand there with two different labels." in page
    assert "(train rows 17, 204)" in page
    assert "14 (1.1%)" in page


def test_changed_settings_come_first(tmp_path: Path) -> None:
    settings = read_report(build_run(tmp_path / "run", epochs=7)).settings
    assert [(each.name, each.value) for each in settings if each.changed] == [
        ("source", "reviews.csv"),
        ("epochs", "7"),
    ]
    assert settings[0].changed


def test_a_mistake_in_the_matrix_leads_to_rows(tmp_path: Path) -> None:
    page = write_report(build_run(tmp_path / "run")).read_text()
    links = re.findall(r'href="#(mistake-\d-\d)"', page)
    assert links
    assert all(f'id="{link}"' in page for link in links)


def test_a_report_can_go_elsewhere_and_says_when_it_cannot(tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run")
    assert write_report(folder, tmp_path / "mine.html") == tmp_path / "mine.html"
    with pytest.raises(EnvironmentFault, match="no-such"):
        write_report(folder, tmp_path / "no-such" / "mine.html")


def test_reading_a_run_loads_no_torch() -> None:
    import subprocess
    import sys

    imports = "import sys, whet.runs.report.html, whet.runs.report.svg"
    code = f"{imports}; assert not {{'torch', 'jinja2', 'sklearn'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_copied_run_without_its_settings_is_still_reported(tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run")
    (folder.path / "config.toml").unlink()
    assert RunFolder.open(folder.path)
    assert "accuracy" in write_report(folder).read_text()


def test_labels_that_no_row_of_a_split_has_are_named() -> None:
    import numpy as np

    from whet.runs.report.mistakes import PredictedRows
    from whet.runs.report.scores import _unmeasured

    labels = np.array([0, 0, 2])
    given = PredictedRows(
        split="test",
        task="multiclass",
        names=["a", "b", "c"],
        rows=np.arange(3),
        texts=["x"] * 3,
        pairs=None,
        labels=labels,
        logits=np.eye(3),
    )
    assert _unmeasured(given, "test") == "Not measured, for no test row has them: 'b'."


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel", "regression"])
def test_simpler_answers_stand_beside_the_model_on_both_pages(tmp_path: Path, task: str) -> None:
    folder = build_run(tmp_path / "run", task=task, baselines=True)
    tables = read_report(folder).baselines
    assert [len(table.lines) for table in tables] == [4, 4]
    assert [line.name for line in tables[0].lines if line.is_model] == ["fine-tuned"]
    page, card = Parsed(write_report(folder).read_text()).text, write_markdown(folder).read_text()
    for line in tables[1].lines:
        assert line.name in page
        assert line.value in page
        assert f"| {line.value} |" in card
    assert "worse (p = " in page
    assert "Left out: TF-IDF: no words" in page
    assert "Left out: TF-IDF: no words" in card


def test_a_run_without_baselines_has_no_such_part(tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run")
    assert read_report(folder).baselines == []
    assert "simpler answers" not in write_report(folder).read_text()


def test_how_sure_a_verdict_is_stands_on_the_page_once(tmp_path: Path) -> None:
    many, few = (build_run(tmp_path / str(rows), rows=rows) for rows in (400, 16))
    unsure = Parsed(write_report(few).read_text()).text
    assert "Unsure: 16 evaluation rows" in unsure
    assert not re.search(r"Confidence \d", unsure)
    assert re.search(r"Confidence \d", Parsed(write_report(many).read_text()).text)
