"""docs/faults.md names tests: they must be there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")


def test_every_test_that_a_promise_names_is_where_it_says() -> None:
    places = dict(re.findall(r"`([A-Z])`\s+(?:is )?`(tests/[\w/.]+)`", PAGE))
    named = 0
    for letter, tests in re.findall(r" ([A-Z]) ((?:`test_\w+`(?:, )?)+)", PAGE):
        code = (ROOT / places[letter]).read_text(encoding="utf-8")
        for test in re.findall(r"test_\w+", tests):
            assert f"def {test}(" in code
            named += 1
    assert named == PAGE.count("`test_") > 40
