// What a click shows: the life of a request, the requests of a batch, a port by classes. The address names it.

import { $, bar, bits, bytes, CLASS_COLOURS, CLASS_NAMES, draw, key, link, make, percent, time } from "./words.js";

const STAGE_COLOURS = { control: "#5e4fa2", reuse: "#0072b2", collective: "#009e73", p2d: "#e69f00", background: "#999999" };
const STAGE_NAMES = { reuse: "reuse: KV fetched", collective: "collectives", p2d: "p2d: KV to decode" };
const LABEL = 120, ROW_MAX = 14, HEIGHT_MAX = 340;
let opened = "", timer = 0;

const SHOW = { request: life, batch, port, node: name => [heading(`Node ${name}`), make("p", {}, "See mfsctl status and mfsctl doctor there.")] };

export async function open() {
  clearTimeout(timer);
  const [kind, name] = location.hash.slice(1).split("=");
  const own = (opened = location.hash), wanted = name && decodeURIComponent(name);
  $("detail").hidden = !(wanted && SHOW[kind]);
  if ($("detail").hidden) return;
  if ($("detail").dataset.of !== own) $("detail").replaceChildren(heading(`${kind} ${wanted}`), make("p", { class: "none" }, "asking ..."));
  $("detail").dataset.of = own;
  let found;
  try {
    found = await SHOW[kind](wanted);
  } catch (error) {
    found = [heading(`${kind} ${wanted}`), make("p", { class: "bad" }, error.message)];
  }
  if (own !== opened) return; // another click came meanwhile
  $("detail").replaceChildren(...found);
  timer = setTimeout(open, kind === "request" ? 5000 : 2000);
}

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  const found = await answer.json().catch(() => ({ problem: "the coordinator does not answer" }));
  if (!answer.ok) throw new Error(found.problem);
  return found;
}

function heading(text) {
  return make("h2", {}, make("span", {}, text), make("a", { href: "#", "aria-label": "Close", title: "Close" }, "close"));
}

async function port(name) {
  const found = await ask("port.json?name=" + encodeURIComponent(name));
  const colours = found.shares.map(row => CLASS_COLOURS[CLASS_NAMES.indexOf(row.name)]);
  const caption = `of ${found.node}, ${bits(found.rate_bytes_per_s)}: ${percent(found.used)} used of late, ${percent(found.rho)} goes first (load)`;
  const given = found.pruned.length ? [make("h3", {}, "Pruned for want of it"), make("p", {}, ...found.pruned.flatMap(id => [link("request", id), " "]))] : [];
  return [
    heading(`Port ${name}`), make("p", {}, caption), bar(found.shares.map(row => row.permille), colours),
    make("p", { class: "legend" }, ...key(colours, found.shares.map(row => `${row.name} ${percent(row.permille)}`))), ...given,
  ];
}

async function batch(id) {
  const found = await ask("batch.json?id=" + id);
  const rows = found.requests.map(row => make("tr", {},
    make("td", {}, link("request", row.request_id)),
    make("td", { class: row.left_ns < 0 ? "n bad" : "n" }, row.left_ns === null ? "no deadline" : row.left_ns < 0 ? time(row.left_ns / 1e9) + " ago" : "in " + time(row.left_ns / 1e9)),
    make("td", { class: "n" }, bytes(row.size_bytes)),
    make("td", {}, row.port ? link("port", row.port) : "-"),
    make("td", { class: "n" }, row.port_ns ? time(row.port_ns / 1e9) : "-"),
    make("td", { class: row.state ? "bad" : "good" }, row.state || "can be in time")));
  const head = make("tr", {}, make("th", {}, "Request"), make("th", { class: "n" }, "Deadline"), make("th", { class: "n" }, "Left to move"), make("th", {}, "Longest at"), make("th", { class: "n" }, "Alone there"), make("th", {}, "Can it"));
  return [heading(`Batch ${id}`), make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))];
}

async function life(id) {
  const found = await ask("request.json?id=" + id);
  const head = heading(`Request ${id}`);
  if (!found.nodes.length) return [head, make("p", { class: "none" }, [found.problem, ...found.problems].filter(Boolean).join("; "))];
  const oldest = Math.max(...found.nodes.map(node => node.age_s));
  const parts = [head];
  for (const node of found.nodes) parts.push(...one(node, oldest));
  if (found.problems.length) parts.push(make("p", { class: "none" }, found.problems.join("; ")));
  return parts;
}

