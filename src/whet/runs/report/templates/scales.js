// What drawing a chart takes besides the chart: elements, round numbers for axes, smoothing, thinning.
"use strict";

const whetScales = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  function make(name, attributes = {}, text = "") {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text) node.textContent = text;
    return node;
  }

  function element(name, className = "", text = "") {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text) node.textContent = text;
    return node;
  }

  function number(value, percent) {
    if (value === null || value === undefined || Number.isNaN(value)) return "not finite";
    if (percent) return (100 * value).toFixed(1) + "%";
    const size = Math.abs(value);
    if (value !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(4)));
  }

  function ticks(low, high, about) {
    const raw = (high - low) / Math.max(1, about);
    if (!(raw > 0) || !Number.isFinite(raw)) return [low];
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw * 0.999);
    const found = [];
    for (let place = Math.ceil(low / step - 1e-9); place * step <= high + 1e-9 * step; place++) {
      found.push(Number((place * step).toPrecision(12)));
    }
    return found;
  }

  function logTicks(low, high) {
    const found = [];
    const wide = Math.log10(high / low) > 3;
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const each of wide ? [1] : [1, 2, 5]) {
        const value = each * 10 ** power;
        if (value >= low && value <= high) found.push(Number(value.toPrecision(6)));
      }
    }
    return found.length > 1 ? found : ticks(low, high, 4).filter((each) => each > 0);
  }

  // The first place in sorted `values` that is not below `wanted`.
  function place(values, wanted) {
    let low = 0;
    let high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] < wanted) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // Exponential smoothing divided by the weight seen so far; values that are not finite are passed over.
  class Smoother {
    constructor(share, total = 0, weight = 0) {
      Object.assign(this, { share, total, weight });
    }

    next(value) {
      if (value !== null) {
        this.total = this.share * this.total + (1 - this.share) * value;
        this.weight = this.share * this.weight + (1 - this.share);
      }
      return this.weight > 0 ? this.total / this.weight : null;
    }
  }

  // At most two points a pixel column, the lowest and the highest: no peak is lost.
  function thin(line, from, to, columns) {
    if (to - from <= columns * 3) {
      const all = [];
      for (let index = from; index < to; index++) all.push(index);
      return all;
    }
    const kept = [];
    const size = (to - from) / columns;
    for (let column = 0; column < columns; column++) {
      const first = Math.floor(from + column * size);
      const last = Math.min(to, Math.floor(from + (column + 1) * size));
      let low = -1;
      let high = -1;
      for (let index = first; index < last; index++) {
        if (line.y[index] === null) continue;
        if (low < 0 || line.y[index] < line.y[low]) low = index;
        if (high < 0 || line.y[index] > line.y[high]) high = index;
      }
      if (low < 0) continue;
      kept.push(Math.min(low, high));
      if (low !== high) kept.push(Math.max(low, high));
    }
    return kept;
  }

  function tickText(value, percent) {
    if (percent) return `${Number((100 * value).toPrecision(4))}%`;
    const size = Math.abs(value);
    if (value !== 0 && (size < 1e-3 || size >= 1e6)) return String(value.toExponential(1)).replace("e+", "e");
    return size >= 1e4 ? value.toLocaleString("en") : String(Number(value.toPrecision(5)));
  }

  return { Smoother, element, logTicks, make, number, place, thin, tickText, ticks };
})();
