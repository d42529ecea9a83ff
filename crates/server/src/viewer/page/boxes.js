// All boxes, as they are now.

import { age, fill, h, line, named, plain, say, short, size } from "./dom.js";
import { boxPath, del, get, post } from "./api.js";
import { act, confirmed, newBox } from "./dialogs.js";
import { percent, plot, used } from "./plot.js";

export function boxes(main) {
  document.title = "Boxes · Glasshouse";
  const rows = new Map();
  const list = h("div.boxes", { role: "list", "aria-label": "Boxes" });
  const empty = h("div.empty", { hidden: true });
  const total = h("span.count");
  const search = h("input", { type: "search", placeholder: "Filter by id, name, image, label", "aria-label": "Filter boxes", oninput: () => sift() });
  const make = async () => {
    const made = await newBox();
    if (made) location.hash = `#/box/${made.id}`;
  };
  const head = h("div.boxes-head", { "aria-hidden": "true" }, ["Box", "Image", "Level", "CPU", "Memory", "Age", ""].map((word) => h("span", word)));
  fill(main, h("div.title", h("h1", "Boxes ", total), search, h("button.primary", { onclick: make }, "New box")), head, list, empty);
  let all = null;

  function sift() {
    if (!all) return;
    const word = search.value.trim().toLowerCase();
    let seen = 0;
    for (const box of all) {
      const text = [box.id, box.name, box.image, box.state, ...Object.entries(box.labels).flat()].join(" ").toLowerCase();
      const hit = text.includes(word);
      rows.get(box.id).element.hidden = !hit;
      seen += hit ? 1 : 0;
    }
    head.hidden = seen === 0;
    empty.hidden = seen > 0;
    if (!all.length) {
      fill(empty, h("h2", "No boxes yet"), h("p", "A box runs code that nobody has read, and shows what it does."),
        h("p", h("button.primary", { onclick: make }, "New box")),
        h("p.faint", "Or from a terminal: ", h("code", "glass create --record steps"), "; or with any SDK of OpenSandbox. Boxes appear here by themselves."));
    } else if (!seen) {
      fill(empty, h("p", "No box fits ", h("b", named(word))));
    }
  }

  return {
    keys: { n: make },
    async poll(current) {
      const answer = await get("/viewer/boxes");
      if (!current()) return;
      all = answer.boxes;
      say(total, all.length ? String(all.length) : "");
      const ids = new Set(all.map((box) => box.id));
      for (const [id, row] of rows) {
        if (!ids.has(id)) {
          row.element.remove();
          rows.delete(id);
        }
      }
      let before = null;
      for (const box of all) {
        if (!rows.has(box.id)) rows.set(box.id, row(box));
        const one = rows.get(box.id);
        one.update(box, answer.now);
        const place = before ? before.nextElementSibling : list.firstElementChild;
        if (place !== one.element) list.insertBefore(one.element, place);
        before = one.element;
      }
      sift();
    },
    failed(e) {
      head.hidden = true;
      empty.hidden = false;
      fill(empty, h("h2", "The boxes cannot be listed"), h("p.error", line(e.message)));
    },
  };
}

function row(box) {
  const dot = h("span.dot");
  const state = h("small.state");
  const cpu = h("span.cell.cpu");
  const memory = h("span.cell.memory");
  const old = h("span.cell.age");
  const labels = h("span.labels");
  const pause = h("button", { onclick: (event) => toggle(event) }, "Pause");
  let now = box;

  async function toggle(event) {
    event.preventDefault();
    const resume = now.state !== "running";
    pause.disabled = true;
    await act(() => post(boxPath(box.id, resume ? "/resume" : "/pause")));
    pause.disabled = false;
  }

  const destroy = h("button.danger", {
    "aria-label": `Destroy ${box.id}`,
    onclick: () => confirmed("Destroy this box?", ["Nothing is left of ", h("code", named(box.name ?? box.id)), " but its record and its snapshots."], "Destroy", () => del(boxPath(box.id))),
  }, "Destroy");
  const link = h("a.id", { href: `#/box/${encodeURIComponent(box.id)}`, "data-row": true }, named(box.id));
  const first = h("span.first", dot, link);
  let called = null;
  const element = h("article.boxrow", { role: "listitem", "data-box": box.id },
    h("span.cell.who", first, h("span.second", state, labels)),
    h("span.cell.image", named(box.image)),
    h("span.cell.level", level(box)), cpu, memory, old,
    h("span.cell.acts", h("a.button", { href: `#/box/${encodeURIComponent(box.id)}/terminal`, "aria-label": `Terminal in ${box.id}` }, "Terminal"), pause, destroy));

  // What a box is called can be changed while it lives.
  function call(box) {
    const same = JSON.stringify([box.name, box.labels]);
    if (same === called) return;
    called = same;
    const title = box.labels.name ?? box.name;
    fill(first, dot, link, title && short(title, "name"));
    fill(labels, Object.entries(box.labels).filter(([name]) => name !== "name").map(([name, value]) =>
      h("span.chip", { title: line(`${name}=${value}`) }, named(name), "=", named(value))));
  }

  return {
    element,
    update(box, at) {
      now = box;
      call(box);
      if (dot.dataset.state !== box.state) {
        dot.dataset.state = box.state;
        say(state, box.state);
        say(pause, box.state === "running" ? "Pause" : "Resume");
        pause.disabled = box.state === "dead";
      }
      say(old, age(at - box.createdMs));
      const { cpu: loads, memory: sizes } = used(box.usage);
      const limit = box.limits.find((one) => one.name === "memory")?.amount;
      const load = box.state === "running" ? loads.at(-1) : undefined;
      fill(cpu, plot(loads, { most: 100, label: `Processor ${percent(load)}` }), h("b", percent(load)));
      const held = sizes.at(-1);
      fill(memory, plot(sizes, { most: Math.max(...sizes) * 1.3, label: `Memory ${held === undefined ? "not known" : size(held)}` }),
        h("b", held === undefined ? "–" : size(held)), limit && h("small", `of ${size(limit)}`));
    },
  };
}

export function level(box) {
  const why = box.missing.length ? `Not there: ${box.missing.map(plain).join("; ")}` : "Every wall stands";
  return h(`span.badge.level-${box.level}`, { title: why }, box.level);
}
