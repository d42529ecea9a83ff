// The keyboard: single letters where nobody types, and a list of them at "?".

import { h } from "./dom.js";

const ALL = [
  ["g b", "Boxes"],
  ["g t", "Traces"],
  ["n", "New box"],
  ["/", "Search or filter"],
  ["j  k", "Next, previous"],
  ["Enter", "Open what is selected"],
  ["1 – 5", "Parts of a box"],
  ["p", "Pause or resume the box"],
  ["[  ]", "Page before, page after"],
  ["d", "Light, dark, or as the system"],
  ["Esc", "Close, or back"],
  ["?", "This list"],
];

export function help() {
  const open = document.querySelector("dialog.help");
  if (open) return open.close();
  const dialog = h("dialog.help", { "aria-label": "Keyboard" }, h("h2", "Keyboard"),
    h("dl.keys", ALL.map(([keys, what]) => [h("dt", keys.split(" ").filter(Boolean).map((key) => (key === "–" ? " – " : h("kbd", key)))), h("dd", what)])),
    h("div.row.end", h("button.primary", { onclick: () => dialog.close(), autofocus: true }, "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

// Moves the selection among the elements that can be selected.
function move(by) {
  const rows = [...document.querySelectorAll("main [data-row]")].filter((row) => row.offsetParent !== null);
  if (!rows.length) return;
  const at = rows.findIndex((row) => row === document.activeElement || row.contains(document.activeElement));
  const next = rows[Math.min(Math.max(at + by, 0), rows.length - 1)];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

// `view` tells the keys of what is shown; `all` those that hold everywhere.
export function listen(view, all) {
  let before = "";
  document.addEventListener("keydown", (event) => {
    const target = event.target;
    const typing = target instanceof HTMLElement && (target.matches("input, textarea, select, .terminal, .terminal *") || target.isContentEditable);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) {
      if (event.key === "?" && document.querySelector("dialog.help")) {
        event.preventDefault();
        help();
      }
      return;
    }
    if (typing) {
      if (event.key === "Escape" && !target.closest(".terminal")) target.blur();
      return;
    }
    const key = before === "g" ? `g ${event.key}` : event.key;
    before = event.key === "g" && before !== "g" ? "g" : "";
    if (before) return;
    const own = { ...all, j: () => move(1), k: () => move(-1), "?": help, "/": () => focusSearch(), ...view() };
    if (own[key]) {
      event.preventDefault();
      own[key]();
    }
  });
}

function focusSearch() {
  document.querySelector("main input[type=search]")?.focus();
}
