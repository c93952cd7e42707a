"""Builds everything that a run needs from settings and a source: examples, tokens, model, plan."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from whet.config import Config, TrainConfig
from whet.data.audit.audit import NOTE, Audit, Finding, audit
from whet.data.cache import cache_root
from whet.data.examples import Examples, load_examples
from whet.data.folds import FEW_ROWS
from whet.data.tokens.table import Tokens, tokenize
from whet.distributed.group import DistributedContext
from whet.errors import DataError, UsageError, shortened_list
from whet.training.plan import choose_metric, make_plan
from whet.training.recipe import whole_below
from whet.training.task_settings import refuse_without_effect
from whet.utils.arrays import Array
from whet.utils.text import Echo

if TYPE_CHECKING:
    from whet.data.tokens.batches import BatchOrder
    from whet.engine.losses import Loss
    from whet.engine.network import Network, TokenBatches
    from whet.engine.optimizer import Rate
    from whet.engine.stepper import Stepper
    from whet.models.pretrained import LoadedModel
    from whet.task import Task
    from whet.training.plan import Plan, State
    from whet.utils.device import Hardware


@dataclass(frozen=True)
class Prepared:
    """The part of a job that is known before a model is loaded."""

    config: Config
    examples: Examples
    audit: Audit
    tokenizer: Any
    tokens: dict[str, Tokens]
    max_length: int

    def labels(self, split: str) -> np.ndarray[Any, Any] | None:
        return self.tokens[split].labels if split in self.tokens else None


@dataclass
class Job:
    """The model and everything around it, ready to take the first step or to be restored."""

    prepared: Prepared
    network: Network
    hardware: Hardware
    loss: Loss
    feed: TokenBatches
    stepper: Stepper
    plan: Plan
    rate: Rate
    state: State
    metric: str
    said: list[str] = field(default_factory=list)
    frozen: str = ""
    """A checksum of the weights that adapters leave as they are: checkpoints do not hold them."""
    ranks: DistributedContext = field(default_factory=DistributedContext)


def read_examples(source: Any, config: Config, echo: Echo) -> tuple[Examples, Audit]:
    """Return the data and its audit, and echo what was read; errors of the audit raise here.

    A source may also be examples that were loaded before.
    """
    if config.data.task != "auto":
        refuse_without_effect(config, config.data.task)
    if isinstance(source, Examples):
        examples = source
    else:
        examples = load_examples(source, config.data, whole_below=whole_below(config), echo=echo)
    for line in examples.messages:
        echo(line)
    refuse_without_effect(config, examples.task.kind)
    choose_metric(config.evaluate.metric, examples.task.kind)  # refused here, chosen with the plan
    report = audit(examples)
    _stop_or_echo(report, (), config, echo)
    if "train" not in examples.rows:
        raise DataError(f"{config.data.source!r} has no training rows.")
    return examples, report


def choose_folds(config: Config, examples: Examples, echo: Echo) -> tuple[Config, Array | None]:
    """Return the settings with the number of folds, and the fold of each training row; None without folds."""
    from whet.data.folds import KEPT, fold_numbers

    wanted, rows = config.data.folds, len(examples.rows["train"])
    given = "validation" in examples.rows
    if config.train.seeds > 1 and not given:
        raise UsageError(
            f"--seeds is {config.train.seeds}, and there are no validation rows to compare the trainings on.",
            "Give some with --validation FILE, or leave --seeds out.",
        )
    if wanted == 0 or (wanted == "auto" and (given or rows >= FEW_ROWS)):
        return dataclasses.replace(config, data=dataclasses.replace(config.data, folds=0)), None
    if given:
        raise UsageError(
            f"--folds is {wanted}, and {config.data.source!r} has validation rows.", "Leave --folds out, or the rows."
        )
    numbers, count = fold_numbers(examples, wanted, config.data.split_seed)
    echo(
        f"No validation rows were given: {count} folds measure the training, and the model that is kept learns from "
        f"all {rows:,} rows (--folds 0 for a single split)."
    )
    kept = int((numbers == KEPT).sum())
    if kept:
        labels = np.asarray(examples.rows["train"].column("label"), dtype=object)[numbers == KEPT]
        names = shortened_list(sorted({examples.task.labels[label] for label in labels if isinstance(label, int)}))
        alone = f" of {names}" if names else ""
        echo(f"Not measured: {kept} row{'s' if kept > 1 else ''}{alone}; no other text has that label.")
    return dataclasses.replace(config, data=dataclasses.replace(config.data, folds=count)), numbers


def _stop_or_echo(report: Audit, told: Collection[Finding], config: Config, echo: Echo) -> None:
    report.stop_unless_allowed(config.data)
    for finding in report.findings:
        if finding not in told and (finding.severity != NOTE or finding.code == "too-long"):
            echo(f"{finding.severity.capitalize()}: {finding.message}")


class BackgroundModelLoader:
    """Loads the model on a background thread while rows are tokenized.

    Its head is drawn from torch's global generator, so nothing else may draw from that meanwhile.
    """

    def __init__(self, config: Config, task: Task) -> None:
        self._config, self._task = config, task
        # A daemon thread: a command that ends does not wait for a download.
        self._thread = threading.Thread(target=self._load, name="whet-model", daemon=True)
        self._loaded: LoadedModel | None = None
        self._failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raise the thread's error, if it has failed already."""
        if self._failure is not None:
            raise self._failure

    def loaded(self) -> LoadedModel:
        if self._thread.ident is None:
            self._load()
        else:
            self._thread.join()
        self.check()
        assert self._loaded is not None
        return self._loaded

    def _load(self) -> None:
        from whet.models.pretrained import load_model

        config = self._config
        try:
            self._loaded = load_model(
                config.model.model, self._task, config.model, seed=config.train.seed, lora=config.lora
            )
        except BaseException as error:
            self._failure = error


