"""The model card: what `model/README.md` says of a model to whoever finds it later."""

from __future__ import annotations

from pathlib import Path

from whet.records import Baselines, Evaluation, Start
from whet.runs.folder import RunFolder
from whet.runs.parts import parts_sentence
from whet.runs.verdict.judge import verdict_of


def model_card(folder: RunFolder) -> str:
    """Score, verdict, data and versions of a run, as Markdown. Everything is read from the run folder."""
    records, config, data, environment = folder.records(), folder.config, folder.data, folder.environment
    start = next((record for record in records if isinstance(record, Start)), None)
    best = [r for r in records if isinstance(r, Evaluation) and (r.best or r.split == "test")]
    verdict = verdict_of(records)
    labels = ", ".join(_plain(label) for label in data.get("labels", []))
    packages = environment.get("packages", {})
    versions = ", ".join(f"{name} {packages[name]}" for name in sorted(packages))
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-classification",
        "---",
        "",
        f"# {_plain(Path(config.model.model).name)}, fine-tuned",
        "",
        f"`{_plain(config.model.model)}` fine-tuned with whet {environment.get('whet', '')}.",
        f"Task: {data.get('task', '')}. Labels: {labels or 'a number'}.",
        "",
        "| split | rows | scores |",
        "|---|---|---|",
    ]
    for record in [*[r for r in best if r.split != "test"][-1:], *[r for r in best if r.split == "test"][-1:]]:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in record.metrics.items())
        lines.append(f"| {record.split} | {record.rows} | {scores} |")
    if start is not None and start.majority:
        answer = _plain(str(start.majority.get("label")))
        lines += ["", f"Always answering {answer!r} scores {start.majority['metric']} {start.majority['value']:.4f}."]
    if said := parts_sentence(records):
        lines += ["", said]
    for made in records:
        if isinstance(made, Baselines):
            place = "held-out" if made.out_of_fold else made.split
            lines += ["", f"Beside simpler answers to the same {place} rows: {_plain(made.sentence)}"]
    lines += [
        "",
        f"Verdict on the learning curves: {_plain(verdict.sentence)} {_plain(verdict.baseline)}".rstrip(),
        "",
        f"Data: fingerprint `{data.get('fingerprint', '')}`, at most {data.get('max_length', '?')} tokens a row:",
        "`transformers.pipeline` reads as many with `truncation=True`.",
        "",
        f"Versions: {versions}; {environment.get('precision', '')} on {environment.get('device', '')}.",
        "",
    ]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Text from data or settings that cannot become markup."""
    kept = "".join(" " if character in "\r\n|" else character for character in text)
    return kept.replace("<", "&lt;").replace(">", "&gt;").replace("`", "'")
