"""Tables and charts of the documentation from benchmarks/results/*.json: `make figures`.

A table stands between `<!-- results: NAME -->` and `<!-- end of results -->` in a page; NAME is a function below or in
use_tables.py. A chart is one SVG in docs/images that follows the reader's light or dark scheme.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import use_tables
from markdown import ms, table, times, to_measure

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"(<!-- results: (?P<name>[\w-]+) -->\n).*?(<!-- end of results -->)", re.S)
CONTENDERS = {"whet": "whet", "course": "--recipe course", "frozen": "frozen model + linear"}
COLOURS = ("#3b6ea8", "#b8862e", "#6f8f4e", "#9a5b83", "#7a7a7a", "#a8503b")


def load(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


# Tables: one function for each name


def speed(results: dict[str, Any]) -> str:
    """Each machine's training, own loop and prediction."""
    rows = []
    for name, found in results.items():
        if not name.startswith("speed-"):
            continue
        about = f"{found['model']}, batch {found['batch_size']}"
        for work, title in (("train", "a training step"), ("loop", "a step of one's own loop")):
            for stock, row in of_stock(found.get(work)):
                whet = found[work]["contenders"]["whet"]["ms_a_step"]
                rows.append((title, about, found["kind"], stock, ms(row["ms_a_step"]), ms(whet), times(row["ratio"])))
        for stock, row in of_stock(found.get("predict")):
            whet = found["predict"]["contenders"]["whet"]["rows_a_second"]
            rate = f"{row['rows_a_second']:,.0f} rows/s", f"{whet:,.0f} rows/s"
            rows.append(("prediction", found["model"], found["kind"], stock, *rate, times(row["ratio"])))
    return table(("work", "model", "machine", "stock contender", "stock", "whet", "ratio"), rows)


def families(results: dict[str, Any]) -> str:
    """Training and predicting by family; ratios are to the faster stock contender."""
    rows = []
    for found, family in of_families(results, "families-"):
        train, predict = family["train"], family["predict"]
        steps = [row["ms_a_step"] for name, row in of_stock(train) if name.startswith("stock")]
        whet = train["contenders"]["whet"]
        rates = [predict["contenders"][name] for name in ("stock pipeline", "whet")]
        memory = [train["contenders"][name]["peak_mb"] for name in ("stock float32", "whet")]
        rows.append(
            (
                family["family"] + (", 6 layers of 384" if found["small"] else ""),
                found["device"],
                " / ".join(map(ms, steps)),
                ms(whet["ms_a_step"]),
                times(min(steps) / whet["ms_a_step"]),
                " / ".join(f"{each['rows_a_second']:,.0f}" for each in rates),
                times(rates[1]["rows_a_second"] / rates[0]["rows_a_second"]),
                " / ".join(f"{each:,.0f}" for each in memory),
                with_reason(train["job"]),
            )
        )
    head = ("model", "machine", "stock fp32 / bf16", "whet", "ratio", "predicting, rows/s: stock / whet", "ratio")
    return table((*head, "peak MB: stock / whet", "path"), rows) if rows else to_measure("families")


def loop(results: dict[str, Any]) -> str:
    """The course's own loop and `TrainStep`, by family; ratios are to the faster loop."""
    rows = []
    for found, family in of_families(results, "loop-"):
        steps = [row["ms_a_step"] for _, row in of_stock(family["loop"])]
        whet = family["loop"]["contenders"]["whet"]["ms_a_step"]
        name = family["family"] + (", 6 layers of 384" if found["small"] else "")
        fastest = times(min(steps) / whet)
        path = with_reason(family["loop"]["job"])
        rows.append((name, found["device"], " / ".join(map(ms, steps)), ms(whet), fastest, path))
    head = ("model", "machine", "loop fp32 / bf16", "`TrainStep`", "ratio", "path")
    return table(head, rows) if rows else to_measure("loop")


