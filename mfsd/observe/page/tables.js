// Tables whose rows are replaced only when they differ, so that a click is not lost.

import { $, make } from "./words.js";

const shown = new Map();

export function fill(id, rows, none) {
  const html = JSON.stringify(rows.map(row => row.map(cell => (cell.element ? cell.element.outerHTML : cell)))) + none;
  if (shown.get(id) === html) return;
  shown.set(id, html);
  const heads = [...$(id).tHead.rows[0].cells];
  const body = rows.map(row => make("tr", {}, ...row.map((cell, at) => {
    const kind = [heads[at].className, cell.kind].filter(Boolean).join(" ");
    const content = cell.element ?? cell.text ?? cell;
    return make("td", { class: kind }, content);
  })));
  if (!body.length) body.push(make("tr", {}, make("td", { class: "none", colspan: heads.length }, none)));
  $(id).tBodies[0].replaceChildren(...body);
}

export const cell = (content, kind = "") => (content instanceof Node ? { element: content, kind } : { text: String(content), kind });
