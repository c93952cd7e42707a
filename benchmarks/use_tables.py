"""Tables of what is done with a trained model: served, exported, decided, labelled in bulk, asked one text, tuned.

Each takes all results by name, and says which benchmark is to be run where its own are missing.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from markdown import ms, table, times, to_measure

Results = dict[str, Any]


def serve(results: Results) -> str:
    """`whet serve` beside the plainest server, at as many requests as come and at the same load."""
    if "serve" not in results:
        return to_measure("serve")
    found = results["serve"]
    rows = []
    for name, each in found["servers"].items():
        rates = each["requests_per_second"]
        spread = f"{median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})"
        rows.append((name, spread, ms(each["p50_ms"]), ms(each["p99_ms"]), f"{each['requests_at_load']:,}"))
    at = f"at {found['load_per_second']:g} a second"
    head = ("server", f"requests per second, {found['clients']} clients", f"p50 {at}", "p99", "requests")
    said = f"`{found['run']}`, {of_machine(found)}: whet answers {times(found['ratio'])} times as many.\n"
    return table(head, rows) + "\n" + said


def serve_rough(results: Results) -> str:
    """Requests of clients that leave, send garbage or trickle, and the server's memory meanwhile."""
    if "serve-rough" not in results:
        return "`python benchmarks/serve.py RUN --rough 10000` measures it.\n"
    found = results["serve-rough"]
    ends = [(end, f"{count:,}") for end, count in sorted(found["ends"].items())]
    memory = ", ".join(f"{each:,}" for each in found["memory"])
    return table((f"of {found['requests']:,} rough requests", ""), ends) + f"\nMB after each tenth: {memory}.\n"


def export(results: Results) -> str:
    """Both exports of each run beside whet itself."""
    if "export" not in results:
        return to_measure("export")
    rows = []
    for each in results["export"]["exports"]:
        proof = each["proof"]
        difference = changed = score = "–"
        if proof is not None:
            test = proof["test"]
            difference = f"{proof['largest_difference']:.1e}"
            changed = f"{proof['changed_labels']} of {proof['rows']}"
            low_high = f"{test['low']:+.4f} to {test['high']:+.4f}, p = {test['p_value']:.2g}"
            score = f"{test['metric']} {test['b']:.4f}, {test['difference']:+.4f} ({low_high})"
        speed = f"{median(each['rows_per_second']):,.0f}", ms(median(each["milliseconds_one_row"]))
        rows.append((each["run"], each["kind"], each["megabytes"], difference, changed, score, *speed))
    head = ("run", "", "MB", "largest difference of a logit", "labels changed", "score, difference")
    return table((*head, "rows per second", "one row"), rows)


def conformal(results: Results) -> str:
    """Coverage over many splits of each run's rows."""
    if "conformal" not in results:
        return to_measure("conformal")
    found = results["conformal"]
    rows = []
    for each in found["runs"]:
        spread = f"{100 * each['from_5%']:.1f} to {each['to_95%']:.1%}"
        sets = "an interval" if each["labels_a_set"] is None else f"{each['labels_a_set']:.2f}"
        empty = "–" if each["empty"] is None else f"{each['empty']:.1%}"
        rows.append((each["run"], f"{each['rows']:,}", f"{each['coverage']:.1%}", spread, sets, empty))
    goal = f"coverage, goal {found['goal']:.0%}, mean of {found['splits']} splits"
    return table(("run", "rows", goal, "5% to 95% of splits", "labels a set", "empty"), rows)


def batch(results: Results) -> str:
    """A large file on each machine: a tenth of it, all of it, killed and resumed; and the plan for more."""
    measured = {name: found for name, found in results.items() if name == "batch" or name.startswith("batch-")}
    if not measured:
        return to_measure("batch")
    titles = {"tenth": "a tenth", "whole": "all", "killed": "until a kill", "resumed": "the rest, after it"}
    rows, said = [], []
    for found in measured.values():
        for name, title in titles.items():
            each = found[name]
            memory = f"{each['peak_mb_first_half']:,.0f} / {each['peak_mb']:,.0f}"
            cells = f"{each['rows']:,}", f"{each['seconds']:,.0f} s", f"{each['first_part_seconds']:.1f} s", memory
            rows.append((found["device"], title, *cells))
        plan, made = found["plan"], found["planned_from_the_tenth"]
        same = "the same" if found["same_answers"] else "OTHER"
        error = 3600 * made["hours"] / found["whole"]["seconds"]
        said.append(
            f"{found['device']}: {found['rows_per_second']:,.0f} rows a second, {same} answers after the kill. The "
            f"plan made from the tenth was {error:.2f} times what all rows took. {plan['rows']:,} rows would take "
            f"{plan['hours']:.1f} hours, {plan['peak_mb']:,.0f} MB of memory and {plan['output_gb']:.1f} GB of disk in "
            f"{plan['parts']:,} parts; a kill costs {plan['lost_by_a_kill_seconds']:.0f} seconds.\n"
        )
    head = ("machine", "rows", "rows in parts", "time", "until the first part", "MB, first half / all")
    return table(head, rows) + "\n" + "\n".join(said)


def one_text(results: Results) -> str:
    """One text at a time, beside the forward pass alone."""
    if "one-text" not in results:
        return to_measure("one_text")
    found = results["one-text"]
    rows = [
        (name, ms(median(each)), f"{min(each):.2f} to {max(each):.2f}")
        for name, each in found["milliseconds_per_text"].items()
    ]
    said = f"`{found['run']}`, {of_machine(found)}: a prediction takes {found['ratio']:.2f} times its forward pass.\n"
    return table(("one text at a time", "median of the turns", "fastest to slowest"), rows) + "\n" + said


def predict_start(results: Results) -> str:
    """A whole command, from its start to its exit."""
    if "predict-start" not in results:
        return to_measure("predict_start")
    found = results["predict-start"]
    rows = [
        (f"`{found['revisions'][name]}`", f"{median(each):.2f} s", f"{min(each):.2f} to {max(each):.2f}")
        for name, each in found["seconds"].items()
    ]
    return table(("`whet predict --text`", "median", "fastest to slowest"), rows)


def tune(results: Results) -> str:
    """What a tuning shipped beside the default, on rows that no part of it saw."""
    if "tune" not in results:
        return to_measure("tune")
    rows = []
    for each in results["tune"]["sets"]:
        scores = [
            f"{100 * each[name]:.1f}% ({100 * low:.1f} to {100 * high:.1f})"
            for name, (low, high) in (("default", each["default_interval"]), ("tuned", each["tuned_interval"]))
        ]
        trainings = f"{each['trainings']} ({each['pruned']} pruned) in {each['minutes']:.0f} min"
        judged = f"{each['p_value']:.2g}", each["judged"]
        rows.append((each["set"], f"{each['rows']:,}", trainings, each["shipped"], *scores, *judged))
    head = ("set", "rows", "trainings", "shipped", "default", "what was shipped", "p", "shipped beside default")
    return table(head, rows)


def of_machine(found: dict[str, Any]) -> str:
    machine = found["machine"]
    return f"{machine['cores']} cores ({machine['processor']})"


TABLES = {
    "serve": serve,
    "serve-rough": serve_rough,
    "export": export,
    "conformal": conformal,
    "batch": batch,
    "one-text": one_text,
    "predict-start": predict_start,
    "tune": tune,
}
