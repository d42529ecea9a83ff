// The frame: what is shown at which address, asking the server again and again, and what is said when it does not answer.

import { fill, h, line } from "./dom.js";
import { Gone, del, get, watch } from "./api.js";
import { boxes } from "./boxes.js";
import { box } from "./box.js";
import { traces } from "./traces.js";
import { replay } from "./replay.js";
import { login } from "./login.js";
import { help, listen } from "./keys.js";
import { newBox } from "./dialogs.js";

// How often the server is asked what is new.
const PAUSE_MS = 1000;

const main = document.getElementById("main");
const banner = document.getElementById("banner");
const bar = document.getElementById("bar");

let view = {};
let shown = 0;
let session = { needsKey: false, in: true };

const THEMES = ["auto", "light", "dark"];

function theme() {
  try {
    return THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "auto";
  } catch {
    return "auto";
  }
}

function dress(name) {
  document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem("theme", name);
  } catch {
    // It holds for this page then.
  }
  const button = document.getElementById("theme");
  if (button) {
    button.textContent = { auto: "◐", light: "☀", dark: "☾" }[name];
    button.setAttribute("aria-label", `Colours: ${name}`);
    button.title = `Colours: ${name} (d)`;
  }
}

const nextTheme = () => dress(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);

function frame() {
  const to = (address, text) => h("a", { href: address, "aria-current": here(address) ? "page" : null }, text);
  fill(bar, h("a.brand", { href: "#/" }, h("img", { src: "/viewer/page/icon.svg", alt: "", width: 22, height: 22 }), "Glasshouse"),
    session.in && h("nav", { "aria-label": "Views" }, to("#/", "Boxes"), to("#/traces", "Traces"), h("a.wide", { href: "/docs" }, "API")), h("span.grow"),
    session.key && h("span.faint.wide", line(session.key)),
    h("button.quiet", { id: "theme", onclick: nextTheme }),
    h("button.quiet", { onclick: help, "aria-label": "Keyboard shortcuts", title: "Keyboard (?)" }, "?"),
    session.needsKey && session.in && h("button.quiet", { onclick: leave }, "Log out"));
  dress(theme());
}

function here(address) {
  const now = location.hash || "#/";
  return address === "#/" ? now === "#/" || now.startsWith("#/box/") : now.startsWith(address);
}

async function leave() {
  try {
    await del("/viewer/session");
  } finally {
    await begin();
  }
}

function route() {
  const [path, words] = (location.hash.slice(1) || "/").split("?");
  const parts = path.split("/").filter(Boolean).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  const given = new URLSearchParams(words ?? "");
  view.close?.();
  view = {};
  shown += 1;
  main.replaceChildren();
  frame();
  if (!session.in) view = login(main, begin);
  else if (!parts.length) view = boxes(main, given);
  else if (parts[0] === "box" && parts[1]) view = box(main, parts[1], parts[2] ?? "timeline", given);
  else if (parts[0] === "traces") view = traces(main, given);
  else if (parts[0] === "replay" && parts[1]) view = replay(main, parts[1]);
  else fill(main, h("div.empty", h("h1", "There is nothing here"), h("p", h("a", { href: "#/" }, "All boxes"))));
  window.scrollTo(0, 0);
  ask();
}

let asking = false;

// Asks for what is new. One question at a time; what is answered when something else is shown already is dropped by the view.
async function ask() {
  if (asking || document.hidden) return;
  asking = true;
  const of = shown;
  try {
    if (view.poll) await view.poll(() => of === shown);
    else if (!banner.hidden) await get("/health");
  } catch (e) {
    if (!(e instanceof Gone) && e.status !== 401 && of === shown) view.failed?.(e);
  }
  asking = false;
  if (of !== shown) ask();
}

watch((what) => {
  if (what === "gone") {
    fill(banner, h("span", "The server does not answer. Trying again …"));
    banner.hidden = false;
  } else if (what === "up" && !banner.hidden) {
    banner.hidden = true;
  } else if (what === "login" && session.in) {
    session = { ...session, in: false, needsKey: true };
    route();
  }
});

async function begin() {
  try {
    session = await get("/viewer/session");
    route();
  } catch {
    setTimeout(begin, PAUSE_MS);
  }
}

listen(() => view.keys ?? {}, {
  "g b": () => (location.hash = "#/"),
  "g t": () => (location.hash = "#/traces"),
  d: nextTheme,
  n: async () => {
    if (!session.in) return;
    const made = await newBox();
    if (made) location.hash = `#/box/${made.id}`;
  },
  Escape: () => {
    if (location.hash && location.hash !== "#/") location.hash = "#/";
  },
});

document.documentElement.dataset.theme = theme();
window.addEventListener("hashchange", () => {
  // The link past the bar is an address, too.
  if (location.hash === "#main") return;
  route();
});
document.addEventListener("visibilitychange", ask);
setInterval(ask, PAUSE_MS);
frame();
begin();
