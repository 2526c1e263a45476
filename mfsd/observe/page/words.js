// Numbers as people read them, and elements of the page.

export const $ = id => document.getElementById(id);

export const CLASS_COLOURS = ["#d55e00", "#0072b2", "#56b4e9", "#009e73", "#d9c413", "#e69f00", "#cc79a7", "#999999", "#5e4fa2", "#8c2d4f"];
export const CLASS_NAMES = [..."01234567"].map(c => "class " + c).concat(["collectives and control", "without a permit"]);

const trim = (value, digits) => value.toFixed(digits).replace(/\.0+$/, "");

export function time(s) {
  const t = Math.abs(s);
  if (t >= 172800) return trim(t / 86400, 0) + " d";
  if (t >= 7200) return trim(t / 3600, 0) + " h";
  if (t >= 120) return trim(t / 60, 0) + " min";
  if (t >= 1) return trim(t, t < 10 ? 1 : 0) + " s";
  if (t >= 1e-3) return trim(t * 1e3, t < 1e-2 ? 1 : 0) + " ms";
  return trim(t * 1e6, 0) + " us";
}

export function scaled(value, unit) {
  for (const prefix of ["", "k", "M", "G", "T"]) {
    if (value < 1000 || prefix === "T") return trim(value, value && value < 10 ? 1 : 0) + " " + prefix + unit;
    value /= 1000;
  }
}
export const bits = bytes_per_s => scaled(8 * bytes_per_s, "bit/s");
export const bytes = n => scaled(n, "B");
export const percent = permille => trim(permille / 10, permille < 100 && permille % 10 ? 1 : 0) + " %";
export const share = (met, missed) => (met + missed ? trim(Math.floor((1000 * met) / (met + missed)) / 10, 1) + " %" : "-");

// An element with text or children; what comes from elsewhere is only ever text.
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value) element.setAttribute(key, value);
  element.append(...children.map(child => (child instanceof Node ? child : String(child))));
  return element;
}

export function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.map(child => (child instanceof Node ? child : String(child))));
  return element;
}

export const link = (kind, name, text = name) => make("a", { href: `#${kind}=${encodeURIComponent(name)}` }, text);

export function key(colours, names) {
  return names.flatMap((name, at) => {
    const box = make("i");
    box.style.background = colours[at];
    return [make("span", {}, box, name)];
  });
}

// Segments of one bar, in permille of its width.
export function bar(shares, colours) {
  const element = make("span", { class: "bar" });
  const total = shares.reduce((sum, value) => sum + value, 0), over = Math.max(1000, total);
  shares.forEach((value, at) => {
    if (!value) return;
    const part = make("i");
    part.style.width = (100 * value) / over + "%";
    part.style.background = colours[at % colours.length];
    element.append(part);
  });
  return element;
}
