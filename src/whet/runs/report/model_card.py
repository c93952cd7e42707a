"""Writes the model card, `model/README.md`."""

from __future__ import annotations

from pathlib import Path

from whet.errors import shortened_list
from whet.records import AVERAGED, Baselines, Evaluation, start_of
from whet.runs import score_words as words
from whet.runs.folder import RunFolder
from whet.runs.parts import parts_sentence
from whet.runs.reading_words import how_pipelines_read
from whet.runs.verdict.judge import verdict_of
from whet.utils.text import markdown_escaped

MAX_LABELS = 50


def model_card(folder: RunFolder) -> str:
    """Return score, verdict, data and versions of a run as Markdown, read from the run folder."""
    records, config, data, environment = folder.records(), folder.config, folder.data, folder.environment
    start = start_of(records)
    best = [r for r in records if isinstance(r, Evaluation) and (r.best or r.split == "test")]
    verdict = verdict_of(records)
    labels = shortened_list([markdown_escaped(label) for label in data.get("labels", [])], MAX_LABELS, quoted=False)
    packages = environment.get("packages", {})
    versions = ", ".join(f"{name} {packages[name]}" for name in sorted(packages))
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-classification",
        "---",
        "",
        f"# {markdown_escaped(Path(config.model.model).name)}, fine-tuned",
        "",
        f"{markdown_escaped(config.model.model)} fine-tuned with whet {environment.get('whet', '')}.",
        f"Task: {data.get('task', '')}. Labels: {labels or 'a number'}.",
        "",
        "| split | rows | scores |",
        "|---|---|---|",
    ]
    task, names = data.get("task", ""), data.get("labels", [])
    for record in [*[r for r in best if r.split != "test"][-1:], *[r for r in best if r.split == "test"][-1:]]:
        scores = ", ".join(
            f"{words.metric_of(name, task, names)} {words.score(name, value)}" for name, value in record.metrics.items()
        )
        split = "validation" if record.split == AVERAGED else record.split
        lines.append(f"| {split} | {record.rows} | {markdown_escaped(scores)} |")
    if start is not None and start.majority:
        metric, value = start.majority["metric"], start.majority["value"]
        answer = markdown_escaped(words.always_giving(start.task, start.majority.get("label")))
        lines += ["", f"{answer[0].upper()}{answer[1:]} scores {metric} {words.score(metric, value)}."]
    if said := parts_sentence(records):
        lines += ["", said]
    for made in records:
        if isinstance(made, Baselines):
            place = "held-out" if made.out_of_fold else made.split
            lines += ["", f"Beside simpler answers to the same {place} rows: {markdown_escaped(made.sentence)}"]
    judged = markdown_escaped(f"{verdict.sentence} {verdict.baseline}".strip())
    lines += [
        "",
        f"Verdict on the learning curves: {judged}",
        "",
        f"Data: fingerprint `{data.get('fingerprint', '')}`, at most {data.get('max_length', '?')} tokens per row:",
        "`transformers.pipeline` reads as many with `truncation=True`.",
        *how_pipelines_read(data),
        "",
        f"Versions: {versions}; {environment.get('precision', '')} on {environment.get('device', '')}.",
        "",
    ]
    return "\n".join(lines)
