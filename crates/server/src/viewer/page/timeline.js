// What happened in a box, step by step: as `glass log --html` shows it, and as it happens.

import { count, duration, fill, grouped, h, line, named, output, plain, say, since, size, spoken, when } from "./dom.js";
import { boxPath, get, post, query } from "./api.js";
import { act, confirmed } from "./dialogs.js";

const PAGE = 50;
// How many lines of an output are shown before somebody asks for more.
const PREVIEW_LINES = 8;

const where = (id, rest = "") => `/viewer/traces/${encodeURIComponent(id)}${rest}`;

export function timeline(body, id, { running, given }) {
  let page = 0;
  let version = null;
  let at = given.get("seq");
  let start = 0;
  let none = false;
  const cards = new Map();
  const order = h("select", { "aria-label": "Order", onchange: () => again() }, h("option", { value: "newest" }, "Newest first"), h("option", { value: "oldest" }, "Oldest first"));
  const search = h("input", { type: "search", placeholder: "Filter commands", "aria-label": "Filter commands", oninput: () => later() });
  const failed = h("input", { type: "checkbox", onchange: () => again() });
  const pager = h("span.pager");
  const list = h("ol.timeline", { "aria-label": "Steps" });
  const empty = h("div.empty", { hidden: true }, h("p", "Reading the record …"));
  const command = h("input.mono", { name: "command", placeholder: "Run a command in the box", "aria-label": "Run a command", spellcheck: "false", autocapitalize: "off", autocomplete: "off" });
  const run = h("form.run", h("span.prompt", { "aria-hidden": "true" }, "$"), command, h("button", { type: "submit" }, "Run"));
  run.addEventListener("submit", async (event) => {
    event.preventDefault();
    const words = command.value.trim();
    if (!words) return;
    command.value = "";
    // It is seen on the timeline; what is said here is only that it could not be begun.
    await act(() => post(boxPath(id, "/exec"), { command: words }));
  });
  fill(body, run, h("div.toolbar", search, h("label.check", failed, "Failed only"), order, h("span.grow"), pager,
    h("a.quiet.button", { href: boxPath(id, "/trace"), download: `${id}.jsonl` }, "Record"),
    h("button.quiet", { onclick: check }, "Verify")), list, empty);

  async function check() {
    await act(() => get(boxPath(id, "/trace/verify")), (report) => (report.ok ? `The record is what was written: ${grouped(report.lines)} lines` : `The record was changed: ${line(report.firstBad?.why ?? "contents are missing")}`));
  }

  let waiting;
  function later() {
    clearTimeout(waiting);
    waiting = setTimeout(again, 200);
  }

  function again() {
    page = 0;
    version = null;
    at = null;
    view.poll(() => list.isConnected).catch(() => {});
  }

  function turn(to) {
    page = to;
    version = null;
    at = null;
    view.poll(() => list.isConnected).catch(() => {});
  }

  function pages(answer) {
    const button = (text, to, name) => h("button.quiet", { disabled: to < 0 || to >= answer.pages || to === answer.page, onclick: () => turn(to), "aria-label": name, title: name }, text);
    const words = answer.matched === answer.total ? count(answer.total, "entry", "entries") : `${answer.matched} of ${answer.total}`;
    fill(pager, h("span.faint", words), answer.pages > 1 && [button("«", 0, "First page"), button("‹", answer.page - 1, "Page before"), h("span", `${answer.page + 1} / ${answer.pages}`), button("›", answer.page + 1, "Page after"), button("»", answer.pages - 1, "Last page")]);
    view.pages = answer.pages;
  }

  const view = {
    keys: {
      "[": () => page > 0 && turn(page - 1),
      "]": () => page + 1 < (view.pages ?? 1) && turn(page + 1),
    },
    async poll(current) {
      run.hidden = !running();
      if (none) return;
      const asked = { page, size: PAGE, order: order.value, q: search.value.trim(), failed: failed.checked, at, since: version };
      let answer;
      try {
        answer = await get(where(id, query(asked)));
      } catch (e) {
        if (e.status !== 404 || !current()) throw e;
        none = true;
        empty.hidden = false;
        fill(empty, h("h2", "There is no such box"), h("p", "Neither the box nor a record of it is here."));
        return;
      }
      if (!current() || answer.unchanged) return;
      ({ version, page } = answer);
      start = answer.startMs ?? 0;
      pages(answer);
      show(answer.items);
      empty.hidden = answer.items.length > 0;
      if (!answer.items.length) fill(empty, answer.total ? h("p", "Nothing fits.") : [h("h2", "Nothing has happened yet"), h("p", "Commands appear here as they are run.")]);
      if (at !== null && at !== undefined) {
        const found = cards.get(answer.found);
        if (found) {
          found.open(true);
          found.element.scrollIntoView({ block: "center" });
          found.element.classList.add("found");
        }
        at = null;
      }
    },
  };

  // Cards stay as they are when only others changed: somebody may be reading one.
  function show(items) {
    const numbers = new Set(items.map((item) => item.n));
    for (const [n, card] of cards) {
      if (!numbers.has(n)) {
        card.element.remove();
        cards.delete(n);
      }
    }
    let before = null;
    for (const item of items) {
      const known = cards.get(item.n);
      const same = JSON.stringify(item);
      if (!known || known.same !== same) {
        const fresh = item.kind === "note" ? remark(item) : step(item);
        fresh.same = same;
        if (known) {
          if (known.isOpen?.()) fresh.open(true);
          known.element.replaceWith(fresh.element);
        }
        cards.set(item.n, fresh);
      }
      const card = cards.get(item.n);
      const place = before ? before.nextElementSibling : list.firstElementChild;
      if (place !== card.element) list.insertBefore(card.element, place);
      before = card.element;
    }
  }

  const time = (item) => h("time", { title: when(item.timeMs) }, since(item.timeMs - start));

  function remark(item) {
    const element = h("li.note", { class: [item.class, item.bad && "bad"].filter(Boolean).join(" ") }, time(item), " ", named(item.title));
    return { element, open: () => {} };
  }

  function step(item) {
    // What was killed with its box may have no end on record.
    const state = item.running ? "running" : item.ok === false ? "failed" : item.ok === null ? "cut" : "done";
    const number = item.step ? `${item.step}` : item.exec ? `#${item.exec}` : "·";
    const more = h("div.more", { hidden: true });
    const toggle = h("button.head", { "aria-expanded": "false", "data-row": true, onclick: () => open(more.hidden) },
      h("b.number", number), time(item), item.tool && h("span.tool", item.tool),
      h("code.title", item.tool && item.params ? line(item.params.head ?? "") : line(item.title)),
      h("span.end", ended(item)));
    const changed = item.changed > 0 && h("button.quiet.changed", { onclick: () => open(true) }, `${grouped(item.changed)} ${item.changed === 1 ? "path" : "paths"} changed`);
    const preview = h("div.preview", item.error && h("p.error", line(item.error)), item.preview && shortened(item, () => open(true)), changed);
    const element = h("li.step", { class: state, "data-step": item.step ?? item.exec }, toggle, preview, more);

    async function open(wanted) {
      more.hidden = !wanted;
      preview.hidden = wanted;
      toggle.setAttribute("aria-expanded", String(wanted));
      if (wanted && !more.childElementCount) await load(false);
    }

    async function load(all) {
      try {
        const known = await get(where(id, `/${item.n}${all ? "?all=1" : ""}`));
        fill(more, details(known));
      } catch (e) {
        fill(more, h("p.error", line(e.message)));
      }
    }

    function details(known) {
      const facts = [known.cwd && `in ${known.cwd}`, known.user && `as ${known.user}`, known.background && "in the background", known.tty && "in a terminal",
        known.timeoutMs && `for at most ${duration(known.timeoutMs * 1000)}`, known.envNames?.length && `with ${known.envNames.join(", ")}`,
        known.cpuUs !== undefined && `cpu ${duration(known.cpuUs)}`, known.peakBytes && `peak ${size(known.peakBytes)}`, known.oomKills && `${known.oomKills} killed for memory`].filter(Boolean);
      return [
        !known.tool && (known.title.includes("\n") || known.title.length > 160) && h("pre.command", plain(known.title)),
        facts.length > 0 && h("p.faint", line(facts.join(" · "))),
        known.params && block("Parameters", pretty(known.params), "params", () => load(true)),
        known.error && h("p.error", line(known.error)),
        known.stdout && block("Output", known.stdout, "out", () => load(true)),
        known.stderr && block("Errors", known.stderr, "err", () => load(true)),
        known.results?.length > 0 && h("div.block.results", h("h3", "Results"), known.results.map(result)),
        known.files?.length > 0 && h("div.files", h("h3", `${grouped(item.changed)} ${item.changed === 1 ? "path" : "paths"} changed`), differences(known.files),
          item.changed > known.files.length && h("p.faint", `… ${grouped(item.changed - known.files.length)} more paths`)),
        item.looked && !item.changed && h("p.faint", "Nothing changed in files."),
        known.noState && h("p.faint", `Files not looked at: ${line(known.noState)}`),
        known.processes?.length > 0 && h("p.faint", "Left running: ", known.processes.map((one, at) => [at > 0 && ", ", h("code", named(one))])),
        h("div.row", item.snapshot && [
          h("button", { onclick: () => back(item) }, "Go back to here"),
          h("button", { onclick: () => branch(item) }, "New box from here")]),
      ];
    }
    return { element, open, isOpen: () => !more.hidden };
  }

  async function back(item) {
    await confirmed("Go back to this step?", "All that runs in the box is killed, and its files become what they were after this step.", "Go back", () => post(boxPath(id, "/restore"), { snapshotId: item.snapshot }));
  }

  async function branch(item) {
    const made = await act(() => post("/v1/sandboxes", { snapshotId: item.snapshot, entrypoint: ["tail", "-f", "/dev/null"], extensions: { "glasshouse.recording": "steps" } }));
    if (made?.id) location.hash = `#/box/${encodeURIComponent(made.id)}`;
  }

  return view;
}

