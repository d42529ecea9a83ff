// A screen as programs expect one: letters in a grid, a cursor, colours. What it is told is data; it can draw letters and nothing else.
//
// It understands what the terminals of xterm's family do and full-screen programs use: moving, erasing, inserting and deleting,
// regions that scroll, the second screen, and colours. What it does not know it skips. Questions of programs (where is the cursor? what
// are you?) are answered, with numbers only: nothing that a program has written comes back to it as if it had been typed.

import { plain } from "./dom.js";

const DEFAULT = Object.freeze({ fg: null, bg: null, bold: false, dim: false, under: false, turned: false });
// Rows that scrolled away and can be looked at.
const HISTORY = 2000;
// The longest sequence that is waited for.
const SEQUENCE = 256;

// Marks that stand on the letter before them, and how many of them do. What could make a text look like another one is none.
const MARK = /^[\p{Mn}\p{Me}]$/u;
const MARKS = 8;

// Letters of two columns: those of East Asia, and most pictures.
function width(code) {
  if (code < 0x300) return 1;
  if (MARK.test(String.fromCodePoint(code))) return 0;
  if ((code >= 0x300 && code <= 0x36f) || (code >= 0x200b && code <= 0x200f) || (code >= 0x202a && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f) || (code >= 0xfe00 && code <= 0xfe0f) || code === 0xfeff) return 0;
  const wide = (code >= 0x1100 && code <= 0x115f) || (code >= 0x2e80 && code <= 0xa4cf) || (code >= 0xac00 && code <= 0xd7a3) || (code >= 0xf900 && code <= 0xfaff) || (code >= 0xfe30 && code <= 0xfe6f) || (code >= 0xff00 && code <= 0xff60) || (code >= 0x1f300 && code <= 0x1faff) || (code >= 0x20000 && code <= 0x3fffd);
  return wide ? 2 : 1;
}

const LINES = { j: "┘", k: "┐", l: "┌", m: "└", n: "┼", q: "─", t: "├", u: "┤", v: "┴", w: "┬", x: "│", a: "▒", f: "°", g: "±", "`": "◆", o: "⎺", s: "⎽", y: "≤", z: "≥", "~": "·" };

export class Screen {
  constructor(cols, rows, answer = () => {}) {
    this.answer = answer;
    this.history = [];
    this.decoder = new TextDecoder();
    this.start(cols, rows);
  }

  start(cols, rows) {
    [this.cols, this.rows] = [cols, rows];
    this.lines = Array.from({ length: rows }, () => this.blank());
    this.other = null;
    [this.x, this.y, this.wrapped] = [0, 0, false];
    this.style = DEFAULT;
    this.saved = null;
    [this.top, this.bottom] = [0, rows - 1];
    this.modes = { cursor: true, wrap: true, keys: false, paste: false, origin: false, insert: false };
    this.drawing = false;
    this.state = "text";
    this.sequence = "";
  }

  blank() {
    return Array.from({ length: this.cols }, () => this.empty());
  }

  empty() {
    return { char: " ", style: this.style && this.style.bg !== null ? { ...DEFAULT, bg: this.style.bg } : DEFAULT };
  }

  resize(cols, rows) {
    if (cols === this.cols && rows === this.rows) return;
    const fit = (lines, keep) => {
      const all = lines.map((line) => (line.length > cols ? line.slice(0, cols) : [...line, ...Array.from({ length: cols - line.length }, () => ({ char: " ", style: DEFAULT }))]));
      while (all.length > rows) {
        const gone = this.y < rows ? all.pop() : all.shift();
        if (keep && this.y >= rows) {
          this.history.push(gone);
          this.y -= 1;
        }
      }
      while (all.length < rows) all.push(Array.from({ length: cols }, () => ({ char: " ", style: DEFAULT })));
      return all;
    };
    this.cols = cols;
    const y = this.y;
    this.lines = fit(this.lines, !this.other);
    if (this.other) {
      const now = this.y;
      this.y = y;
      this.other.lines = fit(this.other.lines, false);
      this.y = now;
    }
    this.rows = rows;
    [this.top, this.bottom] = [0, rows - 1];
    this.x = Math.min(this.x, cols - 1);
    this.y = Math.min(Math.max(this.y, 0), rows - 1);
    this.wrapped = false;
  }

