// The live page: follows one run by server-sent events, or lists the runs there are.
// Whatever comes from data is put in as text, never as markup.
"use strict";

(() => {
  const { element, number } = whetCharts;
  const { clock } = whetMany;
  const find = (id) => document.getElementById(id);
  let source = null;
  let shown = null;
  let listing = null;
  let many = null;
  const known = { revision: 0, shown: 0, runs: new Map() };

  function row(cells, className = "") {
    const line = element("tr", className);
    for (const cell of cells) line.append(cell);
    return line;
  }

  function cell(text, className = "", name = "td") {
    return element(name, className, String(text));
  }

  // A name or a text from data, which may be written from right to left: it does not reorder what stands beside it.
  function own(text, className = "", name = "td") {
    const box = element(name, className);
    box.append(element("bdi", "", String(text)));
    return box;
  }

  function share(value) {
    return `${(100 * value).toFixed(1)}%`;
  }

  // One run ---------------------------------------------------------------------------------------

  class Watched {
    constructor(name) {
      this.name = name;
      this.charts = new Map();
      this.group = whetCharts.group();
      this.group.zoomed = (ends) => this.zoomed(ends);
      this.smoothing = Number(find("smoothing").value);
      this.thinned = false;
      this.zoom = null;
      this.labels = [];
      find("charts").textContent = "";
    }

    snapshot(content) {
      this.thinned = content.thinned;
      this.labels = content.labels;
      find("name").replaceChildren(element("bdi", "", content.name));
      document.title = `${content.name} · whet`;
      const wanted = new Set(content.charts.map((spec) => spec.id));
      for (const [id, chart] of this.charts) {
        if (wanted.has(id)) continue;
        chart.container.remove();
        this.group.charts = this.group.charts.filter((each) => each !== chart);
        this.charts.delete(id);
      }
      for (const spec of content.charts) {
        const known = this.charts.get(spec.id);
        const box = known ? known.container : element("div", "card");
        box.id = `chart-${spec.id}`;
        find("charts").append(box);
        if (known) known.set(spec);
        else this.charts.set(spec.id, new whetCharts.Chart(box, spec, this.group));
      }
      if (this.thinned && (this.zoom || this.smoothing !== content.smoothing)) this.refine();
      else if (!this.thinned) for (const chart of this.charts.values()) chart.smoothBy(this.smoothing);
      this.settings(content.settings);
      this.update(content);
    }

    records(content) {
      for (const [series, [steps, values]] of Object.entries(content.series)) {
        for (const chart of this.charts.values()) chart.append(series, steps, values);
      }
      this.update(content);
    }

    update(content) {
      const [state, tone] = content.state;
      find("state").textContent = state;
      find("state").className = `badge ${tone}`;
      this.progress(content);
      this.marks(content.marks);
      if (content.verdict) this.verdict(content.verdict);
      if (content.evaluation) this.evaluation(content.evaluation);
      this.findings(content.findings);
      // Written once what came has been drawn: the charts draw in the next frame, before this one's second.
      const step = content.progress.step;
      requestAnimationFrame(() => requestAnimationFrame(() => {
        document.documentElement.dataset.drawnStep = String(step);
      }));
    }

    progress({ progress, last, state }) {
      const percent = Math.min(100, 100 * progress.share);
      find("bar").style.width = `${percent}%`;
      find("bar").parentElement.setAttribute("aria-valuenow", percent.toFixed(0));
      this.last = last || this.last;
      const running = state[1] === "live";
      const facts = [
        [`${number(progress.step)} of ${number(progress.total)} steps`, ` ${percent.toFixed(0)}%`],
        [clock(progress.seconds), running ? " so far" : ""],
      ];
      if (running) facts.push([clock(progress.eta_seconds), " left"]);
      if (this.last) {
        facts.push([number(this.last.loss), " loss"]);
        if (this.last.rows_per_second) facts.push([number(this.last.rows_per_second), " rows per second"]);
      }
      find("numbers").replaceChildren(...facts.map(([value, name]) => {
        const fact = element("span");
        fact.append(element("b", "", value), name);
        return fact;
      }));
    }

    marks(marks) {
      const key = JSON.stringify(marks);
      if (key === this.marked) return;
      this.marked = key;
      for (const chart of this.charts.values()) {
        if (chart.spec.id === "loss") chart.spec.marks = marks;
        else if (chart.spec.id === "scores") chart.spec.marks = marks.filter((mark) => mark.kind === "best");
        chart.redraw();
      }
    }

    verdict(verdict) {
      const card = find("verdict");
      card.hidden = false;
      card.className = `card verdict ${verdict.tone}`;
      const advice = element("p", "", `${verdict.advice} `);
      if (!verdict.doubt) advice.append(element("span", "soft small", `Confidence ${share(verdict.confidence)}.`));
      const lines = [element("p", "sentence", verdict.sentence)];
      if (verdict.doubt) lines.push(element("p", "", verdict.doubt));
      if (verdict.baseline) lines.push(element("p", "", verdict.baseline));
      card.replaceChildren(...lines, advice);
    }

    evaluation(record) {
      const where = `${record.split} rows at step ${number(record.step)}`;
      this.confusion(record, where);
      const scores = find("scores");
      scores.hidden = false;
      scores.querySelector("h2").textContent = `Scores on ${number(record.rows)} ${record.split} rows`;
      const lines = [["loss", record.loss], ...Object.entries(record.metrics)];
      scores.querySelector("table").replaceChildren(
        ...lines.map(([name, value]) => row([cell(name.replaceAll("_", " ")), cell(value === null ? "not finite" : value.toFixed(4), "number")])),
      );
      this.worst(record, where);
    }

    confusion(record, where) {
      const card = find("confusion");
      card.hidden = !record.confusion.length || record.confusion.length > 30;
      if (card.hidden) return;
      card.querySelector("h2").textContent = `Confusion on ${where}`;
      const table = card.querySelector("table");
      table.classList.toggle("dense", this.labels.length > 8);
      const names = this.labels.map((label) => {
        const name = own(label, "", "th");
        name.title = label;
        return name;
      });
      const head = element("thead");
      head.append(row([cell("true ↓   predicted →", "", "th"), ...names]));
      const body = element("tbody");
      record.confusion.forEach((counts, label) => {
        const total = counts.reduce((sum, count) => sum + count, 0) || 1;
        const name = own(this.labels[label], "", "th");
        name.title = this.labels[label];
        const cells = counts.map((count) => {
          const box = element("td");
          const inner = element("span", `cell heat-${Math.round((10 * count) / total)}`, String(count));
          inner.append(element("small", "", share(count / total)));
          box.append(inner);
          return box;
        });
        body.append(row([name, ...cells]));
      });
      table.replaceChildren(head, body);
    }

    worst(record, where) {
      const card = find("worst");
      card.hidden = !record.worst.length;
      card.querySelector("h2").textContent = `Most wrong ${where}`;
      const head = element("thead");
      head.append(row([
        cell("row", "number", "th"), cell("text", "", "th"), cell("label", "", "th"), cell("predicted", "", "th"),
        cell("given to the label", "number", "th"),
      ]));
      const body = element("tbody");
      for (const each of record.worst) {
        const text = cell(each.text ?? "", "text");
        text.dir = "auto";
        if (each.pair) {
          const pair = element("span", "pair", each.pair);
          pair.dir = "auto";
          text.append(pair);
        }
        body.append(row([cell(each.row, "number"), text, own(each.label), own(each.predicted), cell(share(each.probability), "number")]));
      }
      card.querySelector("table").replaceChildren(head, body);
    }

    findings(sentences) {
      const card = find("findings");
      card.hidden = !sentences.length;
      card.replaceChildren(card.querySelector("h2"), ...sentences.map((sentence) => element("p", "", sentence)));
    }

    settings(settings) {
      find("settings").hidden = !settings.length;
      const lines = (chosen) => chosen.map(([name, value]) => row([cell(name), own(value)]));
      const changed = settings.filter(([, , differs]) => differs);
      find("settings").querySelector("table").replaceChildren(...lines(changed));
      find("settings").querySelector("table.all").replaceChildren(...lines(settings));
    }

    zoomed(ends) {
      this.zoom = ends;
      find("unzoom").hidden = !ends;
      if (this.thinned) this.refineSoon();
    }

    smoothBy(value) {
      this.smoothing = value;
      for (const chart of this.charts.values()) chart.share = value;
      if (this.thinned) this.refineSoon();
      else for (const chart of this.charts.values()) chart.smoothBy(value);
    }

    refineSoon() {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.refine(), 120);
    }

    // A long run was sent thinned: ask for the part that is looked at, as fine as the screen.
    async refine() {
      const [low, high] = this.zoom || [0, Number.MAX_SAFE_INTEGER];
      const wide = (high - low) * 0.02;
      const query = new URLSearchParams({ low: low - wide, high: high + wide, smoothing: this.smoothing });
      const answer = await fetch(`/api/runs/${encodeURIComponent(this.name)}/series?${query}`);
      if (!answer.ok || shown !== this) return;
      const { series } = await answer.json();
      for (const [name, [steps, values]] of Object.entries(series)) {
        for (const chart of this.charts.values()) chart.replace(name, steps, values);
      }
    }
  }

  function watch(name) {
    leave();
    find("list").hidden = true;
    find("run").hidden = false;
    shown = new Watched(name);
    const run = shown;
    source = new EventSource(`/api/runs/${encodeURIComponent(name)}/events`);
    source.addEventListener("snapshot", (event) => run.snapshot(JSON.parse(event.data)));
    source.addEventListener("records", (event) => run.records(JSON.parse(event.data)));
    source.addEventListener("open", () => { find("link").hidden = true; });
    source.addEventListener("error", () => {
      find("link").textContent = source.readyState === EventSource.CLOSED ? "this run is not there" : "connection lost, trying again";
      find("link").hidden = false;
    });
  }

  function leave() {
    if (source) source.close();
    clearTimeout(listing);
    source = shown = listing = null;
    for (const id of ["verdict", "confusion", "scores", "worst", "findings", "settings", "unzoom"]) find(id).hidden = true;
  }

  // Many runs -------------------------------------------------------------------------------------

  // What is new since the last answer; a server that has much to read says that there is more, and is asked at once.
  async function list(first) {
    let found;
    try {
      const answer = await fetch(`/api/runs?since=${known.revision}`);
      found = await answer.json();
    } catch {
      listing = setTimeout(() => list(false), 2000);
      return;
    }
    if (found.single && found.runs.length) return watch(found.runs[0].name);
    find("back").hidden = false;
    if (first) {
      leave();
      document.title = "whet";
      find("run").hidden = true;
      find("list").hidden = false;
    }
    if (nameInAddress()) return;
    for (const run of found.runs) known.runs.set(run.name, run);
    known.revision = found.revision;
    many = many || new whetMany.Many(find("many"), { defaults: found.defaults, link: (name) => `#${encodeURIComponent(name)}` });
    find("many").hidden = !found.names.length;
    find("no-runs").hidden = found.names.length > 0;
    const grown = found.runs.length > 0 || found.names.length !== many.runs.length;
    // While there is more to come, what is shown doubles each time: drawing it must not keep the reading waiting.
    if (first || (grown && (!found.more || known.runs.size >= 2 * known.shown))) {
      known.shown = known.runs.size;
      many.update(found.names.map((name) => known.runs.get(name) || { name, pending: true, settings: {}, score: null }));
    }
    requestAnimationFrame(() => { document.documentElement.dataset.listed = found.more ? "partly" : "all"; });
    listing = setTimeout(() => list(false), found.more ? 0 : 2000);
  }

  // An address that someone typed may hold a lone %: it names no run then, and the list is shown.
  function nameInAddress() {
    try {
      return decodeURIComponent(location.hash.slice(1));
    } catch {
      return "";
    }
  }

  function route() {
    const name = nameInAddress();
    find("back").hidden = !name;
    if (name) watch(name);
    else list(true);
  }

  find("smoothing").addEventListener("input", (event) => {
    find("smoothing-value").textContent = Number(event.target.value).toFixed(2);
    if (shown) shown.smoothBy(Number(event.target.value));
  });
  find("unzoom").addEventListener("click", () => {
    const chart = shown && shown.group.charts[0];
    if (chart) chart.setZoom(null);
  });
  window.addEventListener("hashchange", route);
  route();
})();
