// Ports: a few as rows, thousands as a heat map with the busiest below it.

import { cell, fill } from "./tables.js";
import { $, bar, CLASS_COLOURS, key, link, make, percent } from "./words.js";

const ROWS_MAX = 24, BUSIEST = 8, HEIGHT_MAX = 300;
const STEPS = [[10, "--idle"], [400, "--low"], [700, "--middle"], [900, "--high"], [Infinity, "--full"]];
let names = [], places = [], nodes = [], used = [], rho = [], shares = {}, at = null, cells = { size: 0, columns: 1 };

export let known = "";

export function update(ports) {
  if (ports.names) {
    names = ports.names;
    places = ports.node;
    nodes = ports.nodes;
    known = ports.key;
    at = null;
  }
  used = ports.used;
  rho = ports.rho;
  shares = ports.shares;
  render();
}

const nodeOf = port => nodes[places[port]] ?? "";
const value = port => ($("measure").value === "rho" ? rho : used)[port];
const kind = permille => STEPS.find(([below]) => permille < below)[1];
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function wanted(port) {
  const text = $("port-filter").value.toLowerCase();
  return !text || names[port].toLowerCase().includes(text) || nodeOf(port).toLowerCase().includes(text);
}

export function render() {
  const all = names.map((_, port) => port), found = all.filter(wanted);
  const many = names.length > ROWS_MAX;
  const busy = found.filter(port => used[port] >= 900).length;
  $("ports-count").textContent = names.length ? `${found.length === names.length ? names.length : found.length + " of " + names.length}${busy ? `, ${busy} above 90 %` : ""}` : "";
  $("heat").hidden = $("under").hidden = $("scale").hidden = !many;
  if (many) heat(found);
  const shown = many ? [...found].sort((a, b) => value(b) - value(a)).slice(0, BUSIEST) : found;
  fill("ports", shown.map(port => [
    cell(link("port", names[port])), cell(nodeOf(port)),
    cell(percent(used[port]), used[port] >= 950 ? "bad" : used[port] >= 800 ? "warn" : ""),
    cell(percent(rho[port]), rho[port] >= 950 ? "bad" : ""), cell(filled(port)),
  ]), names.length ? "no port has this text" : "no port is known yet");
}

// By class, where the coordinator says so: of the busiest.
function filled(port) {
  const classes = $("measure").value === "used" && shares[port];
  return classes ? bar(classes, CLASS_COLOURS) : bar([value(port)], [value(port) >= 900 ? "var(--full)" : "var(--bar)"]);
}

function heat(found) {
  const canvas = $("heat"), width = canvas.clientWidth || 600, scale = devicePixelRatio || 1;
  let size = Math.max(5, Math.min(22, Math.floor(Math.sqrt((width * HEIGHT_MAX) / found.length))));
  while (size > 5 && Math.ceil(found.length / Math.floor(width / size)) * size > HEIGHT_MAX) size--;
  const columns = whole(Math.max(1, Math.floor(width / size)), found), height = Math.max(size, Math.ceil(found.length / columns) * size);
  cells = { size, columns, found };
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.height = height + "px";
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const fills = new Map();
  found.forEach((port, place) => {
    const step = kind(value(port));
    if (!fills.has(step)) fills.set(step, []);
    fills.get(step).push(place);
  });
  for (const [step, places] of fills) {
    pen.fillStyle = colour(step);
    for (const place of places) pen.fillRect((place % columns) * size, Math.floor(place / columns) * size, size - 1, size - 1);
  }
  if (at !== null && at < found.length) {
    pen.strokeStyle = colour("--ink");
    pen.lineWidth = 2;
    pen.strokeRect((at % columns) * size, Math.floor(at / columns) * size, size - 1, size - 1);
  }
  const port = at === null ? undefined : found[at];
  $("under").textContent = port === undefined ? "Each cell is a port, by node; point at one, click for more." : `${names[port]} of ${nodeOf(port)}: used ${percent(used[port])}, load ${percent(rho[port])}`;
}

// As many columns as let nodes with equally many ports begin below each other.
function whole(columns, found) {
  const counts = new Map();
  for (const port of found) counts.set(places[port], (counts.get(places[port]) ?? 0) + 1);
  const each = new Set(counts.values()), [most] = each;
  return each.size === 1 && most > 1 && most <= columns ? columns - (columns % most) : columns;
}

function move(to) {
  if (!cells.found) return;
  at = to === null ? null : Math.max(0, Math.min(cells.found.length - 1, to));
  render();
}

function place(event) {
  const box = $("heat").getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / cells.size), row = Math.floor((event.clientY - box.top) / cells.size);
  const found = row * cells.columns + column;
  return column < cells.columns && found < (cells.found ?? []).length ? found : null;
}

const open = () => { if (at !== null && cells.found) location.hash = "port=" + encodeURIComponent(names[cells.found[at]]); };
const steps = { ArrowLeft: () => -1, ArrowRight: () => 1, ArrowUp: () => -cells.columns, ArrowDown: () => cells.columns };

$("heat").addEventListener("pointermove", event => { const to = place(event); if (to !== at) move(to); });
$("heat").addEventListener("pointerleave", () => move(null));
$("heat").addEventListener("click", event => { move(place(event)); open(); });
$("heat").addEventListener("keydown", event => {
  if (event.key === "Enter") open();
  else if (steps[event.key]) { event.preventDefault(); move((at ?? 0) + steps[event.key]()); }
});
$("port-filter").addEventListener("input", () => { at = null; render(); });
$("measure").addEventListener("change", render);
addEventListener("resize", render);
addEventListener("keydown", event => { if (event.key === "/" && !(document.activeElement instanceof HTMLInputElement)) { event.preventDefault(); $("port-filter").focus(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
$("scale").append(...key(STEPS.map(([, name]) => `var(${name})`), ["idle", "below 40 %", "70", "90", "above"]));