def label_errors(results: dict[str, Any]) -> str:
    """Means over the draws of each case: two figures for each ranking, three for each list."""
    found = results["label_errors"]["found"]
    cases = {(each["case"]["judge"], each["case"]["set"], each["case"]["share"]): None for each in found}
    rows = []
    for judge, name, share in sorted(cases, key=lambda case: (case[0], case[1] != "sst2", case[2])):
        own = [e for e in found if (e["case"]["judge"], e["case"]["set"], e["case"]["share"]) == (judge, name, share)]

        def mean(contender: str, number: str, own: list[dict[str, Any]] = own) -> float:
            values = [each[number] for each in own if each["contender"] == contender]
            return float(sum(values) / len(values))

        rankings = ("whet", "cleanlab", "cleanlab, adjusted")
        cells = [f"{mean(each, 'precision_first'):.3f}, {mean(each, 'recall_at_share'):.3f}" for each in rankings]
        cells += [
            f"{mean(each, 'listed'):.0f}: {mean(each, 'listed_precision'):.3f}, {mean(each, 'listed_recall'):.3f}"
            for each in ("whet", "whet, calibrated", "cleanlab")
        ]
        rows.append((judge, name, f"{share:.0%}", len({each["case"]["seed"] for each in own}), *cells))
    lists = ("list of whet", "list of whet, calibrated", "list of cleanlab")
    return table(("judge", "set", "flipped", "draws", "whet", "cleanlab", "cleanlab, adjusted", *lists), rows)


def recipes(results: dict[str, Any], metric: str = "accuracy") -> str:
    """Means over data sets of the means over draws, by contender and number of rows."""
    means = means_by_rows(results["recipes"]["scores"], metric)
    sizes = sorted({rows for found in means.values() for rows in found})
    lines = ((CONTENDERS.get(name, name), *(score(found.get(rows)) for rows in sizes)) for name, found in means.items())
    return table(("contender", *(f"{rows:,} rows" for rows in sizes)), lines)


def recipes_f1(results: dict[str, Any]) -> str:
    """The same in macro-F1."""
    return recipes(results, "f1_macro")


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "speed": speed,
    "recipes": recipes,
    "recipes-f1": recipes_f1,
    "label_errors": label_errors,
    "families": families,
    "loop": loop,
    **use_tables.TABLES,
}


