"""Strings that steer a terminal, through every command: none of their characters reaches standard output or error."""

from __future__ import annotations

import json
import os
import shutil
import threading
import unicodedata
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tests.run_folders import build_run
from whet.cli import main
from whet.records import End, Finding
from whet.runs.folder import RunFolder
from whet.tools.selftest.tiny_run import WORDS, write_model

# ESC, BEL, CSI, OSC 8 (a link), OSC 52 (the clipboard), C1, a bidi override, a carriage return, backspaces.
STEERING = "\x1b[31m\x07\x9b2J\x1b]8;;http://e.org\x1b\\\x1b]52;c;ZQ==\x07\x85\u202e\u2066\rover\x08\x08"
NAME = STEERING.replace("/", "-")
"""The same as a file's name."""


def steers(text: str) -> str:
    """What is left in an output that a terminal, or the eye, would be steered by."""
    allowed = "\n\u2068\u2069"  # isolates of ours, which are closed
    found = {c for c in text if c not in allowed and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    return " ".join(f"U+{ord(char):04X}" for char in sorted(found))


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def call(*arguments: object) -> tuple[int, str]:
        capsys.readouterr()
        code = main([str(each) for each in arguments])
        shown = capsys.readouterr()
        assert steers(shown.out + shown.err) == "", ascii(shown)
        assert shown.out + shown.err
        return code, shown.out + shown.err

    return call


Command = Callable[..., tuple[int, str]]


def write_hostile_rows(path: Path) -> None:
    """Labels, texts and column names that steer, as JSON lines: CSV could not carry all of them."""
    lines = []
    for index in range(60):
        word, label = (("no", f"bad{STEERING}"), ("yes", f"good{STEERING}"))[index % 2]
        text = f"{word} {WORDS[index % 10]} {WORDS[index // 10]} {index} {STEERING}"
        lines.append(json.dumps({f"text{STEERING}": text, f"label{STEERING}": label}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / f"in{NAME}"
    folder.mkdir()
    write_hostile_rows(folder / f"rows{NAME}.jsonl")
    write_model(folder / f"model{NAME}")
    return folder


def training(place: Path, run: str = "run") -> list[object]:
    columns = ["--text", f"text{STEERING}", "--label", f"label{STEERING}", "--task", "binary"]
    settings = ["--max-steps", 4, "--evaluations", 2, "--batch-size", 8, "--device", "cpu"]
    return [place / f"rows{NAME}.jsonl", *columns, "--model", place / f"model{NAME}", "--run", place / run, *settings]


@pytest.fixture(scope="module")
def trained(place: Path) -> Path:
    assert main(["train", *map(str, training(place, f"run{NAME}")), "--quiet"]) == 0
    return place / f"run{NAME}"


@pytest.mark.parametrize("flags", [[], ["--json"], ["--dry-run"]], ids=str)
def test_train_and_its_progress(run_command: Command, place: Path, tmp_path: Path, flags: list[str]) -> None:
    assert run_command("train", *training(place, f"again{NAME}{len(flags)}{''.join(flags)[:4]}"), *flags)[0] == 0


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=str)
def test_check(run_command: Command, place: Path, flags: list[str]) -> None:
    columns = ["--text", f"text{STEERING}", "--label", f"label{STEERING}", "--task", "binary"]
    code, shown = run_command("check", place / f"rows{NAME}.jsonl", *columns, *flags)
    assert code == 0
    if flags:
        assert set(json.loads(shown)["splits"]["train"]["labels"]) == {f"bad{STEERING}", f"good{STEERING}"}


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=str)
def test_predict(run_command: Command, place: Path, trained: Path, flags: list[str]) -> None:
    code, shown = run_command("predict", trained, place / f"rows{NAME}.jsonl", *flags)
    assert (code, len(shown.splitlines())) == (0, 60)
    if flags:
        assert json.loads(shown.splitlines()[0])["label"] in (f"bad{STEERING}", f"good{STEERING}")
    assert run_command("predict", trained, "--text", STEERING, *flags)[0] == 0


def test_predict_says_where_its_file_is(run_command: Command, place: Path, trained: Path) -> None:
    assert run_command("predict", trained, place / f"rows{NAME}.jsonl", "-o", place / f"out{NAME}.csv")[0] == 0


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=str)
def test_commands_on_a_trained_run(run_command: Command, place: Path, trained: Path, flags: list[str]) -> None:
    assert run_command("evaluate", trained, place / f"rows{NAME}.jsonl", *flags)[0] == 0
    assert run_command("runs", place, *flags)[0] == 0
    assert run_command("verdict", trained, *flags)[0] == 0
    other = trained.with_name(f"other{NAME}")
    if not other.exists():
        shutil.copytree(trained, other)
    assert run_command("compare", trained, other, *flags)[0] == 0
    assert run_command("cache", *flags)[0] == 0


