// Snapshots as a tree: what stands on what, and where this box stands.

import { fill, h, line, named, when } from "./dom.js";
import { boxPath, del, get, post } from "./api.js";
import { act, confirmed } from "./dialogs.js";

export function snapshots(body, id) {
  let before = null;
  fill(body, h("p.faint", "Looking …"));

  async function poll(current) {
    const tree = await get("/viewer/snapshots");
    const same = JSON.stringify(tree);
    if (!current() || same === before) return;
    before = same;
    show(tree);
  }

  function show(tree) {
    const own = tree.boxes.find((box) => box.id === id);
    const byId = new Map(tree.snapshots.map((snapshot) => [snapshot.id, snapshot]));
    const root = (node) => {
      let at = node;
      while (at.parent && byId.has(at.parent)) at = byId.get(at.parent);
      return at;
    };
    // The family of this box: all that stands on the same ground as it, or as what was taken of it.
    const roots = new Set();
    const ground = own && root(own);
    if (ground && ground !== own) roots.add(ground.id);
    for (const snapshot of tree.snapshots) if (snapshot.from === id) roots.add(root(snapshot).id);
    const children = (parent) => tree.snapshots.filter((snapshot) => snapshot.parent === parent).sort((a, b) => a.createdMs - b.createdMs);
    const boxes = (parent) => tree.boxes.filter((box) => box.parent === parent);
    if (!roots.size) {
      fill(body, h("div.empty", h("h2", "No snapshots yet"), h("p", "A snapshot keeps the files of a box. Go back to it, or make other boxes from it."),
        own?.state === "running" && h("p", h("button.primary", { onclick: () => take() }, "Snapshot"))));
      return;
    }
    const node = (snapshot) => h("li", card(snapshot), branch(snapshot.id));
    const branch = (parent) => {
      const [leaves, nodes] = [boxes(parent), children(parent)];
      return (leaves.length > 0 || nodes.length > 0) && h("ul.tree", leaves.map(leaf), nodes.map(node));
    };
    const leaf = (box) => h("li", h("div.leaf", { class: box.id === id ? "here" : null, "data-leaf": box.id }, h("span.dot", { "data-state": box.state }),
      box.id === id ? [h("b", named(box.id, "mono")), " this box is here"] : h("a", { href: `#/box/${encodeURIComponent(box.id)}`, "data-row": true }, named(box.id, "mono")), box.name && [" ", named(box.name)]));
    const card = (snapshot) => h("div.snapshot", { "data-snapshot": snapshot.id },
      h("div", h("b", snapshot.name ? named(snapshot.name) : named(snapshot.id, "mono")), " ", h("small", snapshot.name && [named(snapshot.id, "mono"), " · "], when(snapshot.createdMs), " · of ", named(snapshot.from, "mono"))),
      h("div.row",
        own?.state === "running" && h("button", { "data-row": true, onclick: () => restore(snapshot) }, "Restore"),
        h("button", { onclick: () => fork(snapshot) }, "Fork"),
        h("button.danger", { onclick: () => confirmed("Remove this snapshot?", "Boxes that were made from it live on.", "Remove", () => del(`/v1/snapshots/${encodeURIComponent(snapshot.id)}`)) }, "Remove")));
    const grounds = tree.snapshots.filter((snapshot) => roots.has(snapshot.id));
    const loose = own && !own.parent;
    fill(body, h("div.toolbar", h("span.faint", `On the image ${line(own?.image ?? grounds[0].image)}`), h("span.grow"), own?.state === "running" && h("button", { onclick: () => take() }, "Snapshot")),
      h("ul.tree.roots", loose && leaf(own), grounds.map(node)));
  }

  async function take() {
    await act(() => post(boxPath(id, "/snapshots")), "Kept");
  }

  async function restore(snapshot) {
    const done = await confirmed("Restore this box?", "All that runs in it is killed, and its files become those of the snapshot.", "Restore", () => post(boxPath(id, "/restore"), { snapshotId: snapshot.id }));
    if (done) before = null;
  }

  async function fork(snapshot) {
    const made = await act(() => post("/v1/sandboxes", { snapshotId: snapshot.id, entrypoint: ["tail", "-f", "/dev/null"], extensions: { "glasshouse.recording": "steps" } }));
    if (made?.id) location.hash = `#/box/${encodeURIComponent(made.id)}`;
  }

  return { poll, changed: () => (before = null) };
}
