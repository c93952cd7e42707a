// Puts interactive charts in place of the drawn ones. Without scripts the drawn ones stay.
"use strict";

(() => {
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
