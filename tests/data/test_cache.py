import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from whet.data import cache
from whet.errors import EnvironmentFault, UsageError
from whet.utils import file_locks


def write(text):
    return lambda folder: (folder / "content").write_text(text)


def forget(path):
    """Give up this process's hold, as its end would."""
    cache._release(path)


def test_the_root_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("WHET_CACHE", str(tmp_path))
    assert cache.cache_root() == tmp_path
    monkeypatch.delenv("WHET_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / "whet"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_root() == Path.home() / ".cache" / "whet"


def test_a_fingerprint_tells_values_types_and_places_apart():
    parts = [
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        (b"abc",),
        (1,),
        (1.0,),
        (True,),
        ("1",),
        (None,),
        (["a"], "b"),
    ]
    parts += [(["a", "b"],), ({"a": 1},), ({"a": 2},)]
    assert len({cache.fingerprint(*each) for each in parts}) == len(parts)
    assert cache.fingerprint({"a": 1, "b": 2}) == cache.fingerprint({"b": 2, "a": 1})


def test_a_fingerprint_refuses_what_it_cannot_read():
    with pytest.raises(TypeError, match="object"):
        cache.fingerprint(object())


def test_an_entry_is_built_once(tmp_path):
    first = cache.get_or_build("tokens", "k", write("one"), root=tmp_path)
    again = cache.get_or_build("tokens", "k", write("two"), root=tmp_path)
    assert first == again
    assert (again / "content").read_text() == "one"


def test_a_failed_build_leaves_nothing(tmp_path):
    def fail(folder):
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.get_or_build("tokens", "k", fail, root=tmp_path)
    assert [path.name for path in (tmp_path / "tokens").iterdir()] == ["k.lock"]
    assert (cache.get_or_build("tokens", "k", write("x"), root=tmp_path) / "content").exists()


def test_a_damaged_entry_is_built_again(tmp_path):
    path = cache.get_or_build("tokens", "k", write("whole"), root=tmp_path)
    (path / "content").write_text("who")
    assert (cache.get_or_build("tokens", "k", write("whole"), root=tmp_path) / "content").read_text() == "whole"


def test_those_who_come_second_wait_and_use_what_the_first_built(tmp_path):
    begun, go_on, waited, builds = threading.Event(), threading.Event(), threading.Event(), []

    def slow(folder):
        builds.append(1)
        begun.set()
        go_on.wait(30)
        write("x")(folder)

    def second():
        cache.get_or_build("tokens", "k", slow, root=tmp_path, on_wait=lambda: (waited.set(), go_on.set()))

    one = threading.Thread(target=cache.get_or_build, args=("tokens", "k", slow), kwargs={"root": tmp_path})
    one.start()
    begun.wait(30)
    two = threading.Thread(target=second)
    two.start()
    one.join(30)
    two.join(30)
    assert waited.is_set()
    assert len(builds) == 1


def test_nobody_waits_for_a_process_that_uses_a_damaged_entry(tmp_path):
    path = cache.get_or_build("kind", "key", write("whole"), root=tmp_path)
    (path / "content").unlink()
    forget(path)
    with open(tmp_path / "kind" / "key.lock") as used_by_another:
        fcntl.flock(used_by_another, fcntl.LOCK_SH)
        path = cache.get_or_build("kind", "key", write("again"), root=tmp_path)
    assert (path / "content").read_text() == "again"


def test_waiting_can_be_interrupted(tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    (tmp_path / "tokens").mkdir()
    with file_locks.exclusive(tmp_path / "tokens" / "k.building"), pytest.raises(KeyboardInterrupt):
        cache.get_or_build("tokens", "k", write("x"), root=tmp_path, on_wait=interrupt)


def test_without_locks_the_loser_of_a_race_uses_the_winners_entry(tmp_path, monkeypatch):
    monkeypatch.setattr(file_locks, "fcntl", None)

    def beaten(folder):
        cache._build(tmp_path / "tokens" / "k", write("winner"), "")
        write("loser")(folder)

    path = cache.get_or_build("tokens", "k", beaten, root=tmp_path)
    assert (path / "content").read_text() == "winner"
    assert not list((tmp_path / "tokens").glob(".building-*"))


def test_making_room_takes_what_was_used_longest_ago(tmp_path):
    for age, key in enumerate("abc"):
        path = cache.get_or_build("tokens", key, write("x" * 1000), root=tmp_path)
        os.utime(tmp_path / "tokens" / f"{key}.lock", (age, age))
        forget(path)
    removed = cache.trim(2000 / cache.GB, root=tmp_path)
    assert [entry.key for entry in removed] == ["a"]
    assert [entry.key for entry in cache.entries(tmp_path)] == ["b", "c"]


def test_building_keeps_the_cache_under_its_limit(tmp_path):
    cache.write_limit(1500 / cache.GB, tmp_path)
    forget(cache.get_or_build("tokens", "a", write("x" * 1000), root=tmp_path))
    cache.get_or_build("tokens", "b", write("x" * 1000), root=tmp_path)
    assert [entry.key for entry in cache.entries(tmp_path)] == ["b"]


USE_AND_WAIT = """
import pathlib, sys
from whet.data import cache
cache.get_or_build("tokens", "k", lambda folder: (folder / "x").write_text("x"), root=pathlib.Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""


def test_an_entry_that_a_live_process_uses_is_not_removed(tmp_path):
    command = [sys.executable, "-c", USE_AND_WAIT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        try:
            assert user.stdout.readline() == "ready\n"
            assert cache.clear(tmp_path) == []
        finally:
            user.kill()
    assert [entry.key for entry in cache.clear(tmp_path)] == ["k"]
    assert list((tmp_path / "tokens").iterdir()) == []


def test_without_locks_only_old_entries_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(file_locks, "fcntl", None)
    cache.get_or_build("tokens", "k", write("x"), root=tmp_path)
    assert cache.clear(tmp_path) == []
    os.utime(tmp_path / "tokens" / "k.lock", (0, 0))
    assert len(cache.clear(tmp_path)) == 1


def test_what_a_killed_process_half_built_is_swept_up(tmp_path):
    script = (
        "import os, pathlib, sys; from whet.data import cache\n"
        "cache.get_or_build('tokens', 'k', lambda f: (f.joinpath('half').write_text('x'), os._exit(9)), "
        "root=pathlib.Path(sys.argv[1]))"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)]).returncode == 9
    assert list((tmp_path / "tokens").glob(".building-*"))
    cache.trim(root=tmp_path)
    assert list((tmp_path / "tokens").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match=r"file.*WHET_CACHE"):
        cache.get_or_build("tokens", "k", write("x"), root=tmp_path / "file")


def test_a_full_disk_is_an_environment_fault(tmp_path):
    def full(folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(EnvironmentFault, match="whet cache --clear"):
        cache.get_or_build("tokens", "k", full, root=tmp_path)


def test_the_limit_is_kept(tmp_path):
    assert cache.read_limit(tmp_path) == cache.DEFAULT_LIMIT_GB
    cache.write_limit(3.5, tmp_path)
    assert cache.read_limit(tmp_path) == 3.5
    with pytest.raises(UsageError, match="-1"):
        cache.write_limit(-1, tmp_path)