def of_families(results: dict[str, Any], prefix: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each family that was measured, with the whole result that it stands in."""
    chosen = [found for name, found in results.items() if name.startswith(prefix)]
    return [(found, each) for found in chosen for each in found["families"] if "error" not in each]


def with_reason(job: dict[str, Any]) -> str:
    return str(job["path"]) + (f": {job['why']}" if job["why"] else "")


def of_stock(found: dict[str, Any] | None) -> list[tuple[str, dict[str, Any]]]:
    return [(name, row) for name, row in (found or {"contenders": {}})["contenders"].items() if name != "whet"]


def means_by_rows(scores: list[dict[str, Any]], metric: str) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, dict[str, list[float]]]] = {}
    for each in scores:
        of_set = found.setdefault(each["contender"], {}).setdefault(each["rows"], {})
        of_set.setdefault(each["set"], []).append(each[metric])
    return {
        name: {rows: mean(mean(values) for values in sets.values()) for rows, sets in by_rows.items()}
        for name, by_rows in found.items()
    }


def mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def score(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}".removeprefix("0")


# Charts


def speed_chart(results: dict[str, Any]) -> str | None:
    """Bars: a training step of the stock Trainer, in whose place whet needs the shorter one."""
    bars = [
        (f"{found['model']}, {found['kind']}", row["ms_a_step"], found["train"]["contenders"]["whet"]["ms_a_step"])
        for name, found in results.items()
        if name.startswith("speed-") and "train" in found
        for _, row in of_stock(found["train"])[:1]
    ]
    if not bars:
        return None
    parts = []
    for number, (title, stock, whet) in enumerate(bars):
        top = 34 + 62 * number
        width = max(2.0, 380 * whet / stock)
        parts += [
            f'<text x="0" y="{top}">{title}</text>',
            f'<rect class="stock" x="0" y="{top + 8}" width="380" height="14"/>',
            f'<text x="388" y="{top + 20}">stock Trainer {ms(stock)}</text>',
            f'<rect class="whet" x="0" y="{top + 26}" width="{width:.1f}" height="14"/>',
            f'<text x="{width + 8:.1f}" y="{top + 38}">whet {ms(whet)}: {stock / whet:.1f} times as fast</text>',
        ]
    return svg("Time of one training step", 600, 40 + 62 * len(bars), parts)


def rows_chart(results: dict[str, Any]) -> str | None:
    """Lines: accuracy by number of labelled rows."""
    if "recipes" not in results:
        return None
    means = means_by_rows(results["recipes"]["scores"], "accuracy")
    sizes = sorted({rows for found in means.values() for rows in found})
    values = [value for found in means.values() for value in found.values()]
    low, high = min(values) - 0.02, max(values) + 0.02
    x = {rows: 40 + 420 * number / max(1, len(sizes) - 1) for number, rows in enumerate(sizes)}
    parts = [f'<text x="{x[rows]:.0f}" y="318" text-anchor="middle">{rows:,}</text>' for rows in sizes]

    def y(value: float) -> float:
        return 296 - 260 * (value - low) / (high - low)

    for tick in range(int(low * 20) + 1, int(high * 20) + 1):
        place = y(tick / 20)
        parts.append(f'<path class="grid" d="M40 {place:.1f}H460"/><text x="4" y="{place + 4:.1f}">{tick * 5}%</text>')
    names = apart({name: (x[max(found)], y(found[max(found)])) for name, found in means.items()})
    for colour, (name, found) in zip(COLOURS, means.items(), strict=False):
        line = " ".join(f"{x[rows]:.0f},{y(found[rows]):.1f}" for rows in sizes if rows in found)
        parts.append(
            f'<polyline points="{line}" style="stroke:{colour}"/>'
            f'<text x="{x[max(found)] + 8:.0f}" y="{names[name] + 4:.1f}" style="fill:{colour}">'
            f"{CONTENDERS.get(name, name)}</text>"
        )
    return svg("Accuracy by labelled rows, mean over data sets", 640, 330, parts)


def apart(ends: dict[str, tuple[float, float]], gap: float = 16) -> dict[str, float]:
    """Return a height for the name at the end of each line, so that names below one another do not overlap."""
    places: dict[str, float] = {}
    for name, (x, y) in sorted(ends.items(), key=lambda each: each[1]):
        above = [places[other] for other, (column, _) in ends.items() if other in places and column == x]
        places[name] = max([y, *(place + gap for place in above)])
    return places


CHARTS: dict[str, Callable[[dict[str, Any]], str | None]] = {"speed": speed_chart, "rows": rows_chart}


def svg(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    style = (
        "text{font:13px system-ui,sans-serif;fill:#222}.title{font-weight:600}"
        ".stock{fill:#b9bec6}.whet{fill:#3b6ea8}polyline{fill:none;stroke-width:2.5}.grid{stroke:#ddd}"
        "@media(prefers-color-scheme:dark){text{fill:#e6e6e6}.stock{fill:#555c66}.whet{fill:#7fb0e6}.grid{stroke:#444}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">\n'
        f'<style>{style}</style>\n<text class="title" x="0" y="14">{title}</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def filled(page: str, results: dict[str, Any]) -> str:
    """The page with every marked table made anew."""
    return MARKED.sub(lambda found: found[1] + TABLES[found["name"]](results) + found[3], page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT)
    root = parser.parse_args().root
    results = load(root / "benchmarks" / "results")
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        if (new := filled(text, results)) != text:
            page.write_text(new, encoding="utf-8")
    for name, draw in CHARTS.items():
        if chart := draw(results):
            (root / "docs" / "images" / f"{name}.svg").write_text(chart, encoding="utf-8")


if __name__ == "__main__":
    main()