def make_tokens(
    config: Config,
    examples: Examples,
    report: Audit,
    echo: Echo,
    check_interrupt: Callable[[], None] = lambda: None,
    model: BackgroundModelLoader | None = None,
) -> Prepared:
    """Return the token tables of every split, from the cache if the same texts were tokenized before."""
    from whet.models.decoders import padding_words
    from whet.models.pretrained import length_limit, load_config, load_tokenizer
    from whet.models.safety import refuse_other_tokenizer

    tokenizer = load_tokenizer(config.model.model, config.model)
    model_config = load_config(config.model.model, config.model)
    refuse_other_tokenizer(config.model.model, tokenizer, model_config)
    limit = length_limit(tokenizer, model_config, config.model.max_length)
    if limit < (config.model.max_length or 0):
        echo(f"{config.model.model} reads at most {limit} tokens, and no more by --max-length.")
    if words := padding_words(tokenizer):
        echo(words)
    tokenizer.model_max_length = limit  # saved with the model, so that prediction reads as many tokens as training did
    if model is not None:
        model.start()  # not earlier: by now the libraries are loaded

    def tick(rows: int) -> None:
        check_interrupt()
        if model is not None:
            model.check()

    tokens = {}
    for name, split in examples.rows.items():
        tokens[name] = tokenize(
            split,
            tokenizer,
            max_length=limit,
            task=examples.task,
            cache=cache_root(),
            long=config.model.long,
            on_progress=tick,
            echo=echo,
        )
    read = _as_read(config, examples, report, tokenizer, tokens, limit)
    _stop_or_echo(read, report.findings, config, echo)
    return Prepared(config, examples, read, tokenizer, tokens, limit)


def _as_read(
    config: Config, examples: Examples, report: Audit, tokenizer: Any, tokens: dict[str, Tokens], limit: int
) -> Audit:
    """Return the audit with the tokenizer's findings about the texts."""
    from whet.data.audit.tokenizer_fit import with_tokens
    from whet.data.tokens.facts import Alphabet, token_facts

    alphabet = Alphabet.of(tokenizer)
    facts = {name: token_facts(found, examples.rows[name], alphabet) for name, found in tokens.items()}
    return with_tokens(report, facts, config.model.model, limit, config.model.long)


def make_job(
    prepared: Prepared,
    echo: Echo,
    ranks: DistributedContext | None = None,
    *,
    dropout: bool = True,
    model: BackgroundModelLoader | None = None,
) -> Job:
    """Load the model and plan the whole training. `dropout=False` is only for comparing losses."""
    from whet.engine.dispatch import choose_path
    from whet.engine.losses import Loss, balanced_weights
    from whet.engine.network import TokenBatches
    from whet.engine.optimizer import learning_rate
    from whet.models.decoders import pad_on_the_right
    from whet.models.pretrained import without_dropout
    from whet.training.plan import State
    from whet.utils.device import choose_hardware

    config, task = prepared.config, prepared.examples.task
    train = config.train
    hardware = choose_hardware(train.device, train.precision)
    loaded = (model or BackgroundModelLoader(config, task)).loaded()
    echo(f"Model: {loaded.description}.")
    pad_on_the_right(loaded.model, prepared.tokenizer)
    classifier = loaded.model if dropout else without_dropout(loaded.model)
    labels = prepared.labels("train")
    assert labels is not None
    weights = balanced_weights(task, labels) if train.class_weights == "balanced" else None
    loss = Loss(task, weights, train.label_smoothing, train.contrastive)
    ranks = ranks or DistributedContext()
    tokens = prepared.tokens["train"]
    order = _order_of(tokens, train)
    network, stepper = choose_path(classifier, loss, train, hardware, list(prepared.tokens.values()), ranks, order)
    total = _steps_of(train, order)
    metric = choose_metric(config.evaluate.metric, task.kind)
    return Job(
        prepared=prepared,
        network=network,
        hardware=hardware,
        loss=loss,
        feed=TokenBatches(tokens, order, network, loss),
        stepper=stepper,
        plan=make_plan(config, total, metric, "validation" in prepared.tokens),
        rate=learning_rate(train, total),
        state=State(),
        metric=metric,
        ranks=ranks,
        frozen=loaded.frozen,
    )


def with_order(job: Job, prepared: Prepared) -> Job:
    """Return a job with the same model for other rows, with its own plan, order and state."""
    from whet.engine.network import TokenBatches
    from whet.engine.optimizer import learning_rate
    from whet.training.plan import State

    config, tokens = prepared.config, prepared.tokens["train"]
    order = _order_of(tokens, config.train)
    total = _steps_of(config.train, order)
    return dataclasses.replace(
        job,
        prepared=prepared,
        feed=TokenBatches(tokens, order, job.network, job.loss),
        plan=make_plan(config, total, job.metric, "validation" in prepared.tokens),
        rate=learning_rate(config.train, total),
        state=State(),
    )


def _order_of(tokens: Tokens, train: TrainConfig) -> BatchOrder:
    from whet.data.tokens.batches import BatchOrder

    return BatchOrder(
        rows=len(tokens),
        batch_size=train.batch_size * train.accumulate,
        seed=train.seed,
        kind=train.order,
        lengths=tokens.lengths,
    )


def _steps_of(train: TrainConfig, order: BatchOrder) -> int:
    return train.max_steps or max(1, round(train.epochs * order.steps_per_epoch))