function ended(item) {
  if (item.running) return "running";
  if (item.ok === null) return "has no end on record";
  return [item.end, item.wallUs !== undefined && item.wallUs !== null && duration(item.wallUs)].filter(Boolean).map(line).join(" · ");
}

function shortened({ preview, tty }, open) {
  const head = preview.head ?? "";
  const text = (tty ? spoken(head).trimStart() : head).replace(/\n+$/, "");
  const lines = text.split("\n");
  const cut = lines.length > PREVIEW_LINES || preview.hidden > 0 || preview.missing > 0;
  return [h("pre.out", output(lines.slice(0, PREVIEW_LINES).join("\n"))), cut && h("button.quiet", { onclick: open }, `… all of ${size(preview.bytes)}`)];
}

function pretty(params) {
  if (params.hidden || params.missing) return params;
  try {
    return { ...params, head: JSON.stringify(JSON.parse(params.head), null, 2) };
  } catch {
    return params;
  }
}

function block(title, payload, kind, all) {
  const gap = payload.missing > 0 && h("span.gap", `\n[${grouped(payload.missing)} bytes are not in the record]\n`);
  return h("div.block", h("h3", title, " ", h("small", size(payload.bytes), payload.redacted ? `, ${payload.redacted} secrets taken out` : "")),
    h("pre", { class: kind, tabindex: "0" }, output(payload.head), gap, output(payload.tail)),
    payload.hidden > 0 && h("p", h("button", { onclick: all }, `Show all of ${size(payload.bytes)}`), " ", h("small", `${size(payload.hidden)} are not shown`)));
}