  write(bytes) {
    const text = typeof bytes === "string" ? bytes : this.decoder.decode(bytes, { stream: true });
    for (const char of text) this.take(char);
  }

  take(char) {
    const code = char.codePointAt(0);
    if (this.state === "text") return code < 0x20 || code === 0x7f || (code >= 0x80 && code < 0xa0) ? this.control(code) : this.put(char, code);
    // A new sequence ends one that was not finished.
    if (code === 0x1b && this.state !== "string") return this.begin("escape");
    if (code === 0x18 || code === 0x1a) return this.begin("text");
    if (this.state === "escape") return this.escape(char);
    if (this.state === "charset") {
      if (this.sequence === "(") this.drawing = char === "0";
      return this.begin("text");
    }
    if (this.state === "string") {
      // Titles, links, clipboards: none of them is ours to set.
      if (code === 0x07 || code === 0x9c || (this.sequence === "\x1b" && char === "\\")) return this.begin("text");
      this.sequence = char;
      return undefined;
    }
    if (code < 0x20) return this.control(code);
    if (code >= 0x40 && code <= 0x7e) {
      const given = this.sequence;
      this.begin("text");
      return this.obey(given, char);
    }
    this.sequence += char;
    return this.sequence.length > SEQUENCE ? this.begin("text") : undefined;
  }

  begin(state) {
    this.state = state;
    this.sequence = "";
  }

  control(code) {
    if (code === 0x1b) this.begin("escape");
    else if (code === 0x0d) [this.x, this.wrapped] = [0, false];
    else if (code === 0x0a || code === 0x0b || code === 0x0c) this.down();
    else if (code === 0x08) [this.x, this.wrapped] = [Math.max(this.x - 1, 0), false];
    else if (code === 0x09) [this.x, this.wrapped] = [Math.min((Math.floor(this.x / 8) + 1) * 8, this.cols - 1), false];
    else if (code === 0x0e) this.drawing = true;
    else if (code === 0x0f) this.drawing = false;
  }

  put(given, code) {
    const char = this.drawing ? LINES[given] ?? given : given;
    const columns = width(code);
    if (columns === 0) return this.mark(given);
    if (this.wrapped && this.modes.wrap) {
      this.x = 0;
      this.down();
    }
    this.wrapped = false;
    if (this.x + columns > this.cols) {
      if (!this.modes.wrap || this.cols < columns) return;
      this.x = 0;
      this.down();
    }
    const line = this.lines[this.y];
    if (this.modes.insert) {
      line.splice(this.x, 0, ...Array.from({ length: columns }, () => this.empty()));
      line.length = this.cols;
    }
    line[this.x] = { char, style: this.style };
    if (columns === 2) line[this.x + 1] = { char: "", style: this.style };
    this.x += columns;
    if (this.x >= this.cols) [this.x, this.wrapped] = [this.cols - 1, true];
  }

  // A mark goes to the letter before the cursor. At the end of a row the cursor stands on that letter.
  mark(char) {
    if (!MARK.test(char) || plain(char) !== char) return;
    const line = this.lines[this.y];
    let at = this.wrapped ? this.x : this.x - 1;
    if (line[at]?.char === "") at -= 1;
    const cell = line[at];
    if (!cell || [...cell.char].length > MARKS) return;
    line[at] = { char: cell.char + char, style: cell.style };
  }

  down() {
    this.wrapped = false;
    if (this.y === this.bottom) this.scroll(1);
    else if (this.y < this.rows - 1) this.y += 1;
  }

