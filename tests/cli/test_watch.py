from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from tests.run_folders import build_run
from whet.cli.watch import watch
from whet.errors import EnvironmentFault, UsageError


def test_the_page_is_served_until_ctrl_c_and_its_address_is_said(tmp_path: Path) -> None:
    build_run(tmp_path / "run", rows=20)
    # A shell's background job ignores Ctrl-C, and so would everything that is started in it.
    listens = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    script = f"{listens}; from whet.cli.watch import watch; watch()"
    command = [sys.executable, "-c", script, str(tmp_path), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
    assert found
    assert httpx.get(f"{found[0]}api/runs").json()["runs"][0]["name"] == "run"
    said = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert f"ssh -L {found[1]}:127.0.0.1:{found[1]}" in said
    assert process.returncode == 0


def test_no_such_folder_is_said(tmp_path: Path) -> None:
    answer = CliRunner().invoke(watch, [str(tmp_path / "no-such")])
    assert isinstance(answer.exception, UsageError)


def test_a_port_that_was_asked_for_and_is_taken_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        answer = CliRunner().invoke(watch, [str(tmp_path), "--port", str(taken.getsockname()[1])])
    assert isinstance(answer.exception, EnvironmentFault)
    with pytest.raises(EnvironmentFault, match="--port"):
        raise answer.exception
