"""Files for the fuzzer: sound rows, written in some format, then broken in some way."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = tuple[str, str]
Rows = list[Row]

WORDS = tuple(
    "the film was good bad very long short never seen again café naïve groß Ελλάς привет שלום مرحبا 你好 日本 🎬 "  # noqa: SIM905
    "👩‍👩‍👧 it's 100% a/b C++ #1 <b>html</b> {x} [y] $5 a@b.c e\u0301 a\u200bb ½ … – “quoted” don't x=1 null NA".split()
)
STRANGE = (
    "NA",
    "null",
    "None",
    "001",
    "-1",
    "=1+1",
    "@x",
    "nan",
    "true",
    "1e5",
    "0.0",
    "#N/A",
    "'single'",
    "\\N",
    "\\",
)
PUNCTUATION = (", ", "; ", " | ", '"', ' "so" ', "'", "\\", "  ", "\n", "\t", "\r\n", ": ", " ,")
LABELS = (
    ("0", "1"), ("neg", "pos"), ("a", "b", "c"), ("0.0", "1.0"), ("NA", "other"), ("Yes", "no"), ("true", "false"),
    ("1", "2", "3", "4", "5"), ("Straße", "Weg"), ("x y", "z, w"), ("001", "002"), ("<b>", "[red]"),
)  # fmt: skip


@dataclass
class Case:
    """A source, and what may happen with it."""

    kind: str
    source: Path
    rows: Rows | None = None
    """What every accepted reading must give; None where nobody can say."""
    damage: int = 0
    """So many rows may differ, because the damage may have changed them without a trace."""
    must_fail: bool = False
    must_pass: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        return [part for name, value in self.settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def make_case(rng: random.Random, folder: Path) -> Case:
    """One case out of all kinds."""
    return rng.choice(KINDS)(rng, folder)


def some_rows(rng: random.Random, plain: bool = False, count: int | None = None) -> Rows:
    """Different texts under labels that each have enough of them to be split."""
    labels = rng.choice(LABELS)
    count = count or rng.randint(5 * len(labels), 60)
    rows: dict[str, str] = {}
    while len(rows) < count:
        words = rng.choices(WORDS, k=rng.randint(1, 12))
        if not plain and rng.random() < 0.5:
            words.insert(rng.randint(0, len(words)), rng.choice(PUNCTUATION))
        text = rng.choice(STRANGE) if rng.random() < 0.05 else " ".join([*words, str(len(rows))])
        rows.setdefault(text, labels[len(rows) % len(labels)])
    return list(rows.items())


def table(rows: Rows, header: tuple[str, ...] | None = ("text", "label"), **options: Any) -> str:
    out = io.StringIO()
    writer = csv.writer(out, **{"lineterminator": "\n", **options})
    if header:
        writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    return path


def json_lines(rows: Rows, **options: Any) -> str:
    return "\n".join(json.dumps({"text": text, "label": label}, **options) for text, label in rows) + "\n"


def sound_table(rng: random.Random, folder: Path) -> Case:
    rows = some_rows(rng)
    delimiter = rng.choice(",,;\t|")
    quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    content = table(rows, delimiter=delimiter, quoting=quoting, lineterminator=rng.choice(["\n", "\r\n"]))
    if rng.random() < 0.3:
        content = "\ufeff" + content
    data = content.encode()
    name = "a.tsv" if delimiter == "\t" and rng.random() < 0.5 else "a.csv"
    if rng.random() < 0.2:
        name, data = f"{name}.gz", gzip.compress(data)
    return Case("sound table", put(folder, name, data), rows, must_pass=True)


def headless_table(rng: random.Random, folder: Path) -> Case:
    rows = some_rows(rng)
    content = table(rows, header=None, delimiter=rng.choice(",;\t"))
    return Case("headless table", put(folder, "a.csv", content), rows)


def renamed_table(rng: random.Random, folder: Path) -> Case:
    """Columns with foreign names, in any order, beside an id."""
    rows = some_rows(rng)
    names = ["Nummer", *rng.sample(["Satz", "Urteil"], 2)]
    cells = [{"Nummer": 7 * n, "Satz": text, "Urteil": label} for n, (text, label) in enumerate(rows)]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)
    return Case("renamed table", put(folder, "a.csv", out.getvalue()), rows)


def sound_json(rng: random.Random, folder: Path) -> Case:
    rows = some_rows(rng)
    objects = [{"id": n, "text": text, "label": label, "meta": {"n": [n]}} for n, (text, label) in enumerate(rows)]
    ascii_only = rng.random() < 0.5
    shape = rng.randrange(3)
    if shape == 0:
        content = "\n".join(json.dumps(item, ensure_ascii=ascii_only) for item in objects)
        return Case("sound JSON lines", put(folder, "a.jsonl", content), rows, must_pass=True)
    value: Any = objects if shape == 1 else {"text": [r[0] for r in rows], "label": [r[1] for r in rows]}
    content = json.dumps(value, ensure_ascii=ascii_only, indent=rng.choice([None, 1]))
    return Case("sound JSON", put(folder, "a.json", content), rows, must_pass=True)


def sound_folders(rng: random.Random, folder: Path) -> Case:
    rows = [(text.replace("\r\n", "\n"), label) for text, label in some_rows(rng)]
    rows = [(text, {"z, w": "zw"}.get(label, label).replace("/", "").replace("<b>", "bold")) for text, label in rows]
    for number, (text, label) in enumerate(rows):
        put(folder, f"data/{label}/{number:03}.txt", text)
    return Case("sound folders", folder / "data", rows, must_pass=True)


def broken_table(rng: random.Random, folder: Path) -> Case:
    """A sound table with one line that breaks the rules: it must be refused, wherever it stands."""
    rows = some_rows(rng, plain=True)
    content = table(rows).splitlines(keepends=True)
    breaks = {
        "ragged row": "one,two,three\n",
        "short row": "alone\n",
        "unclosed quote": '"never closed,1\n',
        "text after a quote": f'"closed" early,{rows[0][1]}\n',
        "NUL": f"a\0b,{rows[0][1]}\n" if "," not in rows[0][1] else "a\0b,1\n",
        "empty text": f",{table([('', rows[0][1])], None)[1:]}",
        "blank text": f"   ,{table([('', rows[0][1])], None)[1:]}",
        "missing label": "some text without a label,\n",
        "not UTF-8": "caf\udce9,1\n",
    }
    kind, line = rng.choice(list(breaks.items()))
    content.insert(rng.randint(1, len(content)), line)
    data = "".join(content).encode("utf-8", "surrogateescape")
    return Case(f"table: {kind}", put(folder, "a.csv", data), must_fail=True)


def flipped_bytes(rng: random.Random, folder: Path) -> Case:
    """A few bytes changed: refused, or read with the damage where it was done."""
    rows = some_rows(rng, plain=True, count=60)
    data = bytearray(table(rows).encode())
    hits = rng.randint(1, 3)
    for _ in range(hits):
        data[rng.randrange(len("text,label\n"), len(data))] = rng.randrange(256)
    return Case("flipped bytes", put(folder, "a.csv", bytes(data)), rows, damage=2 * hits)


def cut_file(rng: random.Random, folder: Path) -> Case:
    """The end is missing: what is read is what was there, and at most its last row is damaged."""
    rows = some_rows(rng, plain=True, count=60)
    as_table = rng.random() < 0.5
    data = (table(rows) if as_table else json_lines(rows, ensure_ascii=False)).encode()
    at = rng.randrange(len(data) // 2, len(data))
    kept = data[:at].count(b"\n") - (1 if as_table else 0)
    name = "a.csv" if as_table else "a.jsonl"
    # The rows that are gone are no mistake of the reader.
    return Case("cut file", put(folder, name, data[:at]), rows[: kept + 1], damage=1)


def cut_binary(rng: random.Random, folder: Path) -> Case:
    """Formats with a checksum or an end mark must notice that the end is missing."""
    rows = some_rows(rng, plain=True)
    if rng.random() < 0.5:
        data, name = gzip.compress(table(rows).encode()), "a.csv.gz"
    else:
        data, name = parquet(rows), "a.parquet"
    return Case("cut binary", put(folder, name, data[: rng.randrange(4, len(data) - 1)]), must_fail=True)


def parquet(rows: Rows) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": [r[0] for r in rows], "label": [r[1] for r in rows]}), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def flipped_parquet(rng: random.Random, folder: Path) -> Case:
    data = bytearray(parquet(some_rows(rng)))
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(4, len(data))] = rng.randrange(256)
    return Case("flipped Parquet", put(folder, "a.parquet", bytes(data)))


def noise(rng: random.Random, folder: Path) -> Case:
    """Bytes without meaning, under any name."""
    alphabet = rng.choice([bytes(range(256)), b'ab,;\t"\n\r\\|{}[]: \0', b'",\n', b'{}[]",:\n0 '])
    data = bytes(rng.choices(alphabet, k=rng.randrange(0, 3000)))
    name = rng.choice(
        ["a.csv", "a.tsv", "a.json", "a.jsonl", "a.parquet", "a.arrow", "a.txt", "a.xlsx", "a", "a.csv.gz"]
    )
    return Case("noise", put(folder, name, data))


def other_encoding(rng: random.Random, folder: Path) -> Case:
    """Refused when the encoding is not named, read when it is."""
    rows = [(text.encode("cp1252", "ignore").decode("cp1252").strip() + " é", label) for text, label in some_rows(rng)]
    rows = list(dict(rows).items())
    encoding = rng.choice(["utf-16", "latin-1", "cp1252"])
    if encoding == "latin-1":
        rows = [(text.encode("latin-1", "ignore").decode("latin-1"), label) for text, label in rows]
    path = put(folder, "a.csv", table(rows).encode(encoding))
    if rng.random() < 0.5:
        return Case("other encoding", path, must_fail=True)
    return Case("named encoding", path, rows, must_pass=True, settings={"encoding": encoding})


def odd_labels(rng: random.Random, folder: Path) -> Case:
    """Labels that cannot be trained on, or that a careless reader takes for something else."""
    texts = [text for text, _ in some_rows(rng, plain=True, count=40)]
    choices: dict[str, Callable[[int], str]] = {
        "one class": lambda n: "same",
        "ids": lambda n: f"id{n}",
        "minus one": lambda n: str(-(n % 2)),
        "one class and one row": lambda n: "rare" if n == 7 else "same",
        "decimal comma": lambda n: f"{n % 7},5",
    }
    kind, label = rng.choice(list(choices.items()))
    rows = [(text, label(n)) for n, text in enumerate(texts)]
    return Case(f"labels: {kind}", put(folder, "a.csv", table(rows)), must_fail=True)


def numbers_as_classes(rng: random.Random, folder: Path) -> Case:
    """0.0 and 1.0 are classes; with decimals they are a quantity."""
    texts = [text for text, _ in some_rows(rng, plain=True, count=60)]
    whole = rng.random() < 0.5
    rows = [(text, f"{n % 3}.0" if whole else f"{n % 9}.25") for n, text in enumerate(texts)]
    return Case("numbers", put(folder, "a.csv", table(rows)), rows, must_pass=True)


def surrogates(rng: random.Random, folder: Path) -> Case:
    rows = some_rows(rng, plain=True)
    lines = json_lines(rows).splitlines()
    lines.append('{"text": "half \\ud83d of it", "label": ' + json.dumps(rows[0][1]) + "}")
    return Case(
        "surrogates",
        put(folder, "a.jsonl", "\n".join(lines)),
        [*rows, ("half \ufffd of it", rows[0][1])],
        must_pass=True,
    )


def broken_json(rng: random.Random, folder: Path) -> Case:
    rows = some_rows(rng, plain=True)
    lines = json_lines(rows).splitlines()
    breaks = {
        "not an object": "[1, 2]",
        "a number": "5",
        "twice": '{"text": "a", "text": "b", "label": "x"}',
        "single quotes": "{'text': 'a', 'label': 'x'}",
        "deep": '{"text": "a", "label": ' + "[" * 5000 + "]" * 5000 + "}",
        "no text": '{"label": "x"}',
        "null text": '{"text": null, "label": "x"}',
        "cut": '{"text": "a", "lab',
        "two objects": '{"text": "a", "label": "x"} {"text": "b", "label": "x"}',
        "text is a number": '{"text": 5, "label": "x"}',
    }
    kind, line = rng.choice(list(breaks.items()))
    lines.insert(rng.randint(0, len(lines)), line)
    return Case(f"JSON: {kind}", put(folder, "a.jsonl", "\n".join(lines)), must_fail=True)


def large_field(rng: random.Random, folder: Path) -> Case:
    rows = some_rows(rng, plain=True)
    rows.insert(rng.randint(0, len(rows)), ("word " * 250_000, rows[0][1]))
    writers = {"a.csv": table, "a.jsonl": json_lines}
    name = rng.choice(list(writers))
    return Case("large field", put(folder, name, writers[name](rows)), must_fail=True)


def leak(rng: random.Random, folder: Path) -> Case:
    rows = some_rows(rng, plain=True, count=40)
    put(folder, "data/train.csv", table(rows))
    text, label = rng.choice(rows)
    put(folder, "data/test.csv", table([(f" {text.upper()} ", label), ("a new text", label)]))
    return Case("leak", folder / "data", must_fail=True)


def strange_places(rng: random.Random, folder: Path) -> Case:
    """What is no file of rows at all."""
    put(folder, "empty/readme.md", "nothing")
    put(folder, "zero.csv", "")
    put(folder, "header.csv", "text,label\n")
    name = rng.choice(
        ["empty", "zero.csv", "header.csv", "missing.csv", "missing/", "*.nothing", "a\nb.csv", "x" * 300]
    )
    return Case("strange place", folder / name, must_fail=True)


KINDS: tuple[Callable[[random.Random, Path], Case], ...] = (
    sound_table, sound_table, headless_table, renamed_table, sound_json, sound_folders, broken_table, broken_table,
    broken_table, flipped_bytes, flipped_bytes, cut_file, cut_binary, flipped_parquet, noise, noise, other_encoding,
    odd_labels, numbers_as_classes, surrogates, broken_json, broken_json, large_field, leak, strange_places,
)  # fmt: skip
