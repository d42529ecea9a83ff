// A terminal into a box: a shell over a WebSocket, on a screen of our own.
//
// The screen is ours and not a known library's because those make styles and elements out of strings while they run, which this
// page's policy forbids; and because a program in a box may write anything: what draws it should be small enough to be read.

import { fill, h, line, plain } from "./dom.js";
import { boxPath } from "./api.js";
import { Screen, css, sent } from "./vt.js";

// The shell that a box has.
const SHELL = "if command -v bash >/dev/null 2>&1; then exec bash -i; else exec sh -i; fi";

export function terminal(body, id, { running }) {
  const rows = h("div.screen", { role: "presentation" });
  const typed = h("textarea", { "aria-label": "Terminal", autocapitalize: "off", autocomplete: "off", autocorrect: "off", spellcheck: "false", rows: 1 });
  const measure = h("span.measure", "m".repeat(50));
  const frame = h("div.terminal", { onmousedown: () => setTimeout(focus) }, rows, measure, typed);
  const state = h("span.faint", { role: "status" });
  const again = h("button", { onclick: () => connect(), hidden: true }, "New shell");
  fill(body, h("div.toolbar", state, h("span.grow"), h("small.faint", "Ctrl+Shift+C copies, Ctrl+Shift+V pastes; Shift+Esc leaves"), again), frame);
  let socket = null;
  let screen = new Screen(80, 24);
  let due = false;
  const decoder = new TextEncoder();

  // Who selects text is not to lose it.
  function focus() {
    if (getSelection().isCollapsed) typed.focus({ preventScroll: true });
  }

  function fitted() {
    const box = measure.getBoundingClientRect();
    const inner = getComputedStyle(frame);
    const space = (a, b) => Number.parseFloat(inner[a]) + Number.parseFloat(inner[b]);
    const cols = Math.floor((frame.clientWidth - space("paddingLeft", "paddingRight")) / (box.width / 50));
    const high = Math.floor((frame.clientHeight - space("paddingTop", "paddingBottom")) / (Number.parseFloat(inner.fontSize) * 1.3));
    return [Math.min(Math.max(cols, 20), 400), Math.min(Math.max(high, 6), 200)];
  }

  function send(text) {
    if (socket?.readyState !== WebSocket.OPEN || !text) return;
    const bytes = decoder.encode(text);
    const message = new Uint8Array(bytes.length + 1);
    message.set(bytes, 1);
    socket.send(message);
  }

  function connect() {
    socket?.close();
    const [cols, high] = fitted();
    screen = new Screen(cols, high, send);
    draw();
    again.hidden = true;
    state.textContent = "Connecting …";
    const own = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${boxPath(id, "/stream")}`);
    socket = own;
    own.binaryType = "arraybuffer";
    own.onopen = () => own.send(JSON.stringify({ type: "start", command: SHELL, tty: { cols, rows: high } }));
    own.onmessage = ({ data }) => {
      if (own !== socket) return;
      if (typeof data === "string") return told(JSON.parse(data));
      screen.write(new Uint8Array(data, 1));
      later();
    };
    own.onclose = () => {
      if (own !== socket) return;
      if (state.textContent === "Connecting …" || state.textContent === "Connected") state.textContent = "The connection has ended.";
      again.hidden = false;
    };
    focus();
  }

  function told(message) {
    if (message.type === "started") {
      state.textContent = "Connected";
      const [cols, high] = fitted();
      resized(cols, high);
    } else if (message.type === "exit") state.textContent = `The shell has ended, exit code ${message.exitCode}.`;
    else if (message.type === "error") state.textContent = line(`Refused: ${message.error ?? message.code}`);
    else if (message.type === "gap") screen.write("\r\n[something was not kept]\r\n");
    later();
  }

  function resized(cols, high) {
    if (cols === screen.cols && high === screen.rows) return;
    screen.resize(cols, high);
    if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ type: "resize", cols, rows: high }));
    later();
  }

  function later() {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      draw();
    });
  }

  // Rows that look as before stay as they are.
  const shown = [];
  function draw() {
    const bottom = frame.scrollHeight - frame.scrollTop - frame.clientHeight < 40;
    const all = [...screen.history, ...screen.lines];
    while (rows.childElementCount > all.length) rows.lastElementChild.remove();
    shown.length = Math.min(shown.length, all.length);
    all.forEach((cells, at) => {
      const cursor = screen.modes.cursor && at === screen.history.length + screen.y ? screen.x : -1;
      const pieces = runs(cells, cursor);
      const look = JSON.stringify(pieces);
      if (shown[at] === look) return;
      shown[at] = look;
      const row = h("div", pieces.map(piece));
      if (rows.children[at]) rows.children[at].replaceWith(row);
      else rows.append(row);
    });
    if (bottom) frame.scrollTop = frame.scrollHeight;
  }

  function runs(cells, cursor) {
    const pieces = [];
    cells.forEach(({ char, style }, at) => {
      const last = pieces.at(-1);
      const here = at === cursor;
      if (last && last.style === style && !last.here && !here) last.text += char;
      else pieces.push({ text: char, style, here });
    });
    return pieces;
  }

  function piece({ text, style, here }) {
    const element = h("span", plain(text));
    let [fg, bg] = [css(style.bold && typeof style.fg === "number" && style.fg < 8 ? style.fg + 8 : style.fg), css(style.bg)];
    if (style.turned) [fg, bg] = [bg ?? "#10141a", fg ?? "#d8dee6"];
    if (fg) element.style.color = fg;
    if (bg) element.style.backgroundColor = bg;
    if (style.bold) element.classList.add("bold");
    if (style.dim) element.classList.add("dim");
    if (style.under) element.classList.add("under");
    if (here) element.classList.add("cursor");
    return element;
  }

  typed.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.shiftKey) {
      typed.blur();
      return;
    }
    if (event.ctrlKey && event.shiftKey && event.key.toLowerCase() === "c") {
      event.preventDefault();
      navigator.clipboard?.writeText(getSelection().toString()).catch(() => {});
      return;
    }
    const text = sent(event, screen.modes);
    if (text === null) return;
    event.preventDefault();
    send(text);
    frame.scrollTop = frame.scrollHeight;
  });
  typed.addEventListener("input", (event) => {
    if (event.isComposing) return;
    const text = typed.value;
    typed.value = "";
    send(text.replace(/\n/g, "\r"));
  });
  typed.addEventListener("compositionend", () => {
    send(typed.value);
    typed.value = "";
  });
  typed.addEventListener("paste", (event) => {
    event.preventDefault();
    // What could end the quotes that are put around it is taken out.
    const text = (event.clipboardData?.getData("text/plain") ?? "").replace(/\x1b/g, "").replace(/\r?\n/g, "\r");
    send(screen.modes.paste ? `\x1b[200~${text}\x1b[201~` : text);
  });

  const watcher = new ResizeObserver(() => resized(...fitted()));
  watcher.observe(frame);
  let begun = false;
  draw();
  state.textContent = "Waiting for the box …";
  return {
    poll: async () => {
      if (begun) return;
      if (running()) {
        begun = true;
        connect();
      } else state.textContent = "The box does not run.";
    },
    close: () => {
      watcher.disconnect();
      const old = socket;
      socket = null;
      old?.close();
    },
    keys: { Enter: () => typed.focus() },
  };
}
