"""The report of a run: one HTML file that opens from disk, and the same as Markdown with SVG plots.

    write_report(RunFolder.open("runs/mrpc-001"))            # runs/mrpc-001/report.html
    write_markdown(RunFolder.open("runs/mrpc-001"))          # report.md and report_files/*.svg

Nothing is fetched and nothing runs but the script inside, which a content security policy names by its hash.
Text from data, labels and names is escaped by the templates, never by hand.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.errors import EnvironmentFault
from whet.runs.folder import RunFolder
from whet.runs.report.charts import Chart
from whet.runs.report.content import Report, read_report
from whet.runs.report.svg import render
from whet.utils.files import unwritable
from whet.utils.text import markdown_escaped, neutral_lines, neutral_values
from whet.utils.untrusted_files import replace_file

if TYPE_CHECKING:
    from jinja2 import Environment


OTHER_PLACE = "Choose another place with -o, or make room there."


def write_report(folder: RunFolder, path: Path | None = None) -> Path:
    """Write report.html into the run folder (or to `path`) and return its path."""
    target = path or folder.path / "report.html"
    write_whole(target, render_html(read_report(folder)))
    return target


def write_markdown(folder: RunFolder, path: Path | None = None) -> Path:
    """Write report.md, with its plots in a folder of the same name."""
    target = path or folder.path / "report.md"
    report = read_report(folder)
    plots = target.with_name(f"{target.stem}_files")
    drawn = [chart for chart in (*report.charts, report.calibration, report.scatter) if chart is not None]
    if plots.is_symlink():
        raise EnvironmentFault(f"{str(plots)!r} is a link, which a report does not write through.", "Remove it.")
    try:
        plots.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(plots, error, OTHER_PLACE) from None
    for chart in drawn:
        write_whole(plots / f"{chart.id}.svg", _drawn(chart, standalone=True))
    write_whole(target, render_markdown(report, plots.name))
    return target


def render_html(report: Report) -> str:
    """Return the whole file as text."""
    charts = [chart for chart in (*report.charts, report.calibration, report.scatter) if chart is not None]
    return render_page("report.html.jinja", charts, ("report.css",), report=report)


def render_page(
    template: str, charts: Sequence[Chart], styles: Sequence[str], many: dict[str, Any] | None = None, **content: Any
) -> str:
    """Return a page with its styles, its scripts and the data of its charts, and of `many` runs if it compares them."""
    from markupsafe import Markup

    scripts = ("scales.js", "chart.js", *(["many.js"] if many else []), "report.js")
    style = "\n".join(asset(name) for name in ("base.css", *styles))
    script = "\n".join(asset(name) for name in scripts)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        _html()
        .get_template(template)
        .render(
            style=Markup(style),
            script=Markup(script),
            policy=policy,
            charts=charts,
            chart_data=Markup(as_data([chart.as_dict() for chart in charts])),
            many_data=Markup(as_data(many)) if many else None,
            **content,
        )
    )


def render_markdown(report: Report, plots: str) -> str:
    """Return the same content as Markdown, for a pull request."""
    text = _markdown().get_template("report.md.jinja").render(report=report, plots=plots)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def as_data(content: Any) -> str:
    """Return JSON that is safe inside a script element, whatever texts it contains."""
    text = json.dumps(neutral_values(content), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def asset(name: str) -> str:
    """Return a style sheet or script of the package."""
    return (files("whet.runs.report") / "templates" / name).read_text(encoding="utf-8")


def write_whole(path: Path, text: str) -> None:
    """Write atomically: the old report may be open."""
    try:
        # Lone surrogates cannot be written as UTF-8; such a text must not prevent the report.
        replace_file(path, text.encode("utf-8", errors="replace"))
    except OSError as error:
        raise unwritable(path, error, OTHER_PLACE) from None


def in_percent(share: float) -> str:
    return f"{100 * share:.1f}%"


@cache
def _html() -> Environment:
    return _environment(autoescape=True, finalize=_shown)


@cache
def _markdown() -> Environment:
    # Templates print everything through this; only text marked as safe is unchanged.
    return _environment(autoescape=False, finalize=_markdown_text)


def _environment(**options: Any) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=PackageLoader("whet.runs.report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
    made.filters["percent"] = in_percent
    made.filters["drawn"] = lambda chart: Markup(_drawn(chart))
    made.filters["own"] = lambda text: Markup("<bdi>{}</bdi>").format(_shown(text))
    made.filters["raw"] = Markup
    return made


def _shown(value: Any) -> Any:
    """Make text safe for a page: no character reorders or hides its neighbours."""
    return value if not isinstance(value, str) or hasattr(value, "__html__") else neutral_lines(value)


def _markdown_text(value: Any) -> Any:
    from markupsafe import Markup

    return value if isinstance(value, Markup) else markdown_escaped(str(value))


def _drawn(chart: Chart, standalone: bool = False) -> str:
    width, height = (400, 340) if chart.square else (640, 280)
    return render(chart, width, height, standalone=standalone)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def write_report_quietly(folder: RunFolder, echo: Callable[[str], None]) -> None:
    """Write the report; an error is echoed and does not fail the run."""
    try:
        write_report(folder)
    except Exception as error:
        echo(f"The report could not be written: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
