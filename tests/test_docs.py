"""Every block of the documentation that a reader would run is run; the site builds without a broken link."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from whet.tools.selftest.tiny_run import write_model

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
ELSEWHERE = {
    "course.md": "tests/huggingface/test_course.py runs it",
    "design.md": "its block names functions and their arguments",
    "experiments.md": "has no blocks",
    "decisions.md": "tests/inference/test_decisions.py reaches such goals",
    "export.md": "tests/inference/test_onnx.py exports",
    "serving.md": "tests/inference/serving, tests/inference/test_bulk.py, tests/adapters run what it shows",
    "metrics.md": "tests/metrics/test_metrics_page.py runs it",
    "data.md": "tests/data/test_data_page.py runs it",
}
FENCE = re.compile(r"^(?:<!-- not run: (?P<why>.+) -->\n)?```(?P<kind>console|python)\n(?P<body>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    kind: str
    body: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [(match, text[: match.start()].count("\n") + 1) for match in FENCE.finditer(text)]
    return [Block(match["kind"], match["body"], line) for match, line in found if not match["why"]]


PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if page.name not in ELSEWHERE and page.parent.name != "reference" and blocks_of(page)
]


def test_pages_with_blocks_are_found() -> None:
    assert {"get-started.md", "reviews.md", "several-labels.md", "own-loop.md"} <= {page.name for page in PAGES}
    assert all((DOCS / name).exists() for name in ELSEWHERE)


@pytest.fixture(scope="session")
def trained(warm: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example files, and the runs that pages speak of, trained for a few steps."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("tiny", "bert-base-uncased"):
        write_model(folder / name, width=32)
    for file in (DOCS / "examples").iterdir():
        shutil.copy(file, folder)
    for source, name in (("reviews.csv", "reviews-001"), ("sample/pairs", "pairs-001")):
        run_whet(warm, folder, ["train", source, "--run", f"runs/{name}", "--quiet"])
    return folder


def settings(folder: Path) -> dict[str, str]:
    """Short trainings of a tiny model, wherever a page does not say otherwise."""
    return {"WHET_MODEL": str(folder / "tiny"), "WHET_MAX_STEPS": "4", "WHET_CACHE": str(folder / "cache")}


def run_whet(warm: Any, folder: Path, arguments: list[str]) -> None:
    command = warm.start(arguments, folder, environment=settings(folder))
    status = command.wait(240)
    assert status == 0, f"whet {shlex.join(arguments)}\n{command.output.read_text()}"


def commands_of(block: Block) -> list[str]:
    return [line[2:].split("  #")[0].strip() for line in block.body.splitlines() if line.startswith("$ ")]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_blocks_run_from_top_to_bottom(
    page: Path, warm: Any, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "page"
    shutil.copytree(trained, folder)
    if page.parent.name in ("tutorials", "how-to") or page.name == "get-started.md":
        shutil.rmtree(folder / "runs")  # these begin with nothing
    for name, value in settings(folder).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.kind == "python":
            exec(compile("\n" * block.line + block.body, str(page), "exec"), names)
            continue
        for command in commands_of(block):
            first, *arguments = shlex.split(command)
            if first == "whet":
                run_whet(warm, folder, arguments)
            else:
                subprocess.run(command, shell=True, check=True, cwd=folder, timeout=60)


@pytest.mark.slow
def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    copy = tmp_path / "site"
    ignore: Callable[..., Any] = shutil.ignore_patterns("reference")
    shutil.copytree(DOCS, copy / "docs", ignore=ignore)
    shutil.copy(ROOT / "mkdocs.yml", copy)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for command in (["docs/site/reference.py"], ["-m", "zensical", "build", "--strict"]):
        result = subprocess.run([sys.executable, *command], cwd=copy, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
    assert (copy / "site" / "tutorials" / "reviews.html").exists()
    assert "--help-all" in (copy / "site" / "reference" / "cli.html").read_text(encoding="utf-8")
