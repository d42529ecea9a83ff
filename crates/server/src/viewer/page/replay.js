// A record once more, in another box, and where it went another way: both sides beside each other.

import { count, duration, fill, h, line, named, plain } from "./dom.js";
import { boxPath, get, post, query } from "./api.js";
import { field, runningBoxes } from "./dialogs.js";

// What images of boxes are called that were made of a snapshot.
const SNAPSHOT = "snapshot:";

export function replay(main, id) {
  document.title = `Replay of ${line(id)} · Glasshouse`;
  const target = h("select", { name: "target" }, h("option", { value: "" }, "a new box on the same image"));
  const strictness = h("select", { name: "strictness" }, [["normal", "normal: noise is overlooked"], ["strict", "strict: byte by byte"], ["output-only", "outputs only"]].map(([value, text]) => h("option", { value }, text)));
  const keep = h("input", { type: "checkbox", name: "keep" });
  const button = h("button.primary", { type: "submit" }, "Replay");
  const result = h("section", { "aria-live": "polite" });
  const form = h("form.card.replay", h("div.pair", field("In", target), field("Compare", strictness)), h("label.check", keep, "Go on after a step that went another way"), h("div.row", button));
  fill(main, h("p.crumbs", h("a", { href: "#/" }, "Boxes"), " / ", h("a", { href: `#/box/${encodeURIComponent(id)}` }, named(id, "mono")), " / "), h("h1", "Replay"), h("p.faint", "Does the steps on record again, and compares what they write, how they end, and which files they change."), form, result);
  runningBoxes().then((boxes) => {
    for (const box of boxes) target.append(h("option", { value: box.id }, line(`${box.id}${box.labels.name ? ` ${box.labels.name}` : ""}${box.id === id ? " (itself, as it is now)" : ""}`)));
  }).catch(() => {});

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    const begun = performance.now();
    fill(result, h("div.empty", h("p.busy", "Doing it again …")));
    try {
      const box = target.value || (await fresh());
      const told = await post(boxPath(box, "/replay"), { of: id, strictness: strictness.value, keepGoing: keep.checked });
      await show(told, box, performance.now() - begun);
    } catch (e) {
      fill(result, h("div.empty", h("h2", "It could not be done again"), h("p.error", line(e.message))));
    }
    button.disabled = false;
  });

  async function fresh() {
    const { created } = await get(`/viewer/traces/${encodeURIComponent(id)}?size=1`);
    const image = created?.image ?? "host";
    const ground = image.startsWith(SNAPSHOT) ? { snapshotId: image.slice(SNAPSHOT.length) } : { image: { uri: image } };
    const made = await post("/v1/sandboxes", { ...ground, entrypoint: ["tail", "-f", "/dev/null"], metadata: { "replay-of": id }, timeout: 3600, extensions: { "glasshouse.recording": "steps" } });
    return made.id;
  }

  async function show(told, box, ms) {
    const words = told.same ? `All ${count(told.done, "step")} went the same way` : `Step ${told.firstDivergence} of ${told.steps} went another way`;
    const verdict = h(told.same ? "div.verdict.good" : "div.verdict.bad", h("h2", words),
      h("p", `${told.done} of ${count(told.steps, "step")} done in ${duration(Math.round(ms * 1000))}, in `, h("a", { href: `#/box/${encodeURIComponent(box)}` }, named(box, "mono"))));
    const notes = told.notes.length > 0 && h("ul.notes", told.notes.map((note) => h("li", line(note))));
    const ignored = told.ignored.length > 0 && h("p.faint", "Overlooked: ", told.ignored.map((one) => `${one.rule} (${one.count})`).join(", "));
    const parts = [];
    for (const divergence of told.divergences) parts.push(await diverged(divergence));
    fill(result, verdict, notes, ignored, parts);
  }

  async function diverged(divergence) {
    // By its line: what a reset or a restore undid has numbers on record, and is no step of a replay.
    const seq = divergence.seq;
    const known = seq && (await get(`/viewer/traces/${encodeURIComponent(id)}${query({ at: seq, size: 1 })}`).catch(() => null));
    const item = known?.found !== null && known?.found !== undefined ? known.items[0] : null;
    const place = seq && h("a.end", { href: `#/box/${encodeURIComponent(id)}?seq=${seq}` }, item?.step ? `step ${item.step} on record` : "on record");
    return h("article.step.failed.diverged", { "data-diverged": divergence.step }, h("div.head", h("b.number", String(divergence.step)), item?.tool && h("span.tool", item.tool), h("code.title", item ? line(item.tool ? item.params?.head ?? "" : item.title) : ""), place),
      divergence.differences.map((one) => h("section", h("h3", line(one.what), one.path && [" ", named(one.path, "path")]), one.diff ? beside(one.diff) : pair(one.expected, one.actual))),
      divergence.untold > 0 && h("p.faint", `… ${count(divergence.untold, "further difference")}`));
  }

  return {};
}

function columns(rows) {
  return h("div.scroll", h("table.beside", h("thead", h("tr", h("th", "On record"), h("th", "This time"))), h("tbody", rows)));
}

function pair(expected, actual) {
  return columns(h("tr", h("td.minus", h("pre", plain(expected))), h("td.plus", h("pre", plain(actual)))));
}

// A unified difference as two columns: what was taken away beside what came for it.
export function beside(text) {
  const rows = [];
  let [old, fresh] = [[], []];
  const flush = () => {
    for (let at = 0; at < Math.max(old.length, fresh.length); at += 1) {
      const side = (lines, kind) => (at < lines.length ? h(`td.${kind}`, h("pre", plain(lines[at]))) : h("td.none"));
      rows.push(h("tr", side(old, "minus"), side(fresh, "plus")));
    }
    [old, fresh] = [[], []];
  };
  for (const one of text.replace(/\n$/, "").split("\n")) {
    if (one[0] === "-") old.push(one.slice(1));
    else if (one[0] === "+") fresh.push(one.slice(1));
    else {
      flush();
      if (one[0] === "@") rows.push(h("tr.at", h("td", { colspan: 2 }, plain(one))));
      else rows.push(h("tr", h("td", h("pre", plain(one.slice(1)))), h("td", h("pre", plain(one.slice(1))))));
    }
  }
  flush();
  return columns(rows);
}
