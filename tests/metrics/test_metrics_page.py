import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_examples_of_the_page_give_what_it_shows():
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 15
    assert result.failed == 0