// What code told: a value, something shown, or an error. Of its shapes, a picture and plain words are shown.
function result(one) {
  const { mime, data } = one.picture ?? {};
  const others = (one.shapes ?? []).filter((shape) => shape !== mime && !["text/plain", "text/markdown"].includes(shape));
  return h("div.result", mime && h("img", { src: `data:${mime};base64,${data}`, alt: one.text ? line(one.text) : "a picture" }),
    one.text && h("pre", { class: one.kind === "error" ? "err" : "out", tabindex: "0" }, output(one.traceback || one.text)),
    others.length > 0 && h("p.faint", `Also as ${line(others.join(", "))}`));
}

const OPEN_MAX = 6;

// Changed files, each with the lines that differ.
export function differences(files) {
  return h("ul.changes", files.map((file, at) => {
    const facts = file.facts && line(`${file.facts.kind} ${file.facts.mode} ${file.facts.uid}:${file.facts.gid}${file.facts.kind === "file" ? `, ${size(file.facts.bytes)}` : ""}`);
    const name = [h(`i.${file.change}`, { title: { A: "added", M: "changed", D: "removed" }[file.change] }, file.change), " ", named(file.path, "path"), " ", h("small", facts, file.words && ` ${line(file.words)}`)];
    if (!file.diff && !file.text) return h("li", h("span.plainpath", name));
    const content = file.diff ? difference(file.diff) : h("pre", plain(file.text));
    return h("li", h("details", { open: at < OPEN_MAX && (file.diff ?? "").length < 4000 }, h("summary", name), content));
  }));
}

export function difference(text) {
  const kinds = { "+": "plus", "-": "minus", "@": "at" };
  return h("pre.diff", text.replace(/\n$/, "").split("\n").map((one) => h("span", { class: kinds[one[0]] ?? "same" }, plain(one), "\n")));
}
