// The last hour in three small charts.

import { $, bits, CLASS_COLOURS, CLASS_NAMES, draw, key, percent, share, time } from "./words.js";

const HOUR_S = 3600, LEFT = 44, BOTTOM = 16, TOP = 6;
const AGE = 0, MET = 1, MISSED = 2, PRUNED = 3, LOST = 4, BUSIEST = 8, CLASSES = 9;
let rows = [], pointed = null, interval = 10;

const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const moved = row => row.slice(CLASSES);
const sum = values => values.reduce((total, value) => total + value, 0);

export function update(history) {
  rows = history.rows;
  interval = history.interval_s;
  render();
}

export function render() {
  const good = colour("--good"), bad = colour("--bad"), warn = colour("--warn");
  stacked("attainment", row => [row[MET], row[MISSED]], [good, bad], value => String(value), true);
  const used = CLASS_NAMES.map((_, at) => rows.some(row => moved(row)[at]));
  stacked("load", row => moved(row), CLASS_COLOURS, bits, false);
  $("classes").replaceChildren(...key(CLASS_COLOURS.filter((_, at) => used[at]), CLASS_NAMES.filter((_, at) => used[at])));
  stacked("pruned", row => [row[LOST], row[PRUNED]], [bad, warn], value => String(value), true);
  $("kinds").replaceChildren(...key([bad, warn], ["late whatever is done", "pruned for others"]));
  say();
}

// Requests come as bars, what flows all the time as areas; both stacked from below.
function stacked(id, values, colours, text, whole) {
  const svg = $(id), width = svg.clientWidth || 380, height = svg.clientHeight || 120;
  const right = width - 2, bottom = height - BOTTOM;
  const x = age => right - (Math.min(age, HOUR_S) / HOUR_S) * (right - LEFT);
  const most = Math.max(0, ...rows.map(row => sum(values(row))));
  const top = nice(most, whole), y = value => bottom - (value / top) * (bottom - TOP);
  const parts = [0, 0.5, 1].filter(at => at !== 0.5 || !whole || top % 2 === 0).flatMap(at => [
    draw("line", { class: "grid", x1: LEFT, x2: right, y1: y(at * top), y2: y(at * top) }),
    draw("text", { x: LEFT - 5, y: y(at * top) + 4, "text-anchor": "end" }, text(at * top).replace("bit/s", "b/s")),
  ]);
  for (const minutes of [60, 40, 20, 0]) {
    const anchor = minutes === 60 ? "start" : minutes ? "middle" : "end";
    parts.push(draw("text", { x: x(minutes * 60), y: height - 3, "text-anchor": anchor }, minutes ? `-${minutes} min` : "now"));
  }
  const wide = Math.max(1, (interval / HOUR_S) * (right - LEFT) - 0.4);
  const paths = colours.map(() => "");
  for (const row of rows) {
    let below = 0;
    values(row).forEach((value, at) => {
      if (!value) return;
      const left = x(row[AGE]), from = y(below), to = y((below += value));
      paths[at] += `M${left.toFixed(1)} ${from.toFixed(1)}V${to.toFixed(1)}h${(whole ? wide : wide + 0.6).toFixed(2)}V${from.toFixed(1)}z`;
    });
  }
  paths.forEach((path, at) => path && parts.push(draw("path", { d: path, fill: colours[at] })));
  if (!most) parts.push(draw("text", { x: (LEFT + right) / 2, y: (TOP + bottom) / 2 - 8, "text-anchor": "middle" }, rows.length ? "none in the last hour" : "nothing is known yet"));
  if (pointed) parts.push(draw("line", { class: "cross", x1: x(pointed[AGE]), x2: x(pointed[AGE]), y1: TOP, y2: bottom }));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren(...parts);
}

function nice(value, whole) {
  if (!value) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const found = [1, 2, 4, 5, 10].map(step => step * power).find(top => top >= value);
  return whole ? Math.max(1, Math.ceil(found)) : found;
}

function say() {
  const met = sum(rows.map(row => row[MET])), missed = sum(rows.map(row => row[MISSED]));
  const last = rows[rows.length - 1];
  if (pointed) {
    const ago = pointed[AGE] < interval ? "now" : time(pointed[AGE]) + " ago";
    $("attainment-at").textContent = `${ago}: ${pointed[MET]} in time, ${pointed[MISSED]} late`;
    const top = moved(pointed).map((value, at) => [value, CLASS_NAMES[at]]).filter(([value]) => value).sort((a, b) => b[0] - a[0]);
    $("load-at").textContent = `${ago}: ` + (top.length ? top.slice(0, 3).map(([value, name]) => `${name} ${bits(value)}`).join(", ") : "nothing") + `; busiest port ${percent(pointed[BUSIEST])}`;
    $("pruned-at").textContent = `${ago}: ${pointed[PRUNED]} pruned, ${pointed[LOST]} late whatever is done`;
  } else {
    $("attainment-at").textContent = met + missed ? `${share(met, missed)} of ${met + missed}` : "";
    $("load-at").textContent = last ? `now ${bits(sum(moved(last)))}, busiest port ${percent(last[BUSIEST])}` : "";
    $("pruned-at").textContent = last ? `at most ${last[PRUNED] + last[LOST]} in the last ${time(interval)}` : "";
  }
}

function point(event) {
  const box = event.currentTarget.getBoundingClientRect();
  const age = HOUR_S * (1 - (event.clientX - box.left - LEFT) / (box.width - 2 - LEFT));
  const near = rows.map(row => [Math.abs(row[AGE] - interval / 2 - age), row]).sort((a, b) => a[0] - b[0])[0];
  pointed = near && near[0] < 3 * interval ? near[1] : null;
  render();
}

for (const id of ["attainment", "load", "pruned"]) {
  $(id).addEventListener("pointermove", point);
  $(id).addEventListener("pointerleave", () => { pointed = null; render(); });
}
addEventListener("resize", render);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
