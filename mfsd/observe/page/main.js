// The verdict, the numbers and the tables; asks every second, and for the history every ten.

import * as detail from "./detail.js";
import * as history from "./history.js";
import * as ports from "./ports.js";
import { cell, fill } from "./tables.js";
import { $, link, make, percent, share, time } from "./words.js";

const LOOK_MS = 1000, HIDDEN_MS = 10000, HISTORY_EACH = 10, WELL_LEAST = 0.9;
let looks = 0;

function role(s) {
  if (s.seen_by) return `${s.seen_by} stands by; this is what the leader, ${s.address}, sees`;
  if (s.leads) return `leader ${s.address}`;
  return `${s.address} stands by` + (s.leader ? `, leader is ${s.leader}` : ", no leader is known");
}

const due = s => (Math.abs(s) < 1e-4 ? "now" : s < 0 ? time(s) + " ago" : "in " + time(s));

function point(row) {
  const text = row.kind ? link(row.kind, row.name, row.text) : row.text;
  return make("li", { class: row.severity }, text);
}

function show(s) {
  const verdict = s.verdict, a = s.attainment, down = s.nodes.filter(node => !node.connected).length;
  $("role").textContent = role(s);
  $("verdict").className = verdict.state;
  $("title").textContent = verdict.title;
  $("summary").textContent = verdict.summary ?? "";
  $("points").replaceChildren(...verdict.points.map(point));
  document.title = a.recent_met + a.recent_missed ? `MFS: ${share(a.recent_met, a.recent_missed)} in time` : "MFS cluster";
  const numbers = [
    [share(a.latest_met, a.latest_missed), "in time, last " + time(a.latest_ns / 1e9)],
    [share(a.recent_met, a.recent_missed), "last " + time(a.window_ns / 1e9 || 300)], [share(a.hour_met, a.hour_missed), "last hour"],
    [s.batches_active, "batches"], [s.requests_active, "requests"], [s.given_up_total, "given up"],
    [s.nodes.length - down + (down ? ` (${down} lost)` : ""), "nodes"], [s.ports.used.length, "ports"], [time(s.uptime_ns / 1e9), "up"],
  ];
  $("numbers").replaceChildren(...numbers.map(([value, name]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  const unknown = "not known here: no leader answers";
  fill("batches", s.batches.map((b, at) => [
    cell(at + 1), cell(link("batch", b.batch_id)), cell(b.unit), cell(b.requests),
    cell(due(b.red_left_ns / 1e9), b.red_left_ns < 0 ? "bad" : ""),
    cell([b.infeasible && `${b.infeasible} will be late`, b.pruned && `${b.pruned} pruned`].filter(Boolean).join(", ") || "none", b.infeasible ? "bad" : b.pruned ? "warn" : ""),
  ]), s.leads ? "no batch is under way" : unknown);
  $("batches-count").textContent = s.batches_active > s.batches.length ? `the first ${s.batches.length} of ${s.batches_active}` : "the first goes first";
  fill("given", s.given_up.map(row => [
    cell(link("request", row.request_id)), cell(link("batch", row.batch_id)),
    cell(row.port ? `pruned: ${row.for_batch === row.batch_id ? "its own batch" : "batch " + row.for_batch} would be late at ${row.port}` : "will be late with every port to itself"),
  ]), s.leads ? "none" : unknown);
  $("given-count").textContent = s.given_up_total > s.given_up.length ? `${s.given_up.length} of ${s.given_up_total}` : s.drop_budget ? `at most ${s.drop_budget} may be pruned` : "";
  fill("missed", s.missed.map(row => [cell(link("request", row.request_id)), cell(row.node), cell(time(row.age_ns / 1e9))]), "none in the last hour");
  fill("nodes", s.nodes.map(n => [
    cell(n.node), cell(n.connected ? "connected" : `lost for ${time(n.silent_ns / 1e9)}`, n.connected ? "good" : "bad"), cell(n.batches),
    cell(n.lag_ns ? time(n.lag_ns / 1e9) : "-"), cell(percent(n.used)), cell(n.version),
  ]), s.leads ? "no daemon is connected: add this coordinator to [cluster] coordinators of each daemon" : unknown);
  tiers(s);
  ports.update(s.ports);
  if (s.history) history.update(s.history);
}

function counts(t) {
  const late = t.in_time === null ? "" : t.in_time < WELL_LEAST ? "bad" : t.late ? "warn" : "good";
  return [cell(share(t.met, t.late), late), cell(t.met), cell(t.late), cell(t.waiting), cell(t.running), cell(t.paused), cell(t.relegated), cell(t.lost)];
}

function tiers(s) {
  $("tiers-of-requests").hidden = !s.tiers.length;
  fill("tiers", s.tiers.map(t => [cell(t.tier), ...counts(t), cell(t.nodes), cell(t.engines), cell(t.policies)]), "none");
  fill("tiers-by-node", s.tiers_by_node.map(t => [cell(t.node), cell(t.tier), ...counts(t), cell(t.engines), cell(t.policies)]), "none");
  $("tiers-count").textContent = s.tiers_by_node_total > s.tiers_by_node.length ? `${s.tiers_by_node.length} of ${s.tiers_by_node_total}, most late first` : "most late first";
}

async function look() {
  try {
    const wanted = looks++ % HISTORY_EACH ? "" : "&history=1";
    const answer = await fetch(`view.json?ports=${ports.known}${wanted}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    show(await answer.json());
    $("lost").hidden = true;
  } catch (error) {
    looks = 0;
    $("lost").textContent = `The coordinator does not answer: ${error.message}. What is below is old; nodes keep their last order for a while.`;
    $("lost").hidden = false;
  }
  setTimeout(look, document.hidden ? HIDDEN_MS : LOOK_MS);
}

$("find").addEventListener("submit", event => {
  event.preventDefault();
  if ($("request").value) location.hash = "request=" + $("request").value.trim();
});
look();
detail.open();