  up() {
    if (this.y === this.top) this.scroll(-1);
    else if (this.y > 0) this.y -= 1;
  }

  scroll(by) {
    for (let n = 0; n < Math.min(Math.abs(by), this.bottom - this.top + 1); n += 1) {
      if (by > 0) {
        const [gone] = this.lines.splice(this.top, 1);
        this.lines.splice(this.bottom, 0, this.blank());
        if (this.top === 0 && !this.other) {
          this.history.push(gone);
          if (this.history.length > HISTORY) this.history.shift();
        }
      } else {
        this.lines.splice(this.bottom, 1);
        this.lines.splice(this.top, 0, this.blank());
      }
    }
  }

  escape(char) {
    this.begin("text");
    if (char === "[") this.begin("csi");
    else if ("]PX^_".includes(char)) this.begin("string");
    else if ("()*+#%".includes(char)) {
      this.begin("charset");
      this.sequence = char;
    } else if (char === "7") this.keep();
    else if (char === "8") this.back();
    else if (char === "D") this.down();
    else if (char === "M") this.up();
    else if (char === "E") {
      this.x = 0;
      this.down();
    } else if (char === "c") {
      this.history = [];
      this.start(this.cols, this.rows);
    }
  }

  keep() {
    this.saved = { x: this.x, y: this.y, style: this.style, drawing: this.drawing };
  }

  back() {
    const { x, y, style, drawing } = this.saved ?? { x: 0, y: 0, style: DEFAULT, drawing: false };
    Object.assign(this, { style, drawing, wrapped: false });
    this.to(x, y);
  }

  to(x, y) {
    this.x = Math.min(Math.max(x, 0), this.cols - 1);
    this.y = Math.min(Math.max(y, 0), this.rows - 1);
    this.wrapped = false;
  }

  obey(given, final) {
    const mark = /^[?>=<!]/.test(given) ? given[0] : "";
    const inner = given.replace(/[^0-9;:]/g, "");
    if (mark === "?") return final === "h" || final === "l" ? this.mode(inner, final === "h") : undefined;
    if (mark || / |\$|"|'/.test(given)) {
      if (mark === "!" && final === "p") this.start(this.cols, this.rows);
      if (mark === ">" && final === "c") this.answer("\x1b[>0;0;0c");
      return undefined;
    }
    if (final === "m") return this.paint(inner);
    const numbers = inner.split(";").map((word) => (word === "" ? null : Math.min(Number.parseInt(word, 10) || 0, 9999)));
    const n = Math.max(numbers[0] ?? 1, 1);
    const line = this.lines[this.y];
    const base = this.modes.origin ? this.top : 0;
    const acts = {
      A: () => this.to(this.x, Math.max(this.y - n, this.y >= this.top ? this.top : 0)),
      B: () => this.to(this.x, Math.min(this.y + n, this.y <= this.bottom ? this.bottom : this.rows - 1)),
      C: () => this.to(this.x + n, this.y),
      D: () => this.to(this.x - n, this.y),
      E: () => this.to(0, this.y + n),
      F: () => this.to(0, this.y - n),
      G: () => this.to(n - 1, this.y),
      "`": () => this.to(n - 1, this.y),
      d: () => this.to(this.x, base + n - 1),
      H: () => this.to((numbers[1] || 1) - 1, base + n - 1),
      f: () => this.to((numbers[1] || 1) - 1, base + n - 1),
      J: () => this.erase(numbers[0] ?? 0),
      K: () => this.wipe(line, ...[[this.x, this.cols], [0, this.x + 1], [0, this.cols]][Math.min(numbers[0] ?? 0, 2)]),
      X: () => this.wipe(line, this.x, this.x + n),
      P: () => {
        line.splice(this.x, n);
        while (line.length < this.cols) line.push(this.empty());
      },
      "@": () => {
        line.splice(this.x, 0, ...Array.from({ length: Math.min(n, this.cols) }, () => this.empty()));
        line.length = this.cols;
      },
      L: () => this.within(() => this.scroll(-n)),
      M: () => this.within(() => this.scroll(n)),
      S: () => this.scroll(n),
      T: () => this.scroll(-n),
      b: () => {
        const before = line[Math.max(this.x - 1, 0)].char;
        for (let count = 0; count < Math.min(n, this.cols) && before; count += 1) this.put(before, before.codePointAt(0));
      },
      r: () => {
        const [top, bottom] = [(numbers[0] || 1) - 1, Math.min(numbers[1] || this.rows, this.rows) - 1];
        if (top < bottom) {
          [this.top, this.bottom] = [top, bottom];
          this.to(0, this.modes.origin ? top : 0);
        }
      },
      s: () => this.keep(),
      u: () => this.back(),
      h: () => (this.modes.insert = numbers[0] === 4 || this.modes.insert),
      l: () => (this.modes.insert = numbers[0] === 4 ? false : this.modes.insert),
      n: () => numbers[0] === 6 ? this.answer(`\x1b[${this.y + 1};${this.x + 1}R`) : numbers[0] === 5 && this.answer("\x1b[0n"),
      c: () => this.answer("\x1b[?62;22c"),
    };
    acts[final]?.();
    return undefined;
  }