function one(node, oldest) {
  const outcome = node.outcome === "missed" ? "late" : node.outcome === "met" ? "in time" : node.state;
  const kind = node.outcome === "missed" ? "bad" : node.outcome === "met" ? "good" : "";
  const title = make("h3", {}, `${node.node}: ${node.processes.join(", ")} `, make("span", { class: kind }, outcome));
  if (node.batch_id) title.append(" in ", link("batch", node.batch_id, `batch ${node.batch_id}`));
  const waits = node.waits.map(wait => make("li", {},
    `${wait.stage} waited ${time(wait.waited_s)}` + (wait.first ? `, behind ${wait.first}${wait.ahead_tasks > 1 ? ` and ${wait.ahead_tasks - 1} more` : ""} (${bytes(wait.ahead_bytes)}): ${wait.rule}` : ", and was the first of those that did")));
  const waited = waits.length ? make("ul", {}, ...waits) : make("p", { class: "none" }, "No wait of it was seen in the last minute; what is shorter than a quarter of a second may have been missed.");
  const caption = make("ul", {}, ...[...node.reasons, ...node.cluster].map(text => make("li", {}, text)));
  return [
    title, timeline(node, oldest),
    make("div", { class: "split" }, make("div", {}, make("h3", {}, "Whom it waited for"), waited), make("div", {}, make("h3", {}, "In sentences"), caption)),
  ];
}

// Stages from top to bottom, a bar for each layer, from the first asking to the last byte; the line is the deadline.
function timeline(node, oldest) {
  const width = Math.max(300, $("detail").clientWidth - 30), rows = node.stages.filter(row => row.first_ago_s !== null);
  const height = Math.max(3, Math.min(ROW_MAX, Math.floor(HEIGHT_MAX / Math.max(1, rows.length))));
  const due = node.deadline_left_s === null ? null : oldest + node.deadline_left_s;
  const end = row => oldest - (row.done && row.last_ago_s !== null ? row.last_ago_s : 0);
  const last = Math.max(1e-6, ...rows.map(end), due !== null && due < 4 * Math.max(1e-6, ...rows.map(end)) ? due : 0) * 1.02;
  const x = s => LABEL + (Math.max(0, s) / last) * (width - LABEL - 4);
  const parts = [];
  let stage = "", y = 4;
  for (const row of rows) {
    if (row.stage !== stage) {
      y += stage ? 8 : 0;
      stage = row.stage;
      parts.push(draw("text", { x: 0, y: y + 11 }, STAGE_NAMES[stage] ?? stage));
    }
    const from = x(oldest - row.first_ago_s), to = Math.max(from + 2, x(end(row)));
    const title = draw("title", {}, `${row.stage}${row.layer === null ? "" : ", layer " + row.layer}: ${bytes(row.bytes)}, asked for after ${time(oldest - row.first_ago_s)}, ${row.done ? "complete after " + time(end(row)) : "not complete"}`);
    const shape = { x: from, y, width: to - from, height: Math.max(2, height - 1), rx: 1, fill: STAGE_COLOURS[row.stage] ?? "#999", opacity: row.done ? 1 : 0.55 };
    parts.push(draw("rect", shape, title));
    y += Math.max(height, 3);
  }
  y = Math.max(y, 26);
  const step = [1, 2, 5, 10].map(n => n * 10 ** Math.floor(Math.log10(last / 4))).find(n => n * 5 >= last) ?? last;
  for (let at = 0; at <= last; at += step) {
    parts.unshift(draw("line", { class: "grid", x1: x(at), x2: x(at), y1: 0, y2: y + 4 }));
    parts.push(draw("text", { x: x(at), y: y + 17, "text-anchor": "middle" }, at ? time(at) : "0"));
  }
  if (due !== null && due <= last) {
    parts.push(draw("line", { x1: x(due), x2: x(due), y1: 0, y2: y + 4, stroke: "var(--bad)", "stroke-width": 2 }, draw("title", {}, `deadline after ${time(due)}`)));
    parts.push(draw("text", { x: x(due) - 4, y: 10, "text-anchor": "end", fill: "var(--bad)" }, "deadline"));
  }
  const caption = rows.length ? "its stages and layers over time" : "nothing of it asked for a permit";
  return draw("svg", { class: "life", viewBox: `0 0 ${width} ${y + 22}`, height: y + 22, role: "img", "aria-label": caption }, ...(rows.length ? parts : [draw("text", { x: 0, y: 14 }, caption)]));
}

addEventListener("hashchange", open);
addEventListener("keydown", event => { if (event.key === "Escape" && location.hash.length > 1) location.hash = ""; });
