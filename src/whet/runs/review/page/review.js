"use strict";
// Shows one row after the other. A decision moves on once the server has it on its disk. Texts are set as text.

const at = (id) => document.getElementById(id);
const WORDS = { accept: "accepted", keep: "kept", skip: "skipped" };
const KEYS = { a: "accept", k: "keep", s: "skip" };
let rows = [];
let place = 0;
let sending = false;
const history = [];

async function ask(path, body) {
  const options = body ? { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) } : {};
  const answer = await fetch(path, options);
  if (!answer.ok) throw new Error((await answer.text()).trim() || answer.statusText);
  return answer.json();
}

function complain(error) {
  at("problem").textContent = error instanceof TypeError ? "The server does not answer; nothing was kept. Start it again." : error.message;
  at("problem").hidden = false;
}

function openFrom(start) {
  for (let step = 0; step < rows.length; step++) {
    const index = (start + step) % rows.length;
    if (!rows[index].decision) return index;
  }
  return rows.length;
}

function show() {
  const counts = { accept: 0, keep: 0, skip: 0 };
  for (const each of rows) if (each.decision) counts[each.decision] += 1;
  const left = rows.length - counts.accept - counts.keep - counts.skip;
  at("counts").textContent = `${counts.accept} accepted, ${counts.keep} kept, ${counts.skip} skipped, ${left} open`;
  const row = rows[place];
  at("row").hidden = !row;
  at("done").hidden = Boolean(row) || rows.length === 0;
  at("undo").disabled = history.length === 0;
  at("back").disabled = place === 0;
  at("forward").disabled = place >= rows.length;
  if (row) {
    at("place").textContent = `${place + 1} of ${rows.length}, row ${row.row} of the source`;
    at("before").textContent = WORDS[row.decision] || "";
    at("before").hidden = !row.decision;
    for (const name of ["text", "given", "likely"]) at(name).textContent = row[name];
    at("pair").textContent = row.pair || "";
    at("pair").hidden = !row.pair;
    at("probability").textContent = `${(100 * row.probability).toFixed(1)}%`;
    for (const name of Object.keys(WORDS)) at(name).classList.toggle("chosen", row.decision === name);
    at("text").scrollTop = 0;
  }
  document.documentElement.dataset.open = String(left);
}

async function send(index, decision) {
  sending = true;
  try {
    await ask("/api/decisions", { row: rows[index].row, decision });
    rows[index].decision = decision;
    at("problem").hidden = true;
    return true;
  } catch (error) {
    complain(error);
    return false;
  } finally {
    sending = false;
  }
}

async function decide(decision) {
  if (sending || !rows[place]) return;
  const index = place;
  const before = rows[index].decision;
  if (!(await send(index, decision))) return;
  history.push([index, before]);
  place = openFrom(index + 1);
  show();
}

async function undo() {
  if (sending || history.length === 0) return;
  const [index, before] = history[history.length - 1];
  if (!(await send(index, before))) return;
  history.pop();
  place = index;
  show();
}

function move(step) {
  place = Math.min(rows.length, Math.max(0, place + step));
  show();
}

async function open() {
  try {
    const found = await ask("/api/rows");
    rows = found.rows;
    document.title = `${found.name} · labels`;
    at("name").textContent = found.name;
    at("about").textContent = found.sentence;
  } catch (error) {
    complain(error);
    return;
  }
  place = openFrom(0);
  show();
}

for (const name of Object.keys(WORDS)) at(name).addEventListener("click", () => decide(name));
at("undo").addEventListener("click", undo);
at("back").addEventListener("click", () => move(-1));
at("forward").addEventListener("click", () => move(1));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const key = event.key.toLowerCase();
  if (KEYS[key]) decide(KEYS[key]);
  else if (key === "u") undo();
  else if (key === "arrowleft") move(-1);
  else if (key === "arrowright") move(1);
});
open();
