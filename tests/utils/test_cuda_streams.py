from __future__ import annotations

import gc
from itertools import count

import pytest
import torch

from whet.utils import cuda_streams
from whet.utils.background import run_in_background
from whet.utils.cuda_streams import give_back_stream, stream_of, take_stream
from whet.utils.safetensors_files import safetensors_pieces

DEVICE = torch.device("cuda", 0)


class Owner:
    """Anything that computes on a stream of its own."""


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams as torch hands them out: 32, and then the first again."""
    calls = count()
    monkeypatch.setattr(cuda_streams, "_free", cuda_streams.defaultdict(list))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority=0: f"stream {next(calls) % 32}")


def test_no_owner_gets_the_stream_of_another(pool: None) -> None:
    owner = Owner()
    own = stream_of(owner, DEVICE)
    for _ in range(100):
        taken = take_stream(DEVICE)
        assert taken != own
        give_back_stream(taken, DEVICE)


def test_a_stream_is_free_again_after_its_owner(pool: None) -> None:
    streams = set()
    for _ in range(100):
        streams.add(stream_of(Owner(), DEVICE))
        gc.collect()
    assert len(streams) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_graph_is_captured_while_the_hundredth_file_is_saved() -> None:
    owner, weights, x = Owner(), {"x": torch.ones(64, device="cuda")}, torch.ones(64, device="cuda")
    stream = stream_of(owner, DEVICE)
    torch.cuda.synchronize()
    for _ in range(100):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            x.mul_(2)
            run_in_background("saving", b"".join, safetensors_pieces(weights)).result()
            graph.capture_end()
