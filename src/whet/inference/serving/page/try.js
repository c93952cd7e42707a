"use strict";
// Asks /model what the model reads and /predict for its answer. Texts and labels are set as text, never as markup.

const MOST_BARS = 20;
const at = (id) => document.getElementById(id);
let token = "";
let model = null;
let latest = 0;

async function ask(path, body) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const options = body ? { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) } : { headers };
  const answer = await fetch(path, options);
  const content = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(content.detail || answer.statusText), { status: answer.status });
  return content;
}

function complain(error) {
  at("problem").textContent = error instanceof TypeError ? "The server does not answer." : error.message;
  at("problem").hidden = false;
  at("answer").hidden = true;
}

async function open() {
  try {
    model = await ask("/model");
  } catch (error) {
    at("door").hidden = error.status !== 401;
    at("ask").hidden = error.status === 401;
    if (error.status === 401 && !token) at("token").focus();
    else complain(error.status === 401 ? new Error("That is not the token.") : error);
    if (error.status === 503) setTimeout(open, 1000);
    return;
  }
  at("door").hidden = true;
  at("ask").hidden = false;
  at("problem").hidden = true;
  at("second").hidden = model.pairs === false;
  if (model.columns.text) at("text-name").textContent = model.columns.text;
  if (model.columns.pair) at("pair-name").textContent = model.columns.pair;
  at("about").textContent = model.labels.length ? `${model.labels.length} labels` : "a number";
  document.documentElement.dataset.ready = "yes";
  at("text").focus();
}

function percent(value) {
  return `${(100 * value).toFixed(1)}%`;
}

function bar(name, value, chosen) {
  const row = document.createElement("div");
  row.className = chosen ? "bar chosen" : "bar";
  row.setAttribute("role", "listitem");
  const names = document.createElement("div");
  names.className = "names";
  for (const text of [name, percent(value)]) names.appendChild(document.createElement("span")).textContent = text;
  if (Object.hasOwn(model.thresholds, name)) {
    const from = names.firstChild.appendChild(document.createElement("small"));
    from.textContent = ` chosen from ${percent(model.thresholds[name])} on`;
    from.className = "soft";
  }
  const drawing = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  drawing.setAttribute("viewBox", "0 0 100 1");
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("aria-hidden", "true");
  const filled = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  filled.setAttribute("width", String(Math.max(0.4, 100 * value)));
  filled.setAttribute("height", "1");
  drawing.appendChild(filled);
  row.append(names, drawing);
  return row;
}

function named(label) {
  if (Array.isArray(label)) return label.length ? label.join(", ") : "none of the labels";
  return typeof label === "number" ? label.toPrecision(4) : label;
}

function show(prediction, milliseconds) {
  at("label").textContent = named(prediction.label);
  at("sure").textContent = prediction.probability === null || Array.isArray(prediction.label) ? "" : percent(prediction.probability);
  at("abstain").hidden = !prediction.abstain;
  at("candidates").hidden = !prediction.candidates;
  if (prediction.candidates) at("candidates").textContent = `Candidates: ${prediction.candidates.map(named).join(", ") || "none"}`;
  const chosen = new Set([].concat(prediction.label));
  const sorted = Object.entries(prediction.probabilities).sort((one, other) => other[1] - one[1]);
  at("bars").replaceChildren(...sorted.slice(0, MOST_BARS).map(([name, value]) => bar(name, value, chosen.has(name))));
  at("took").textContent = `${milliseconds.toFixed(0)} ms` + (sorted.length > MOST_BARS ? `, and ${sorted.length - MOST_BARS} labels more` : "");
  at("problem").hidden = true;
  at("answer").hidden = false;
}

async function predict() {
  const text = at("text").value, pair = at("pair").value;
  const paired = model && (model.pairs || (model.pairs === null && pair.trim()));
  if (!model || !text.trim() || (paired && !pair.trim())) {
    at(text.trim() ? "pair" : "text").focus();
    return;
  }
  const own = ++latest, began = performance.now();
  at("go").disabled = true;
  try {
    const found = await ask("/predict", { inputs: [paired ? [text, pair] : text] });
    if (own === latest) show(found.predictions[0], performance.now() - began);
  } catch (error) {
    if (own === latest) complain(error);
  } finally {
    at("go").disabled = false;
  }
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  predict();
});
for (const id of ["text", "pair"]) {
  at(id).addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      predict();
    }
  });
}
at("door").addEventListener("submit", (event) => {
  event.preventDefault();
  token = at("token").value.trim();
  open();
});
open();
