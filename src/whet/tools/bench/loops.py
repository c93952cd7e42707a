"""The contenders of `whet bench loop`: the loop of the course, and the same loop with `TrainStep`, on the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from whet.config import Config
from whet.tools.bench.benchmark import WARM_STEPS, Contender, seconds
from whet.tools.bench.contenders import CHECK_STEPS, Answers, make_bench_job

Batch = dict[str, Any]
Step = Callable[[Batch], Any]


def loop(config: Config, who: Contender) -> Answers:
    """Build a training loop with torch's AdamW, a schedule and a loader that pads to the longest row of a batch."""
    from whet.utils.device import synchronize
    from whet.utils.memory import peak_memory_mb

    job = make_bench_job(config, "float32", engine=False)
    device = job.hardware.device
    step, path = _step_of(job, who)
    batches = _batches(job, shuffled=True)

    def turn(count: int) -> float:
        for _ in range(WARM_STEPS):
            step(next(batches))
        synchronize(device)

        def steps() -> None:
            for _ in range(count):
                step(next(batches))
            synchronize(device)

        return seconds(steps) / count

    def losses() -> list[float]:
        quiet = make_bench_job(config, "float32", engine=False, dropout=False)
        one, _ = _step_of(quiet, who)
        return [float(one(batch)) for _, batch in zip(range(CHECK_STEPS), _batches(quiet), strict=False)]

    return {
        "turn": turn,
        "memory": lambda: peak_memory_mb(device),
        "losses": losses,
        "path": lambda: path().partition(" (")[0],
        "why": lambda: path().partition(" (")[2].removesuffix(")"),
        "preparing": lambda: 0.0,
    }


def _batches(job: Any, *, shuffled: bool = False) -> Iterator[Batch]:
    """Yield batches of a loader without end."""
    import torch
    from transformers import DataCollatorWithPadding

    order = torch.Generator().manual_seed(job.prepared.config.train.seed)
    loader = torch.utils.data.DataLoader(
        job.dataset(len(job.tokens)),
        batch_size=job.prepared.config.train.batch_size,
        shuffle=shuffled,
        collate_fn=DataCollatorWithPadding(job.prepared.tokenizer),
        generator=order,
        drop_last=True,
    )
    while True:
        for batch in loader:
            yield dict(batch)


def _step_of(job: Any, who: Contender) -> tuple[Step, Callable[[], str]]:
    """Return a step, and a function that names the path of the last one."""
    import torch
    from transformers import get_scheduler

    from whet.engine.train_step import TrainStep
    from whet.utils.device import Hardware, precision

    torch.manual_seed(job.prepared.config.train.seed)
    device, model = job.hardware.device, job.model().to(job.hardware.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.prepared.config.train.learning_rate)
    schedule = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=1_000_000)
    if not who.stock:
        step = TrainStep(model, optimizer, schedule)
        return step, lambda: step.path
    hardware = Hardware(device, who.precision, "asked for")

    def plain(batch: Batch) -> Any:
        moved = {name: value.to(device) for name, value in batch.items()}
        with precision(hardware):
            loss = model(**moved).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.detach()

    return plain, lambda: "plain"