  // Rows are put in and taken out between the cursor and the end of the region.
  within(act) {
    if (this.y < this.top || this.y > this.bottom) return;
    const top = this.top;
    this.top = this.y;
    const kept = this.history.length;
    act();
    this.history.length = Math.min(this.history.length, kept);
    this.top = top;
    this.x = 0;
  }

  wipe(line, from, to) {
    for (let at = from; at < Math.min(to, this.cols); at += 1) line[at] = this.empty();
    this.wrapped = false;
  }

  erase(what) {
    if (what === 3) this.history = [];
    const [from, to] = what === 0 ? [this.y + 1, this.rows] : what === 1 ? [0, this.y] : [0, this.rows];
    if (what > 2) return;
    for (let at = from; at < to; at += 1) this.lines[at] = this.blank();
    if (what === 0) this.wipe(this.lines[this.y], this.x, this.cols);
    if (what === 1) this.wipe(this.lines[this.y], 0, this.x + 1);
  }

  mode(numbers, on) {
    for (const n of numbers.split(";").map(Number)) {
      if (n === 25) this.modes.cursor = on;
      else if (n === 7) this.modes.wrap = on;
      else if (n === 1) this.modes.keys = on;
      else if (n === 6) {
        this.modes.origin = on;
        this.to(0, on ? this.top : 0);
      } else if (n === 2004) this.modes.paste = on;
      else if (n === 1048) on ? this.keep() : this.back();
      else if (n === 47 || n === 1047 || n === 1049) this.second(on, n === 1049);
    }
  }

  second(on, keep) {
    if (on === Boolean(this.other)) return;
    if (on) {
      if (keep) this.keep();
      this.other = { lines: this.lines, saved: this.saved };
      this.lines = Array.from({ length: this.rows }, () => this.blank());
    } else {
      ({ lines: this.lines, saved: this.saved } = this.other);
      this.other = null;
      if (keep) this.back();
    }
    [this.top, this.bottom] = [0, this.rows - 1];
  }

