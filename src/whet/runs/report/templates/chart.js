// Draws the charts that runs/charts.py describes: hover, zoom by dragging, log scale, smoothing, legend toggles.
// Used by the report (data inside the file) and by the live page (data arriving). Needs scales.js and nothing else.
"use strict";

const whetCharts = (() => {
  const { Smoother, element, logTicks, make, number, place, thin, tickText, ticks } = whetScales;
  const PAD = { top: 10, right: 20, bottom: 32, left: 56 };

  // Of more lines than that a pointer tells those that pass nearest to it.
  const MOST_TOLD = 8;

  // A line's own colour, where it has one, in place of that of its role.
  function paint(node, line) {
    if (line.colour) node.style.setProperty("--role", line.colour);
    return node;
  }

  class Chart {
    constructor(container, spec, group = null) {
      this.container = container;
      this.group = group;
      this.log = false;
      this.zoom = null;
      this.share = 0.9;
      this.cursor = null;
      this.width = 0;
      this.hidden = new Set(spec.lines.filter((line) => line.hidden).map((line) => line.series));
      this.build();
      this.set(spec);
      if (group) group.charts.push(this);
      new ResizeObserver(() => this.redraw()).observe(this.plot);
    }

    build() {
      this.container.textContent = "";
      this.container.classList.add("chart");
      const head = element("div", "chart-head");
      this.title = element("h3");
      this.legend = element("div", "legend");
      this.logButton = element("button", "chip", "log");
      this.logButton.type = "button";
      this.logButton.title = "Logarithmic scale";
      this.logButton.setAttribute("aria-pressed", "false");
      this.logButton.addEventListener("click", () => {
        this.log = !this.log;
        this.logButton.setAttribute("aria-pressed", String(this.log));
        this.redraw();
      });
      head.append(this.title, this.legend, this.logButton);
      this.plot = element("div", "plot");
      this.plot.tabIndex = 0;
      this.svg = make("svg", { class: "chart-svg", role: "img" });
      this.tip = element("div", "tip");
      this.tip.hidden = true;
      this.plot.append(this.svg, this.tip);
      this.container.append(head, this.plot);
      this.listen();
    }

    // Everything anew: another run, or a run that took back some of its steps.
    set(spec) {
      this.spec = spec;
      this.lines = spec.lines.map((line) => ({ ...line, x: line.x.slice(), y: line.y.slice() }));
      this.title.textContent = spec.title;
      this.svg.setAttribute("aria-label", spec.title);
      this.container.classList.toggle("minor", Boolean(spec.minor));
      this.container.classList.toggle("square", Boolean(spec.square));
      this.logButton.hidden = Boolean(spec.percent || spec.square);
      this.drawLegend();
      this.redraw();
    }

    // New points of one series, in step order.
    append(series, x, y) {
      for (const line of this.lines) {
        const smoothed = line.smooth_of === series;
        if (line.series !== series && !smoothed) continue;
        // A line that came smoothed and long goes on from its last value: what came before weighs nothing by then.
        if (smoothed && !line.smoother) line.smoother = new Smoother(this.share, line.y[line.y.length - 1] ?? 0, line.y.length ? 1 : 0);
        for (let index = 0; index < x.length; index++) {
          line.x.push(x[index]);
          line.y.push(smoothed ? line.smoother.next(y[index]) : y[index]);
        }
        this.redraw();
      }
    }

    replace(series, x, y) {
      for (const line of this.lines) {
        if (line.series === series) Object.assign(line, { x: x.slice(), y: y.slice(), smoother: null });
      }
      this.redraw();
    }

    smoothBy(share) {
      this.share = share;
      for (const line of this.lines) {
        const source = line.smooth_of && this.lines.find((each) => each.series === line.smooth_of);
        if (!source) continue;
        line.smoother = new Smoother(share);
        line.x = source.x.slice();
        line.y = source.y.map((value) => line.smoother.next(value));
      }
      this.redraw();
    }

    points() {
      return this.lines.reduce((sum, line) => sum + line.x.length, 0);
    }

    drawLegend() {
      this.legend.textContent = "";
      if (this.lines.length < 2 || this.spec.legend === false) return;
      for (const line of this.lines) {
        const key = element("button", `key role-${line.role} ${line.style}`);
        key.type = "button";
        key.append(element("span", "swatch"), element("span", "", line.name));
        key.setAttribute("aria-pressed", String(!this.hidden.has(line.series)));
        key.addEventListener("click", () => {
          if (!this.hidden.delete(line.series)) this.hidden.add(line.series);
          key.setAttribute("aria-pressed", String(!this.hidden.has(line.series)));
          this.redraw();
        });
        this.legend.append(key);
      }
    }

    redraw() {
      if (this.waiting) return;
      this.waiting = true;
      requestAnimationFrame(() => {
        this.waiting = false;
        this.draw();
      });
    }

    visible() {
      return this.lines.filter((line) => line.x.length && !this.hidden.has(line.series));
    }

    domain() {
      let low = Infinity;
      let high = -Infinity;
      for (const line of this.visible()) {
        if (line.style === "dots") {
          low = Math.min(low, ...line.x);
          high = Math.max(high, ...line.x);
        } else {
          low = Math.min(low, line.x[0]);
          high = Math.max(high, line.x[line.x.length - 1]);
        }
      }
      if (this.spec.x_range) {
        low = this.spec.x_range[0];
        // A run that goes on past its plan must not leave the picture.
        high = Math.max(this.spec.x_range[1], Number.isFinite(high) ? high : 0);
      }
      if (!(high > low)) [low, high] = [Number.isFinite(low) ? low - 0.5 : 0, Number.isFinite(low) ? low + 0.5 : 1];
      return [low, high];
    }

    range(x) {
      if (this.spec.y_range) return this.spec.y_range;
      let low = Infinity;
      let high = -Infinity;
      const take = (value) => {
        if (value === null || (this.log && value <= 0)) return;
        if (value < low) low = value;
        if (value > high) high = value;
      };
      for (const line of this.visible()) {
        const scattered = line.style === "dots";
        const from = scattered ? 0 : place(line.x, x[0]);
        const to = scattered ? line.x.length : place(line.x, x[1] + 1e-9);
        for (let index = from; index < to; index++) take(line.y[index]);
      }
      for (const level of this.spec.levels) take(level.y);
      if (!(high >= low)) return this.log ? [0.1, 1] : [0, 1];
      if (this.log) return [low / 1.1, high * 1.1];
      if (low === high) return [low - (Math.abs(low) * 0.1 || 0.5), high + (Math.abs(high) * 0.1 || 0.5)];
      const margin = 0.06 * (high - low);
      return [low - margin, high + margin];
    }

    draw() {
      const width = Math.round(this.plot.clientWidth);
      const height = Math.round(this.plot.clientHeight);
      if (width < 40 || height < 40) return;
      this.width = width;
      this.height = height;
      const x = this.zoom || this.domain();
      const y = this.range(x);
      this.x = x;
      const across = (width - PAD.left - PAD.right) / (x[1] - x[0]);
      this.toX = (value) => PAD.left + (value - x[0]) * across;
      this.fromX = (pixel) => x[0] + (pixel - PAD.left) / across;
      const scale = this.log ? Math.log10 : (value) => value;
      const [bottom, top] = [scale(y[0]), scale(y[1])];
      this.toY = (value) => height - PAD.bottom - ((scale(value) - bottom) / (top - bottom)) * (height - PAD.top - PAD.bottom);
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      const parts = document.createDocumentFragment();
      this.drawAxes(parts, x, y);
      const clip = make("svg", {
        x: PAD.left, y: 0, width: width - PAD.left - PAD.right, height: height - PAD.bottom + 1,
        viewBox: `${PAD.left} 0 ${width - PAD.left - PAD.right} ${height - PAD.bottom + 1}`, preserveAspectRatio: "none",
      });
      this.drawMarks(clip, x);
      for (const line of this.visible()) this.drawLine(clip, line, x);
      parts.append(clip);
      this.drawLevels(parts, y);
      this.overlay = make("g");
      parts.append(this.overlay);
      this.svg.replaceChildren(parts);
      this.svg.dataset.points = String(this.points());
      this.drawCursor();
    }

    drawAxes(parts, x, y) {
      const { width, height } = this;
      for (const tick of this.log ? logTicks(...y) : ticks(...y, Math.max(2, Math.round(height / 48)))) {
        const at = this.toY(tick);
        parts.append(
          make("path", { d: `M${PAD.left} ${at.toFixed(1)}H${width - PAD.right}`, class: "grid" }),
          make("text", { x: PAD.left - 8, y: (at + 3.5).toFixed(1), class: "tick end" }, tickText(tick, this.spec.percent)),
        );
      }
      for (const tick of ticks(...x, Math.max(2, Math.round(width / 110)))) {
        parts.append(
          make("text", { x: this.toX(tick).toFixed(1), y: height - PAD.bottom + 17, class: "tick middle" },
            tickText(tick, this.spec.percent && this.spec.square)),
        );
      }
      parts.append(
        make("path", { d: `M${PAD.left} ${height - PAD.bottom}H${width - PAD.right}`, class: "axis" }),
        make("text", { x: width - PAD.right, y: height - 3, class: "tick end" }, this.spec.x_title),
      );
    }

    drawMarks(parts, x) {
      const bottom = this.height - PAD.bottom;
      for (const mark of this.spec.marks) {
        if (mark.x < x[0] || mark.x > x[1]) continue;
        const at = this.toX(mark.x);
        const shape = mark.kind === "best"
          ? make("path", { d: `M${at.toFixed(1)} ${PAD.top}V${bottom}`, class: "mark best" })
          : make("path", { d: `M${at.toFixed(1)} ${bottom - 6}l-4 6h8z`, class: `mark ${mark.kind}` });
        parts.append(shape);
        if (mark.kind === "best") {
          const right = at > this.width * 0.8;
          parts.append(make("text", { x: at + (right ? -5 : 5), y: PAD.top + 8, class: `tick ${right ? "end" : ""}` }, "best"));
        }
      }
    }

    drawLevels(parts, y) {
      for (const level of this.spec.levels) {
        if (level.y < y[0] || level.y > y[1]) continue;
        const at = this.toY(level.y);
        parts.append(
          make("path", { d: `M${PAD.left} ${at.toFixed(1)}H${this.width - PAD.right}`, class: "level" }),
          make("text", { x: this.width - PAD.right, y: at > 30 ? at - 5 : at + 13, class: "tick end" }, level.text),
        );
      }
    }

    drawLine(parts, line, x) {
      const scattered = line.style === "dots";
      const from = scattered ? 0 : Math.max(0, place(line.x, x[0]) - 1);
      const to = scattered ? line.x.length : Math.min(line.x.length, place(line.x, x[1] + 1e-9) + 1);
      const shown = thin(line, from, to, Math.max(50, Math.round(this.width - PAD.left - PAD.right)));
      const usable = (value) => value !== null && (!this.log || value > 0);
      if (!scattered) {
        let path = "";
        let pen = "M";
        for (const index of shown) {
          if (!usable(line.y[index])) {
            pen = "M";
            continue;
          }
          path += `${pen}${this.toX(line.x[index]).toFixed(1)} ${this.toY(line.y[index]).toFixed(1)}`;
          pen = "L";
        }
        const drawn = make("path", { d: path, class: `line role-${line.role} ${line.style}` });
        drawn.dataset.series = line.series;
        parts.append(paint(drawn, line));
      }
      (line.low || []).forEach((low, index) => {
        const at = this.toX(line.x[index]).toFixed(1);
        parts.append(make("path", {
          d: `M${at} ${this.toY(low).toFixed(1)}V${this.toY(line.high[index]).toFixed(1)}`, class: `whisker role-${line.role}`,
        }));
      });
      if (!scattered && (line.style !== "points" || shown.length > 80)) return;
      for (const index of shown) {
        if (!usable(line.y[index])) continue;
        parts.append(paint(make("circle", {
          cx: this.toX(line.x[index]).toFixed(1), cy: this.toY(line.y[index]).toFixed(1), r: 3, class: `dot role-${line.role} ${line.style}`,
        }), line));
      }
    }

    listen() {
      const plot = this.plot;
      const at = (event) => event.clientX - plot.getBoundingClientRect().left;
      plot.addEventListener("pointermove", (event) => {
        if (!this.fromX) return;
        this.height_of_pointer = event.clientY - plot.getBoundingClientRect().top;
        if (this.start !== undefined && Math.abs(at(event) - this.start) > 4) this.drag = at(event);
        this.point(this.fromX(at(event)));
      });
      plot.addEventListener("pointerleave", () => this.point(null));
      plot.addEventListener("pointerdown", (event) => {
        if (event.pointerType !== "touch" && event.button === 0) this.start = at(event);
      });
      window.addEventListener("pointerup", () => {
        if (this.start !== undefined && this.drag !== undefined) {
          const ends = [this.fromX(this.start), this.fromX(this.drag)].sort((a, b) => a - b);
          this.setZoom([Math.max(ends[0], this.x[0]), Math.min(ends[1], this.x[1])]);
        }
        this.start = this.drag = undefined;
        this.drawCursor();
      });
      plot.addEventListener("dblclick", () => this.setZoom(null));
      plot.addEventListener("keydown", (event) => this.key(event));
    }

    key(event) {
      if (event.key === "Escape") this.setZoom(null);
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const line = this.visible().reduce((most, each) => (!most || each.x.length > most.x.length ? each : most), null);
      if (!way || !line) return;
      event.preventDefault();
      const now = this.cursor === null ? line.x.length : place(line.x, this.cursor);
      this.point(line.x[Math.max(0, Math.min(line.x.length - 1, now + way))]);
    }

    setZoom(ends) {
      for (const chart of this.group && !this.spec.square ? this.group.charts : [this]) {
        if (chart.spec.square !== this.spec.square) continue;
        chart.zoom = ends;
        chart.redraw();
      }
      if (this.group && this.group.zoomed) this.group.zoomed(ends);
    }

    // The cursor goes with all charts of the group: they share their steps.
    point(value) {
      for (const chart of this.group && !this.spec.square ? this.group.charts : [this]) {
        if (chart.spec.square !== this.spec.square) continue;
        chart.cursor = value;
        chart.talks = chart === this;
        chart.drawCursor();
      }
    }

    drawCursor() {
      if (!this.overlay) return;
      this.overlay.replaceChildren();
      this.tip.hidden = true;
      if (this.start !== undefined && this.drag !== undefined) {
        const ends = [this.start, this.drag].sort((a, b) => a - b);
        this.overlay.append(make("rect", {
          x: ends[0], y: PAD.top, width: ends[1] - ends[0], height: this.height - PAD.top - PAD.bottom, class: "selection",
        }));
      }
      if (this.cursor === null || this.spec.lines.some((line) => line.style === "dots")) return;
      const found = this.nearest(this.cursor);
      if (!found.length) return;
      const step = found[0].x;
      const at = this.toX(step);
      if (at < PAD.left - 1 || at > this.width - PAD.right + 1) return;
      this.overlay.append(make("path", { d: `M${at.toFixed(1)} ${PAD.top}V${this.height - PAD.bottom}`, class: "cursor" }));
      for (const each of found) {
        if (each.y === null || (this.log && each.y <= 0)) continue;
        this.overlay.append(paint(make("circle", {
          cx: this.toX(each.x).toFixed(1), cy: this.toY(each.y).toFixed(1), r: 4, class: `dot role-${each.line.role}`,
        }), each.line));
      }
      if (this.talks) this.tell(at, step, found);
    }

    // The point of each line that is nearest to a step; lines that have none near by keep silent.
    nearest(wanted) {
      const reach = (this.x[1] - this.x[0]) / 25;
      const found = [];
      for (const line of this.visible()) {
        if (line.style === "dashed") continue;
        const after = place(line.x, wanted);
        const before = Math.max(0, after - 1);
        const index = after >= line.x.length || wanted - line.x[before] <= line.x[after] - wanted ? before : after;
        found.push({ line, x: line.x[index], y: line.y[index], away: Math.abs(line.x[index] - wanted) });
      }
      found.sort((a, b) => a.away - b.away);
      const near = found.filter((each, index) => index === 0 || each.away <= Math.max(reach, found[0].away));
      if (near.length <= MOST_TOLD) return near;
      const distance = (each) => (each.y === null ? Infinity : Math.abs(this.toY(each.y) - (this.height_of_pointer ?? 0)));
      return near.sort((a, b) => distance(a) - distance(b)).slice(0, MOST_TOLD);
    }

    tell(at, step, found) {
      this.tip.textContent = "";
      this.tip.append(element("strong", "", `${this.spec.x_title} ${number(step, this.spec.percent && this.spec.square)}`));
      for (const line of this.visible()) {
        const each = found.find((one) => one.line === line);
        if (!each) continue;
        const row = paint(element("div", `tip-row role-${line.role} ${line.style}`), line);
        const where = each.x === step ? "" : ` @${number(each.x)}`;
        row.append(element("span", "swatch"), element("span", "tip-name", line.name + where), element("b", "", number(each.y, this.spec.percent)));
        this.tip.append(row);
      }
      for (const mark of this.spec.marks) {
        if (Math.abs(this.toX(mark.x) - at) < 5) this.tip.append(element("div", "soft", mark.text));
      }
      this.tip.hidden = false;
      const width = this.tip.offsetWidth;
      const left = at + 14 + width > this.width ? at - width - 14 : at + 14;
      this.tip.style.left = `${Math.max(0, left)}px`;
      this.tip.style.top = `${PAD.top}px`;
    }
  }

  function group() {
    return { charts: [], zoomed: null };
  }

  return { Chart, element, group, number };
})();
