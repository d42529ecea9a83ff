// Elements and words. Text becomes text here and nothing else: no function of this page makes elements out of a string.

const SVG = "http://www.w3.org/2000/svg";

// Controls, ends of lines, marks of direction, invisible letters: what could make a text look like another one.
const UNSAFE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f\u205f-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{e0000}-\u{e0fff}]/gu;

function spelled(letter) {
  const code = letter.codePointAt(0);
  return code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u{${code.toString(16)}}`;
}

// A text in which every letter is seen. Lines and tabs stay.
export function plain(text) {
  return String(text ?? "").replace(UNSAFE, spelled);
}

// The same on one line.
export function line(text) {
  return plain(String(text ?? "").replace(/\r?\n/g, " ⏎ ").replace(/\t/g, " "));
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(plain(child)));
  }
  return element;
}

// An element: h("div.card", { onclick }, "text", another).
export function h(name, ...rest) {
  const attributes = rest.length && rest[0]?.constructor === Object ? rest.shift() : {};
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  return append(set(element, attributes), rest);
}

export function svg(tag, attributes, ...children) {
  return append(set(document.createElementNS(SVG, tag), attributes), children);
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", [element.className.baseVal ?? element.className, value].filter(Boolean).join(" "));
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

// Gives an element another text, if it is another.
export function say(element, text) {
  const words = plain(text);
  if (element.textContent !== words) element.textContent = words;
}

// What a program wrote for a terminal, as far as it is text or colour: without what moves the cursor, sets modes and names windows.
export function spoken(text) {
  return String(text ?? "")
    .replace(/\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)/g, "")
    .replace(/\x1b\[(?![0-9;]*m)[0-?]*[ -/]*(?:[@-~]|$)/g, "")
    .replace(/\x1b[ -/]*[0-Z\\^-~]/g, "")
    .replace(/\x07|\x1b$/g, "")
    .replace(/\n\r+(?!\n)/g, "\n");
}

// What a program wrote, with its colours. Everything else that a terminal would obey is shown.
export function output(text) {
  const fragment = document.createDocumentFragment();
  const style = { fg: null, bg: null, bold: false, dim: false, underline: false };
  const pieces = String(text ?? "").replace(/\r+\n?/g, "\n").split(/\x1b\[([0-9;]*)m/);
  pieces.forEach((piece, at) => {
    if (at % 2) return paint(style, piece);
    if (!piece) return;
    const classes = [style.fg !== null && `f${style.fg}`, style.bg !== null && `b${style.bg}`, style.bold && "bold", style.dim && "dim", style.underline && "under"].filter(Boolean);
    const words = plain(piece);
    if (!classes.length) return fragment.append(words);
    const span = document.createElement("span");
    span.className = classes.join(" ");
    span.textContent = words;
    fragment.append(span);
  });
  return fragment;
}

function paint(style, codes) {
  const numbers = codes === "" ? [0] : codes.split(";").map(Number);
  for (let at = 0; at < numbers.length; at += 1) {
    const n = numbers[at];
    if (n === 0) Object.assign(style, { fg: null, bg: null, bold: false, dim: false, underline: false });
    else if (n === 1) style.bold = true;
    else if (n === 2) style.dim = true;
    else if (n === 4) style.underline = true;
    else if (n === 22) style.bold = style.dim = false;
    else if (n === 24) style.underline = false;
    else if (n >= 30 && n <= 37) style.fg = n - 30;
    else if (n >= 90 && n <= 97) style.fg = n - 82;
    else if (n >= 40 && n <= 47) style.bg = n - 40;
    else if (n >= 100 && n <= 107) style.bg = n - 92;
    else if (n === 39) style.fg = null;
    else if (n === 49) style.bg = null;
    else if (n === 38 || n === 48) at += numbers[at + 1] === 5 ? 2 : 4;
  }
}

export function grouped(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

export function count(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}

export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let value = bytes / 1024;
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    unit += 1;
  }
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function duration(us) {
  if (us < 1000) return `${us} µs`;
  if (us < 10_000) return `${(us / 1000).toFixed(1)} ms`;
  if (us < 1_000_000) return `${Math.floor(us / 1000)} ms`;
  if (us < 60_000_000) return `${(us / 1_000_000).toFixed(us % 1_000_000 ? 2 : 0)} s`;
  return `${Math.floor(us / 60_000_000)} min ${String(Math.floor(us / 1_000_000) % 60).padStart(2, "0")} s`;
}

export function age(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

export function when(ms) {
  return ms ? new Date(ms).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" }) : "";
}

export function since(ms) {
  return `+${(ms / 1000).toFixed(3)} s`;
}

// Names and labels that anybody may have chosen: on one line, in a direction of their own.
export function named(text, ...classes) {
  const element = document.createElement("bdi");
  if (classes.length) element.className = classes.join(" ");
  element.textContent = line(text);
  return element;
}

// The same where there is room for one line only: it is cut, and shown as a whole to whoever points at it.
export function short(text, ...classes) {
  const element = named(text, "short", ...classes);
  element.title = element.textContent;
  return element;
}