  paint(inner) {
    const numbers = inner === "" ? [0] : inner.split(/[;:]/).map((word) => Number(word) || 0);
    let style = { ...this.style };
    const color = (at) => {
      if (numbers[at + 1] === 5) return [numbers[at + 2] & 255, 2];
      if (numbers[at + 1] === 2) return [[2, 3, 4].map((offset) => numbers[at + offset] & 255), 4];
      return [null, 1];
    };
    for (let at = 0; at < numbers.length; at += 1) {
      const n = numbers[at];
      if (n === 0) style = { ...DEFAULT };
      else if (n === 1) style.bold = true;
      else if (n === 2) style.dim = true;
      else if (n === 4) style.under = true;
      else if (n === 7) style.turned = true;
      else if (n === 22) style.bold = style.dim = false;
      else if (n === 24) style.under = false;
      else if (n === 27) style.turned = false;
      else if (n >= 30 && n <= 37) style.fg = n - 30;
      else if (n >= 40 && n <= 47) style.bg = n - 40;
      else if (n >= 90 && n <= 97) style.fg = n - 82;
      else if (n >= 100 && n <= 107) style.bg = n - 92;
      else if (n === 39) style.fg = null;
      else if (n === 49) style.bg = null;
      else if (n === 38 || n === 48) {
        const [value, used] = color(at);
        style[n === 38 ? "fg" : "bg"] = value;
        at += used;
      }
    }
    this.style = style;
  }

  // The text of a row, for tests and for copying.
  text(y) {
    return this.lines[y].map((cell) => cell.char).join("").trimEnd();
  }
}

const SIXTEEN = ["#3b424c", "#ff7b72", "#4ac15e", "#e0ab3c", "#6cb0ff", "#d68cf5", "#52c7d4", "#d8dee6", "#8b949e", "#ffa198", "#7ee787", "#f2cc60", "#a5d6ff", "#e2b6ff", "#87e4ee", "#ffffff"];

// A colour as CSS says it: one of sixteen, of 256, or any.
export function css(color) {
  if (color === null) return null;
  if (Array.isArray(color)) return `rgb(${color.join(" ")})`;
  if (color < 16) return SIXTEEN[color];
  if (color >= 232) return `rgb(${Array(3).fill(8 + (color - 232) * 10).join(" ")})`;
  const n = color - 16;
  return `rgb(${[Math.floor(n / 36), Math.floor(n / 6) % 6, n % 6].map((level) => (level ? 55 + level * 40 : 0)).join(" ")})`;
}

const KEYS = { Enter: "\r", Backspace: "\x7f", Tab: "\t", Escape: "\x1b", Delete: "\x1b[3~", Insert: "\x1b[2~", PageUp: "\x1b[5~", PageDown: "\x1b[6~", F1: "\x1bOP", F2: "\x1bOQ", F3: "\x1bOR", F4: "\x1bOS", F5: "\x1b[15~", F6: "\x1b[17~", F7: "\x1b[18~", F8: "\x1b[19~", F9: "\x1b[20~", F10: "\x1b[21~", F11: "\x1b[23~", F12: "\x1b[24~" };
const MOVES = { ArrowUp: "A", ArrowDown: "B", ArrowRight: "C", ArrowLeft: "D", Home: "H", End: "F" };

// What a key sends; nothing for those that are the browser's, and for letters, which come as input.
export function sent(event, modes) {
  if (event.metaKey || event.isComposing) return null;
  const shift = (event.shiftKey ? 1 : 0) + (event.altKey ? 2 : 0) + (event.ctrlKey ? 4 : 0);
  if (MOVES[event.key]) return shift ? `\x1b[1;${shift + 1}${MOVES[event.key]}` : `\x1b${modes.keys ? "O" : "["}${MOVES[event.key]}`;
  if (event.key === "Tab" && event.shiftKey) return "\x1b[Z";
  if (KEYS[event.key]) return KEYS[event.key];
  if (event.ctrlKey && !event.altKey && event.key.length === 1) {
    if (event.shiftKey && "cCvV".includes(event.key)) return null;
    const code = event.key.toUpperCase().charCodeAt(0);
    if (code >= 0x40 && code <= 0x5f) return String.fromCharCode(code - 0x40);
    if (event.key === " ") return "\0";
    if (event.key === "/") return "\x1f";
  }
  if (event.altKey && !event.ctrlKey && event.key.length === 1) return `\x1b${event.key}`;
  return null;
}
