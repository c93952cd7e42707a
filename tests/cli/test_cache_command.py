import json

import pytest
from click.testing import CliRunner

from whet.cli.cache import cache as command
from whet.data import cache as store


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("WHET_CACHE", str(tmp_path))
    for key in ("a", "b"):
        store.get_or_build("tokens", key, lambda folder: (folder / "x").write_text("x" * 1500), note=f"rows of {key}")
    yield tmp_path
    for path in [path for path in store._held if tmp_path in path.parents]:
        store._release(path)


def run(*arguments):
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_it_says_where_what_and_how_much(root):
    output = run()
    assert f"{root}: 2 entries, 3.0 kB of at most 20 GB" in output
    assert "rows of a" in output
    assert "in use" in output


def test_clear_leaves_what_is_in_use(root):
    store._release(root / "tokens" / "a")
    assert run("--clear").startswith("Removed 1 entry, 1.5 kB.")
    assert [entry.key for entry in store.entries()] == ["b"]


def test_a_limit_holds_now_and_later(root):
    store._release(root / "tokens" / "a")
    store._release(root / "tokens" / "b")
    assert "Removed 2 entries" in run("--limit", "0.000001")
    assert store.read_limit() == 0.000001


def test_json_is_one_object(root):
    found = json.loads(run("--json"))
    assert found["bytes"] == 3000
    assert {entry["key"] for entry in found["entries"]} == {"a", "b"}
    assert found["removed"] == []


def test_an_empty_cache_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("WHET_CACHE", str(tmp_path / "none"))
    assert "0 entries, 0 B" in run("--clear")
