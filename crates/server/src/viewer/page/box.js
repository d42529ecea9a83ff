// One box, living or gone: what it is, what it uses, and its parts.

import { age, fill, h, line, named, say, size, when } from "./dom.js";
import { boxPath, del, get, post } from "./api.js";
import { act, ask, confirmed, field } from "./dialogs.js";
import { percent, plot, used } from "./plot.js";
import { level } from "./boxes.js";
import { differences, timeline } from "./timeline.js";
import { snapshots } from "./snapshots.js";
import { terminal } from "./terminal.js";

const PARTS = [["timeline", "Timeline"], ["files", "Files"], ["snapshots", "Snapshots"], ["terminal", "Terminal"], ["about", "About"]];

// How often ports are looked at, in questions for the rest.
const PORTS_EVERY = 4;

export function box(main, id, part, given) {
  document.title = `${line(id)} · Glasshouse`;
  let now = null;
  let gone = false;
  let asked = 0;
  const facts = h("p.facts");
  const acts = h("div.acts");
  const meters = h("section.meters", { "aria-label": "What it uses" });
  const note = h("p.note", { hidden: true });
  const title = h("h1", h("span.dot"), named(id, "mono"));
  const address = (name) => `#/box/${encodeURIComponent(id)}/${name}`;
  const tabs = h("nav.tabs", { "aria-label": "Parts of the box" }, PARTS.map(([name, text], at) =>
    h("a", { href: address(name), "aria-current": name === part ? "page" : null, title: `${text} (${at + 1})` }, text)));
  const body = h("section.part");
  fill(main, h("div.boxhead", h("div", h("p.crumbs", h("a", { href: "#/" }, "Boxes"), " / "), title, facts), acts), note, meters, tabs, body);

  // On a narrow page there is more than is seen.
  tabs.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });

  const running = () => now?.state === "running";
  const inside = {
    timeline: () => timeline(body, id, { running, given }),
    files: () => files(body, id),
    snapshots: () => snapshots(body, id),
    terminal: () => terminal(body, id, { running }),
    about: () => about(body),
  }[part];
  const shown = inside ? inside() : (fill(body, h("div.empty", h("p", "There is no such part of a box."))), {});

  async function toggle() {
    if (!now) return;
    await act(() => post(boxPath(id, now.state === "running" ? "/pause" : "/resume")));
  }

  function buttons() {
    const alive = now && now.state !== "dead";
    const run = running();
    const signature = `${now?.state} ${gone}`;
    if (acts.dataset.of === signature) return;
    acts.dataset.of = signature;
    fill(acts,
      alive && h("button", { onclick: toggle, title: "p" }, run ? "Pause" : "Resume"),
      run && h("button", { onclick: snapshot }, "Snapshot"),
      run && h("button", { onclick: () => forked(id) }, "Fork"),
      run && h("button", { onclick: () => confirmed("Reset this box?", "All that runs in it is killed, and its files become what it began with.", "Reset", () => post(boxPath(id, "/reset"))) }, "Reset"),
      h("a.button", { href: `#/replay/${encodeURIComponent(id)}` }, "Replay"),
      now && h("button.danger", { onclick: destroy }, "Destroy"));
  }

  async function snapshot() {
    await ask("Keep the state of this box", [field("Name", h("input", { name: "name", maxlength: 63, pattern: "[a-z0-9]([a-z0-9._\\-]*[a-z0-9])?", spellcheck: "false" }), "May be left out")], {
      button: "Snapshot",
      submit: (form) => post(boxPath(id, "/snapshots"), form.get("name") ? { name: form.get("name") } : {}),
    });
    shown.changed?.();
  }

  async function destroy() {
    const done = await confirmed("Destroy this box?", "Nothing is left of it but its record and its snapshots.", "Destroy", () => del(boxPath(id)));
    if (done) await view.poll(() => true);
  }

  function tell(answer) {
    const { box, now: at } = answer;
    title.firstChild.dataset.state = box.state;
    const name = box.labels.name ?? box.name;
    fill(facts, name && [h("b", named(name)), " · "], h("span", { "data-state": box.state }, box.state), " · ", level(box), " · ", named(box.image), " · ", box.runtime, ` · ${age(at - box.createdMs)} old`);
    const { cpu, memory, processes } = used(box.usage);
    const amount = (wanted) => box.limits.find((one) => one.name === wanted)?.amount;
    const [most, milli] = [amount("memory"), amount("cpu")];
    const load = box.state === "running" ? cpu.at(-1) : undefined;
    const held = memory.at(-1);
    if (!meters.childElementCount) {
      fill(meters, ["CPU", "Memory", "Processes", "Ports"].map((word) => h("div.meter", { "data-meter": word.toLowerCase() }, h("small", word), h("b"), h("div"))));
    }
    const meter = (at, text, more) => {
      const [, value, below] = meters.children[at].children;
      say(value, text);
      fill(below, more);
    };
    meter(0, percent(load), [plot(cpu, { most: milli ? milli / 10 : 100, label: "Processor, lately", wide: true }), milli && h("small", `of ${milli / 10} %`)]);
    meter(1, held === undefined ? "–" : size(held), [plot(memory, { most: Math.max(...memory) * 1.3, label: "Memory, lately", wide: true }), most && h("small", `of ${size(most)}`)]);
    meter(2, processes === null ? "–" : String(processes), plot(box.usage.map((point) => point[3]), { most: (processes ?? 1) * 1.6, label: "Processes, lately", wide: true }));
  }

  async function ports() {
    if (!running()) return;
    const answer = await get(boxPath(id, "/ports")).catch(() => ({ ports: [] }));
    const cell = meters.children[3];
    if (!cell) return;
    say(cell.children[1], String(answer.ports.length || "–"));
    fill(cell.children[2], h("span.ports", answer.ports.map((port) =>
      h("a", { href: boxPath(id, `/proxy/${port.port}/`), target: "_blank", rel: "noopener noreferrer", title: `bound to ${line(port.address)} in the box` }, String(port.port)))));
  }

  function about(body) {
    return {
      poll: async () => {
        if (!now) {
          if (gone) fill(body, h("div.empty", h("p", "The box is gone. Its record says what it was.")));
          return;
        }
        const known = await get(boxPath(id));
        const rows = [
          ["Id", named(id, "mono")], ["State", known.status.message ? `${known.status.state}: ${known.status.message}` : known.status.state],
          ["Image", named(now.image)], ["Runtime", now.runtime], ["Level", [level(now), now.missing.length ? ` without ${now.missing.join("; ")}` : ""]],
          ["Made", when(now.createdMs)], ["Ends", known.expiresAt ? when(Date.parse(known.expiresAt)) : "when it is destroyed"],
          ["Commands run", `as ${now.user} in ${now.cwd}`], ["Record", now.recording], ["Deterministic", now.deterministic ? "yes" : "no"],
          // Boxes of the program have none.
          ...(known.entrypoint.length ? [["Entrypoint", named(known.entrypoint.join(" "), "mono")]] : []),
          ...Object.entries(known.metadata ?? {}).map(([name, value]) => [["Label ", named(name)], named(value)]),
        ];
        const table = h("dl.table", rows.map(([name, value]) => [h("dt", name), h("dd", value)]));
        const limits = h("div.scroll", h("table", h("thead", h("tr", ["Limit", "Value", "By"].map((word) => h("th", word)))), h("tbody", now.limits.map((limit) => h("tr", h("td", limit.name), h("td", limit.value), h("td", limit.by))))));
        fill(body, h("div.card", table), h("h2", "Limits"), limits);
      },
    };
  }

  async function look(current) {
    try {
      const answer = await get(`/viewer/boxes/${encodeURIComponent(id)}`);
      if (!current()) return;
      now = answer.box;
      tell(answer);
      note.hidden = true;
    } catch (e) {
      if (e.status !== 404 || !current()) throw e;
      now = null;
      gone = true;
      title.firstChild.dataset.state = "gone";
      fill(facts, "gone");
      meters.replaceChildren();
      fill(note, "This box is gone. Its record stays.");
      note.hidden = false;
    }
  }

  const view = {
    close: () => shown.close?.(),
    keys: {
      p: toggle,
      ...Object.fromEntries(PARTS.map(([name], at) => [String(at + 1), () => (location.hash = address(name))])),
      ...(shown.keys ?? {}),
    },
    async poll(current) {
      // What is gone does not come back.
      if (!gone) await look(current);
      if (!current()) return;
      buttons();
      await shown.poll?.(current);
      if (current() && asked++ % PORTS_EVERY === 0) await ports();
    },
    failed(e) {
      fill(note, h("span.error", line(e.message)));
      note.hidden = false;
    },
  };
  return view;
}

export async function forked(id) {
  const made = await act(() => post(boxPath(id, "/fork"), { count: 1 }), "Forked");
  if (made?.items?.[0]) location.hash = `#/box/${encodeURIComponent(made.items[0].id)}`;
}

// What all steps together have changed.
function files(body, id) {
  fill(body, h("p.faint", "Comparing …"));
  const load = async () => {
    try {
      const diff = await get(boxPath(id, "/diff?content=true"));
      const list = diff.changes.map((change) => ({
        change: { added: "A", removed: "D", changed: "M" }[change.change],
        path: change.path,
        facts: change.to,
        diff: change.content?.diff,
        words: change.content?.binary ? "binary" : change.content?.tooLarge ? "too large to compare" : change.what?.join?.(", "),
      }));
      fill(body, h("div.toolbar", h("span", diff.changes.length ? `${diff.changes.length} paths differ from what the box began with` : "", diff.racy && " (something changed meanwhile)"), h("span.grow"), h("button", { onclick: load }, "Look again")),
        list.length ? differences(list) : h("div.empty", h("p", "Nothing is different from what the box began with.")));
    } catch (e) {
      fill(body, h("div.empty", h("p.error", line(e.message))));
    }
  };
  load();
  return {};
}