def test_report_and_watch(run_command: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_command("report", trained)[0] == 0

    def end(self: Any, timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    from whet.cli import pages

    monkeypatch.setattr(pages.threading, "Event", type("Event", (threading.Event,), {}))
    monkeypatch.setattr(pages.threading.Event, "wait", end)
    from whet.runs.live import server as live

    monkeypatch.setattr(live, "start", lambda *given: _Served())
    assert run_command("watch", trained)[0] == 0


class _Served:
    url, ssh_line = "http://127.0.0.1:1/", f"ssh {STEERING}"

    def stop(self) -> None: ...


def copied(path: Path) -> Path:
    """A run folder as somebody might send it: whatever has a name or a sentence in it steers."""
    folder = build_run(path, labels=[f"one{STEERING}", f"two\n{STEERING}"], rows=40, source=STEERING)
    folder.append(Finding(step=240, about="engine", sentence=STEERING))
    folder.append(End(step=240, reason=STEERING, best_step=240, seconds=1.0))
    for name in ("data.json", "environment.json"):
        text = (path / name).read_text(encoding="utf-8")
        (path / name).write_text(text.replace("reviews.csv", json.dumps(STEERING)[1:-1]), encoding="utf-8")
    lines = (path / "records.jsonl").read_text(encoding="utf-8")
    (path / "records.jsonl").write_text(lines.replace('"accuracy"', json.dumps(f"acc{STEERING}")), encoding="utf-8")
    return path


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=str)
def test_the_records_of_a_copied_run(run_command: Command, tmp_path: Path, flags: list[str]) -> None:
    one, two = copied(tmp_path / f"one{NAME}\n"), copied(tmp_path / f"two{NAME}")
    assert run_command("runs", tmp_path, *flags)[0] == 0
    run_command("verdict", one, *flags)
    run_command("compare", one, two, *flags)
    if not flags:
        assert run_command("report", one)[0] == 0
    (two / "records.jsonl").write_text(STEERING)
    run_command("verdict", two, *flags)


@pytest.mark.parametrize("name", ["model_type", "auto_map", "id2label", "architectures", "problem_type"])
def test_a_hostile_config(run_command: Command, place: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / f"model{NAME}"
    shutil.copytree(place / f"model{NAME}", folder)
    changes: dict[str, Any] = {
        "model_type": STEERING,
        "auto_map": {"AutoModel": STEERING},
        "id2label": {"0": STEERING, "1": "b"},
        "architectures": [STEERING],
        "problem_type": STEERING,
    }
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, name: changes[name]}))
    (folder / "README.md").write_text(STEERING)
    assert run_command("predict", folder, "--text", "yes")[0] == 3
    run_command("train", *training(place, f"config-{name}"), "--model", folder, "--dry-run")


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", STEERING],
        ["check", STEERING],
        ["check", "sample/pairs", "--text", STEERING],
        ["check", "sample/pairs", "--set", f"{STEERING}=1"],
        ["check", "sample/pairs", "--task", STEERING],
        ["predict", NAME, "--text", "a"],
        ["predict", "minilm", "x.csv", "-o", STEERING],
        ["evaluate", NAME, NAME],
        ["runs", NAME],
        ["verdict", NAME],
        ["compare", NAME, NAME],
        ["report", NAME],
        ["watch", NAME],
        ["bench", STEERING],
        ["cache", STEERING],
        ["selftest", STEERING],
        [STEERING],
        [f"--{STEERING}"],
    ],
    ids=lambda arguments: arguments[0].encode("ascii", "replace").decode()[:8],
)
def test_a_mistake_is_told_without_its_characters(
    run_command: Command, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_command(*arguments)


def test_bytes_that_are_no_text_in_a_name(run_command: Command, tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[31m")
    build_run(Path(path), rows=20, predictions=False)
    assert run_command("runs", tmp_path)[0] == 0
    assert run_command("verdict", path)[0] == 0


def test_a_traceback_of_ours_is_neutral_too(
    run_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHET_DEBUG", "1")
    assert "Traceback" in run_command("check", tmp_path / NAME)[1]


def test_rich_sends_its_own_colours_and_nothing_else(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real terminal: tables of `check`, with findings in colour."""
    pytest.importorskip("termios")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    hostile = place / "coloured.jsonl"
    column = f"[link=http://e.org]text[/link]{STEERING}"
    rows = [{column: f"text {at // 3}", "label": f"{'ab'[at % 2]}{STEERING}[red]"} for at in range(90)]
    hostile.write_text("\n".join(map(json.dumps, rows)))
    text = on_a_terminal(
        lambda: main(["check", str(hostile), "--text", column, "--label", "label", "--task", "binary"])
    )
    assert "\x1b[33m" in text or "\x1b[31m" in text  # the words "warning" and "error", in colour
    assert "[red]" in text
    left = text.replace("\r\n", "\n")
    for ours in ("\x1b[31m", "\x1b[33m", "\x1b[36m", "\x1b[1m", "\x1b[0m"):
        left = left.replace(ours, "")
    assert steers(left) == ""


def test_the_live_line_sends_nothing_of_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("termios")
    monkeypatch.setenv("TERM", "xterm-256color")

    def echo() -> None:
        from whet.cli.output import guarded_output
        from whet.cli.terminal import Terminal

        with guarded_output(), Terminal() as terminal:
            terminal.echo(STEERING)
            print(STEERING)
            print("\x1b[31mred\x1b[0m")

    text = on_a_terminal(echo)
    for payload in ("\x07", "\x9b", "\x1b]", "\x85", "\u202e", "\x1b[31m", "\x08"):
        assert payload not in text


def on_a_terminal(act: Callable[[], object]) -> str:
    """All that a real terminal is sent."""
    reading, writing = os.openpty()
    received: list[bytes] = []

    def read() -> None:
        while True:
            try:
                received.append(os.read(reading, 65536))
            except OSError:
                return

    reader = threading.Thread(target=read)
    reader.start()
    with open(writing, "w", encoding="utf-8") as stream:
        with redirect_stdout(stream), redirect_stderr(stream):
            act()
        stream.flush()
    reader.join()
    os.close(reading)
    return b"".join(received).decode()


def test_a_run_made_of_names_can_still_be_read_back(trained: Path) -> None:
    """Nothing is replaced in what is kept."""
    assert RunFolder.open(trained).data["labels"] == [f"bad{STEERING}", f"good{STEERING}"]
