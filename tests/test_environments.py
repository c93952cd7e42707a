"""Poor environments: each command works there, or ends with one line that says what to do; never with a traceback."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from whet.tools.selftest.tiny_run import train_arguments, write_model, write_rows

Ended = tuple[int, str]
WHET = [sys.executable, "-m", "whet"]
UNKNOWN_USER = 54321

# As real as it gets without a limit that root is exempt from: the system refuses every new process, not threads.
NO_FORK = """
import ctypes, os, struct, sys
def instruction(code, yes, no, value): return struct.pack("HBBI", code, yes, no, value)
LOAD, EQUALS, HAS_BITS, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, REFUSE, NO_SUCH_CALL, CLONE_THREAD = 0x7FFF0000, 0x50000 | 1, 0x50000 | 38, 0x10000
program = b"".join(instruction(*each) for each in [
    (LOAD, 0, 0, 0), (EQUALS, 5, 0, 57), (EQUALS, 4, 0, 58), (EQUALS, 4, 0, 435), (EQUALS, 0, 4, 56),
    (LOAD, 0, 0, 16), (HAS_BITS, 2, 0, CLONE_THREAD), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, NO_SUCH_CALL),
    (RETURN, 0, 0, ALLOW)])
code = ctypes.create_string_buffer(program)
about = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 10, ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(about), 0, 0):
    sys.exit(99)
