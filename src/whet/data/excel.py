"""x"""

from typing import Any


def read_excel(*a: Any) -> Any: ...
