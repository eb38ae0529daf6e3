// Elements, numbers and times. Text is always set as text: nothing that a broker tells becomes markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element; `props` are attributes, `on…` listeners, `class` and `text`; children are elements or texts. */
export function el(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(made, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "text") made.textContent = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((one) => one !== null && one !== undefined && one !== false));
  return made;
}

/** Sets a text where it is another one. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets an attribute where it is another one. */
export function put(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** `1,234`; a dash for what is not known. */
export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

/** A rate: `1,234` or `0.25`. */
export const rate = (value) => (value === null || value === undefined ? "–" : value >= 100 ? whole.format(value) : short.format(value));

/** `850 ms`, `12 s`, `4 min`, `3.2 h`. */
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1) return `${short.format(ms)} ms`;
  if (ms < 1000) return `${whole.format(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 120_000) return `${whole.format(ms / 1000)} s`;
  if (ms < 7_200_000) return `${whole.format(ms / 60_000)} min`;
  return `${(ms / 3_600_000).toFixed(1)} h`;
}

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

/** As commands name it. */
export const named = (one) => `${one.topic}:${one.partition}@${one.offset}`;

export const place = (one) => `${one.topic}-${one.partition}@${one.offset}`;
