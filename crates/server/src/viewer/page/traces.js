// All records, of boxes that live and of those that are gone, and what is found in them.

import { count, fill, h, line, named, short, size, when } from "./dom.js";
import { get, query } from "./api.js";

export function traces(main, given) {
  document.title = "Traces · Glasshouse";
  let page = Number(given.get("page")) || 0;
  let before = null;
  const list = h("div.traces");
  const about = h("p.faint");
  const search = h("input", { type: "search", value: given.get("q") ?? "", placeholder: "Search commands, outputs, names, labels", "aria-label": "Search traces", oninput: () => later() });
  fill(main, h("div.title", h("h1", "Traces"), search), about, list);

  let waiting;
  function later() {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      before = null;
      page = 0;
      history.replaceState(null, "", `#/traces${query({ q: search.value.trim() })}`);
      view.poll(() => list.isConnected).catch(view.failed);
    }, 250);
  }

  const link = (id, seq) => `#/box/${encodeURIComponent(id)}${seq ? `?seq=${seq}` : ""}`;

  function head(trace) {
    return [h("span.dot", { "data-state": trace.alive ? "running" : "gone" }), named(trace.id, "mono"), (trace.labels?.name ?? trace.name) && [" ", h("b", short(trace.labels?.name ?? trace.name))]];
  }

  function listed(answer) {
    fill(about, answer.total ? `${count(answer.total, "record")}; they stay when their boxes are gone` : "");
    if (!answer.traces.length) return fill(list, h("div.empty", h("h2", "No traces yet"), h("p", "Every box writes down what happens in it. What is on record appears here.")));
    const turn = (to) => () => {
      page = to;
      before = null;
      view.poll(() => list.isConnected).catch(view.failed);
    };
    return fill(list, answer.traces.map((trace) => h("a.trace", { href: link(trace.id), "data-row": true },
      h("span.who", head(trace)), h("span.faint", named(trace.image ?? "")), h("span.faint", when(trace.startMs)), h("span.faint", trace.alive ? "lives" : "gone"), h("span.faint.right", size(trace.bytes)))),
    answer.pages > 1 && h("div.toolbar", h("button", { disabled: page === 0, onclick: turn(page - 1) }, "Newer"), h("span", `${page + 1} / ${answer.pages}`), h("button", { disabled: page + 1 >= answer.pages, onclick: turn(page + 1) }, "Older")));
  }

  const WHAT = { box_created: "box", exec_started: "command", exec_ended: "output", step: "step", file: "file", stdin: "input", state: "state", box_ended: "end" };

  function found(answer) {
    const places = count(answer.hits.length, "place");
    // What was not looked through is said whatever was found.
    fill(about, answer.complete ? `${places} in ${count(answer.total, "record")}` : `${places}; looked through no more than ${answer.looked} of ${count(answer.total, "record")}, the newest first`,
      answer.cut > 0 && `; of ${count(answer.cut, "record")} only the first ${answer.most}`,
      answer.unread > 0 && `; ${count(answer.unread, "output")} cannot be read any more`);
    if (!answer.hits.length) return fill(list, h("div.empty", h("p", "Nothing is found for ", h("b", named(search.value.trim())), ".")));
    return fill(list, answer.hits.map((hit) => h("a.hit", { href: link(hit.trace.id, hit.what === "box_created" ? null : hit.seq), "data-row": true },
      h("span.who", head(hit.trace)), h("span.faint", WHAT[hit.what] ?? line(hit.what), " · ", when(hit.timeMs)),
      h("code.snippet", line(hit.before), h("mark", line(hit.found)), line(hit.after)))));
  }

  const view = {
    async poll(current) {
      const word = search.value.trim();
      // What was found stays until something else is looked for.
      if (word && before === word) return;
      if (word) {
        const answer = await get(`/viewer/search${query({ q: word })}`);
        if (!current() || search.value.trim() !== word) return;
        before = word;
        found(answer);
      } else {
        const answer = await get(`/viewer/traces${query({ page })}`);
        const same = JSON.stringify(answer);
        if (!current() || search.value.trim() || same === before) return;
        before = same;
        listed(answer);
      }
    },
    failed(e) {
      fill(list, h("div.empty", h("p.error", line(e.message))));
    },
  };
  return view;
}