os.execv(sys.executable, [sys.executable, "-m", "whet", *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environments")
    write_rows(folder / "rows.csv", 40)
    write_model(folder / "model")
    return folder


@pytest.fixture
def place(home: Path, tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").symlink_to(home / "rows.csv")
    (tmp_path / "model").symlink_to(home / "model")
    return tmp_path


def ended(command: list[str], place: Path, **variables: str | None) -> Ended:
    """Exit code and all that was printed, of a command whose environment holds little more than these variables."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "OMP_NUM_THREADS")}
    given = {"HOME": str(place), "WHET_CACHE": str(place / "cache"), "HF_HUB_OFFLINE": "1", **variables}
    environment = kept | {name: value for name, value in given.items() if value is not None}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, timeout=600)
    output = (done.stdout + done.stderr).decode(errors="replace")
    assert "Traceback" not in output
    return done.returncode, output


def shell(setting: str, command: list[str], place: Path, **variables: str | None) -> Ended:
    return ended(["bash", "-c", f"{setting}; exec {shlex.join(command)}"], place, **variables)


def check() -> list[str]:
    return [*WHET, "check", "rows.csv"]


def train(place: Path) -> list[str]:
    arguments = train_arguments(Path("rows.csv"), Path("model"), place / "run", epochs=None, max_steps=2)
    return [*WHET, *arguments]


def unknown_user(command: list[str]) -> list[str]:
    """As a user that stands in no list, in a namespace: with the rights to files that the tests have."""
    inside = ["unshare", "--user", f"--map-user={UNKNOWN_USER}"]
    try:
        works = subprocess.run([*inside, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        works = False
    if not works:
        pytest.skip("a user namespace takes Linux, unshare and rights that this user does not have")
    return [*inside, *command]


def in_own_mounts(commands: str, command: list[str]) -> list[str]:
    inside = ["unshare", "--mount"]
    if os.geteuid() or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("mounting a file system takes rights that this user does not have")
    return [*inside, "bash", "-c", f"set -e; {commands}; exec {shlex.join(command)}"]


# --- users and variables --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["check", "rows.csv"], ["cache"], ["check", "~/rows.csv"]])
def test_an_unknown_user_without_home_gets_one_line(command: list[str], place: Path) -> None:
    code, output = ended(unknown_user([*WHET, *command]), place, HOME=None, WHET_CACHE=None)
    assert code == 4
    said, hint = output.splitlines()
    assert "HOME is not set" in said
    assert "WHET_CACHE" in hint


def test_an_unknown_user_with_a_cache_checks(place: Path) -> None:
    code, output = ended(unknown_user(check()), place, HOME=None)
    assert (code, "train" in output) == (0, True)


@pytest.mark.slow
def test_an_unknown_user_with_a_cache_trains_and_predicts(place: Path) -> None:
    assert ended(unknown_user(train(place)), place, HOME=None)[0] == 0
    assert ended(unknown_user([*WHET, "predict", "run", "--text", "yes"]), place, HOME=None)[0] == 0


@pytest.mark.parametrize(
    "variables",
    [{"HOME": None}, {"TZ": "Nowhere/Nothing"}, {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"}],
    ids=["no HOME", "no such TZ", "LANG=C"],
)
def test_a_poor_environment_is_enough_to_check(variables: dict[str, str | None], place: Path) -> None:
    assert ended(check(), place, USER=None, **variables)[0] == 0


def test_texts_beyond_the_terminals_letters_are_printed_somehow(place: Path) -> None:
    (place / "ü.csv").write_text("text,label\n" + "".join(f"犬 {n},{('gut', 'übel')[n % 2]}\n" for n in range(40)))
    plain = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert ended([*WHET, "check", "ü.csv"], place, **plain)[0] == 0


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_working_folder_that_was_deleted_is_enough_to_check(place: Path) -> None:
    command = [*WHET, "check", str(place / "rows.csv")]
    assert shell("mkdir gone; cd gone; rmdir ../gone", command, place)[0] == 0


@pytest.mark.slow
def test_a_read_only_working_folder_gets_one_line(place: Path) -> None:
    (place / "closed").mkdir()
    arguments = [str(place / each) if each in ("rows.csv", "model") else each for each in train(place)]
    without_run = [each for each in arguments if each not in ("--run", str(place / "run"))]
    command = in_own_mounts(f"mount -t tmpfs -o ro tmpfs {place}/closed; cd {place}/closed", without_run)
    code, output = ended(command, place)
    assert (code, output.splitlines()[-2]) == (4, "whet: Cannot write to 'runs/rows-001': Read-only file system.")


def test_no_temporary_folder_gets_one_line(place: Path) -> None:
    # The tests' own folder may lie in /tmp: it can be written to in another place. Python itself may lie there, too.
    read_only = "mount --bind $each $each; mount -o remount,ro,bind $each"
    mounts = f"mount --bind {place} /mnt; for each in /tmp /var/tmp; do {read_only}; done"
    command = in_own_mounts(f"{mounts}; cd /proc", [*WHET, "check", "/mnt/rows.csv"])
    code, output = ended(command, place, WHET_CACHE="/mnt/cache", HOME="/mnt")
    assert code == 4
    said, hint = output.splitlines()
    assert "No usable temporary directory" in said
    assert "TMPDIR" in hint


def test_a_full_temporary_folder_is_passed_over(place: Path, small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    assert ended(check(), place, TMPDIR=str(small_disk))[0] == 0


@pytest.mark.slow
def test_hardly_any_shared_memory_is_enough_to_train(place: Path) -> None:
    command = in_own_mounts("mount -t tmpfs -o size=4k tmpfs /dev/shm", train(place))
    assert ended(command, place)[0] == 0


# --- limits and streams ---------------------------------------------------------------------------------------------


def test_few_open_files_are_enough_to_check(place: Path) -> None:
    assert shell("ulimit -n 64", check(), place)[0] == 0


@pytest.mark.slow
def test_few_open_files_are_enough_to_train(place: Path) -> None:
    assert shell("ulimit -n 64", train(place), place)[0] == 0
    code, output = shell("ulimit -n 16", [*train(place), "--run", str(place / "other")], place)
    assert code in (0, 4), output


def without_fork(arguments: list[str]) -> list[str]:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("the filter of system calls is written for Linux on x86-64")
    return [sys.executable, "-c", NO_FORK, *arguments]


def test_nothing_is_forked_to_check(place: Path) -> None:
    code, output = ended(without_fork(["check", "rows.csv"]), place)
    if code == 99:
        pytest.skip("the system takes no filter of system calls")
    assert code == 0, output


def test_a_self_test_without_processes_gets_one_line(place: Path) -> None:
    code, output = ended(without_fork(["selftest", "--kills", "1"]), place)
    if code == 99:
        pytest.skip("the system takes no filter of system calls")
    assert code == 4
    assert "could not start a process: Operation not permitted" in output


@pytest.mark.slow
def test_nothing_is_forked_to_train_and_several_processes_get_one_line(place: Path) -> None:
    code, output = ended(without_fork(train(place)[len(WHET) :]), place)
    if code == 99:
        pytest.skip("the system takes no filter of system calls")
    assert code == 0, output
    code, output = ended(without_fork([*train(place)[len(WHET) :], "--processes", "2"]), place)
    assert code == 4
    assert "2 processes could not be started: Operation not permitted" in output


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_enough_to_check(closed: str, place: Path) -> None:
    assert shell(f"exec {closed}", check(), place)[0] == 0


def test_rows_from_a_closed_input_are_refused_in_one_line(place: Path) -> None:
    code, output = shell("exec <&-", [*WHET, "check", "-"], place)
    assert (code, output.splitlines()[0]) == (2, "whet: The source is '-', and standard input is closed.")


@pytest.mark.slow
def test_closed_streams_are_enough_to_train(place: Path) -> None:
    assert shell("exec <&- >&- 2>&-", train(place), place)[0] == 0
    assert (place / "run" / "report.html").is_file()
