// Many runs side by side: a table to sort, filter and pick from, their curves over one another, a setting against the
// score. Used by the comparison (data inside the file) and by the live page (data arriving). Needs chart.js.
"use strict";

const whetMany = (() => {
  const { Chart, element, number } = whetCharts;
  const COLOURS = 6;
  const CURVES = [["score", "Score"], ["eval_loss", "Evaluation loss"], ["train_loss", "Training loss, smoothed"]];
  const COMPARED = /^([\w-]+)(<=|>=|=|<|>)(.+)$/;

  // The colours of the palette first; more runs than that take hues that lie far apart.
  function colour(place) {
    return place < COLOURS ? `var(--c${place + 1})` : `hsl(${((place - COLOURS) * 137.5 + 20) % 360} 62% 52%)`;
  }

  function clock(seconds) {
    if (seconds === null || seconds === undefined) return "?";
    const whole = Math.round(seconds);
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return whole < 600 && whole % 60 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${Math.floor(whole / 60)} min`;
    return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  }

  function own(text) {
    return element("bdi", "", String(text));
  }

  function shown(value) {
    if (value === null || value === undefined) return "–";
    return typeof value === "number" ? number(value) : String(value);
  }

  function compare(a, b) {
    const empty = (value) => value === null || value === undefined || value === "";
    if (empty(a) || empty(b)) return empty(a) - empty(b);
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  }

  class Many {
    // `link` gives the address of a run by its name, or is null where there is none; `charts` are drawn unless others are.
    constructor(root, { defaults, link = null, charts = true }) {
      this.defaults = defaults;
      this.draws = charts;
      this.link = link;
      this.runs = [];
      this.colours = new Map();
      this.picked = new Set();
      this.sorted = { name: "", down: false };
      this.words = "";
      this.curve = "score";
      this.setting = "";
      this.build(root);
    }

    build(root) {
      root.textContent = "";
      const controls = element("div", "controls");
      this.filter = Object.assign(element("input", "filter"), { type: "search", placeholder: "filter: batch_size=16 score>0.8" });
      this.filter.setAttribute("aria-label", "Filter the runs");
      this.filter.addEventListener("input", () => {
        this.words = this.filter.value;
        this.refresh();
      });
      this.curveChoice = this.choice("curves", CURVES, (value) => { this.curve = value; });
      this.settingChoice = this.choice("score against", [], (value) => { this.setting = value; });
      this.count = element("span", "count");
      this.unpick = Object.assign(element("button", "chip", "unpick all"), { type: "button", hidden: true });
      this.unpick.addEventListener("click", () => {
        this.picked.clear();
        this.refresh();
      });
      controls.append(this.filter, this.curveChoice.parentElement, this.settingChoice.parentElement, this.count, this.unpick);
      const charts = element("div", "charts");
      const [curves, scatter] = [element("div", "card overlay"), element("div", "card scatter")];
      charts.append(curves, scatter);
      this.empty = { lines: [], marks: [], levels: [], x_title: "step", x_range: null, legend: false };
      this.overlay = new Chart(curves, { ...this.empty, id: "overlay", title: "" });
      this.scatter = new Chart(scatter, { ...this.empty, id: "against", title: "" });
      this.listen();
      const card = element("div", "card scroll");
      this.table = element("table", "wide many");
      this.table.id = "runs";
      this.table.append(element("thead"), element("tbody"));
      card.append(this.table);
      this.charts = charts;
      for (const each of [charts, this.curveChoice.parentElement]) each.hidden = !this.draws;
      root.append(controls, charts, card);
    }

    choice(name, options, then) {
      const label = element("label", "", `${name} `);
      const select = element("select");
      this.fill(select, options);
      select.addEventListener("change", () => {
        then(select.value);
        this.refresh();
      });
      label.append(select);
      return select;
    }

    fill(select, options) {
      const key = JSON.stringify(options);
      if (select.dataset.options === key) return;
      select.dataset.options = key;
      const before = select.value;
      select.replaceChildren(...options.map(([value, text]) => Object.assign(element("option", "", text), { value })));
      if (options.some(([value]) => value === before)) select.value = before;
    }

    update(runs) {
      this.runs = runs;
      for (const run of runs) {
        if (!this.colours.has(run.name)) this.colours.set(run.name, colour(this.colours.size));
      }
      this.settings = this.differing();
      this.fill(this.settingChoice, this.settings.map((name) => [name, name]));
      if (!this.settings.includes(this.setting)) this.setting = this.settingChoice.value = this.settings[0] || "";
      this.settingChoice.parentElement.hidden = !this.draws || !this.settings.length;
      this.refresh();
    }

    value(run, name) {
      return name in run.settings ? run.settings[name] : this.defaults[name];
    }

    differing() {
      const known = this.runs.filter((run) => !run.pending);
      const names = new Set(known.flatMap((run) => Object.keys(run.settings)));
      return [...names].filter((name) => known.some((run) => this.value(run, name) !== this.value(known[0], name))).sort();
    }

    cell(run, column) {
      return column.startsWith("setting:") ? this.value(run, column.slice(8)) : run[column];
    }

    // Every word must fit: `batch_size=16` and `score>0.8` compare, any other word is looked for in what the row says.
    fits(run) {
      return this.words.toLowerCase().split(/\s+/).filter(Boolean).every((word) => {
        const found = COMPARED.exec(word);
        if (!found) {
          const said = [run.name, run.state, run.verdict, ...this.settings.map((name) => this.value(run, name))];
          return said.some((each) => String(each ?? "").toLowerCase().includes(word));
        }
        const [, name, sign, wanted] = found;
        const value = name in this.defaults || name in run.settings ? this.value(run, name) : run[name];
        if (value === undefined || value === null) return false;
        const order = typeof value === "number" ? value - Number(wanted) : String(value).toLowerCase().localeCompare(wanted);
        return { "<": order < 0, ">": order > 0, "<=": order <= 0, ">=": order >= 0, "=": order === 0 }[sign];
      });
    }

    refresh() {
      const found = this.runs.filter((run) => this.fits(run));
      if (this.sorted.name) {
        const sign = this.sorted.down ? -1 : 1;
        const value = (run) => this.cell(run, this.sorted.name);
        const empty = (run) => value(run) === null || value(run) === undefined || value(run) === "";
        found.sort((a, b) => (empty(a) || empty(b) ? compare(value(a), value(b)) : sign * compare(value(a), value(b))));
      }
      this.seen = found;
      const drawn = this.picked.size ? found.filter((run) => this.picked.has(run.name)) : found;
      const all = found.length === this.runs.length ? `${this.runs.length} runs` : `${found.length} of ${this.runs.length} runs`;
      this.count.textContent = this.picked.size ? `${all}, ${drawn.length} picked` : all;
      this.unpick.hidden = !this.picked.size;
      this.drawTable(found);
      if (!this.draws) return;
      this.drawCurves(drawn);
      this.drawScatter(drawn);
    }

    // Table -----------------------------------------------------------------------------------------

    columns() {
      const words = new Set(this.runs.map((run) => run.words).filter(Boolean));
      const settings = this.settings.map((name) => [`setting:${name}`, name, ""]);
      return [
        ["name", "run", ""], ["score", words.size === 1 ? [...words][0] : "score", "number"], ["low", "95% interval", "number"],
        ["seconds", "time", "number"], ...settings, ["state", "state", ""],
        ...(this.draws ? [["share", "done", "number"], ["spark", "evaluation loss", ""]] : []), ["verdict", "verdict", ""],
      ];
    }

    drawTable(runs) {
      const columns = this.columns();
      const head = element("tr");
      for (const [name, title, looks] of columns) {
        const cell = element("th", looks);
        const button = Object.assign(element("button", "sort", title), { type: "button" });
        if (this.sorted.name === name) cell.setAttribute("aria-sort", this.sorted.down ? "descending" : "ascending");
        button.addEventListener("click", () => {
          this.sorted = { name, down: this.sorted.name === name ? !this.sorted.down : name === "score" };
          this.refresh();
        });
        cell.append(button);
        head.append(cell);
      }
      this.table.tHead.replaceChildren(head);
      this.table.tBodies[0].replaceChildren(...runs.map((run) => this.row(run, columns)));
    }

    row(run, columns) {
      const line = element("tr");
      const name = element("td", "name");
      const pick = Object.assign(element("input"), { type: "checkbox", checked: this.picked.has(run.name) });
      pick.setAttribute("aria-label", `Pick ${run.name}`);
      pick.addEventListener("change", () => {
        if (pick.checked) this.picked.add(run.name);
        else this.picked.delete(run.name);
        this.refresh();
      });
      const swatch = element("span", "swatch");
      swatch.style.setProperty("--role", this.colours.get(run.name));
      const title = this.link ? Object.assign(element("a"), { href: this.link(run.name) }) : element("span");
      title.append(own(run.name));
      name.append(pick, swatch, title);
      line.append(name);
      for (const [column, , looks] of columns.slice(1)) {
        const cell = element("td", column === "spark" ? "spark" : looks);
        const text = run.pending ? "…" : this.text(run, column);
        cell.append(column.startsWith("setting:") ? own(text) : text);
        if (column === "verdict" && run.sentence) cell.append(element("div", "soft small", run.sentence));
        line.append(cell);
      }
      line.addEventListener("pointerenter", () => this.point(run.name, true));
      line.addEventListener("pointerleave", () => this.point(run.name, false));
      return line;
    }

    text(run, column) {
      if (column === "score") return run.score === null ? "–" : this.score(run, run.score);
      if (column === "low") return run.low === null ? "–" : `${this.score(run, run.low)} to ${this.score(run, run.high)}`;
      if (column === "seconds") return clock(run.seconds);
      if (column === "share") return `${(100 * run.share).toFixed(0)}%`;
      return shown(this.cell(run, column));
    }

    score(run, value) {
      return run.percent ? `${(100 * value).toFixed(1)}%` : value.toFixed(4);
    }

    // Charts ----------------------------------------------------------------------------------------

    drawCurves(runs) {
      const title = CURVES.find(([name]) => name === this.curve)[1];
      const lines = runs.filter((run) => run.curves && run.curves[this.curve]).map((run) => {
        const [x, y] = run.curves[this.curve];
        return { name: run.name, series: run.name, role: "level", colour: this.colours.get(run.name), x, y, style: "line" };
      });
      this.charts.hidden = !this.runs.some((run) => run.curves && Object.keys(run.curves).length);
      const percent = this.curve === "score" && runs.length > 0 && runs.every((run) => run.percent || run.pending);
      this.overlay.set({ ...this.empty, id: "overlay", title, lines, percent });
    }

    // A dot a run. Words stand at whole places; numbers over several powers of ten at their logarithm.
    drawScatter(runs) {
      const scored = runs.filter((run) => !run.pending && run.score !== null);
      const values = scored.map((run) => this.value(run, this.setting));
      this.scatter.container.hidden = !this.setting;
      const numeric = values.every((value) => typeof value === "number");
      const positive = numeric && values.every((value) => value > 0) && Math.max(...values) > 8 * Math.min(...values);
      const places = [...new Set(values.map(shown))].sort();
      const at = (value) => (positive ? Math.log10(value) : numeric ? value : places.indexOf(shown(value)));
      const lines = scored.map((run, index) => ({
        name: run.name, series: run.name, role: "level", colour: this.colours.get(run.name), style: "dots",
        x: [at(values[index])], y: [run.score], value: shown(values[index]),
      }));
      const spread = lines.map((line) => line.x[0]);
      const margin = 0.05 * (Math.max(...spread) - Math.min(...spread)) || 0.5;
      const x_range = lines.length ? [Math.min(...spread) - margin, Math.max(...spread) + margin] : null;
      const x_title = positive ? `log10 of ${this.setting}` : numeric ? this.setting : `${this.setting}: ${places.join(", ")}`;
      const percent = scored.length > 0 && scored.every((run) => run.percent);
      this.scatter.set({ ...this.empty, id: "against", title: `Score against ${this.setting}`, lines, x_title, x_range, percent });
    }

    listen() {
      const plot = this.scatter.plot;
      plot.addEventListener("pointermove", (event) => {
        const box = plot.getBoundingClientRect();
        const [x, y] = [event.clientX - box.left, event.clientY - box.top];
        let nearest = null;
        let least = 24;
        for (const line of this.scatter.lines) {
          const away = Math.hypot(this.scatter.toX(line.x[0]) - x, this.scatter.toY(line.y[0]) - y);
          if (away < least) [nearest, least] = [line, away];
        }
        this.tell(nearest, x, y);
      });
      plot.addEventListener("pointerleave", () => this.tell(null));
    }

    tell(line, x = 0, y = 0) {
      const tip = this.scatter.tip;
      tip.hidden = !line;
      if (this.told) this.point(this.told, false);
      this.told = line && line.name;
      if (!line) return;
      this.point(line.name, true);
      const name = element("strong");
      name.append(own(line.name));
      tip.replaceChildren(name, element("div", "soft", `${this.setting} ${line.value}, ${number(line.y[0], this.scatter.spec.percent)}`));
      tip.style.left = `${Math.max(0, Math.min(x + 12, plotWidth(this.scatter) - tip.offsetWidth))}px`;
      tip.style.top = `${y + 12}px`;
    }

    // The line of a run stands out while the pointer is on its row or on its dot.
    point(name, on) {
      for (const path of this.overlay.svg.querySelectorAll("path.line")) {
        if (path.dataset.series !== name) continue;
        path.classList.toggle("strong", on);
        if (on) path.parentNode.append(path);
      }
    }
  }

  function plotWidth(chart) {
    return chart.plot.clientWidth;
  }

  return { Many, clock };
})();
