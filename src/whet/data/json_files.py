"""x"""

from typing import Any


def read_json(*a: Any) -> Any: ...
