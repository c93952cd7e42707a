from __future__ import annotations

import threading
import time

import pytest

from whet.utils.background import BackgroundTasks, run_in_background


def refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_work_is_done_on_another_thread() -> None:
    assert run_in_background("other", threading.current_thread).result().name == "other"


def test_work_is_done_by_the_caller_where_no_thread_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert run_in_background("other", threading.current_thread).result() is threading.current_thread()


@pytest.mark.parametrize("refused", [False, True])
def test_what_it_raises_is_raised_to_whoever_asks(refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if refused:
        monkeypatch.setattr(threading.Thread, "start", refuse)
    with BackgroundTasks("other") as beside:
        future = beside.submit(int, "no number")
    with pytest.raises(ValueError, match="no number"):
        future.result()


def test_all_is_over_when_it_is_left() -> None:
    done: list[int] = []

    def late() -> None:
        time.sleep(0.2)
        done.append(1)

    with BackgroundTasks("other") as beside:
        beside.submit(late)
    assert done == [1]
