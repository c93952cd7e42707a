// Puts interactive charts in place of the drawn ones. Without scripts the drawn ones stay.
"use strict";

(() => {
  // Many runs first: where they bring curves of their own, those that were drawn go.
  const many = document.getElementById("many-data");
  if (many) {
    const { runs, defaults, charts } = JSON.parse(many.textContent);
    new whetMany.Many(document.getElementById("many"), { defaults, charts }).update(runs);
  }
  const specs = JSON.parse(document.getElementById("chart-data").textContent);
  const group = whetCharts.group();
  const charts = [];
  for (const spec of specs) {
    const place = document.getElementById(`chart-${spec.id}`);
    if (place) charts.push(new whetCharts.Chart(place, spec, group));
  }
  const slider = document.getElementById("smoothing");
  if (slider) {
    slider.closest("label").hidden = false;
    slider.addEventListener("input", () => {
      for (const chart of charts) chart.smoothBy(Number(slider.value));
    });
  }
  // Printing shows what is folded away.
  window.addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details")) part.open = true;
  });
})();
