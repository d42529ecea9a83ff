// Shows /openapi.json to people. Everything is put in as text: nothing of it can become part of this page.

const routes = document.getElementById("routes");

function element(name, text, ...children) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  made.append(...children.filter(Boolean));
  return made;
}

// A text of the document: what stands between backticks is code.
function worded(name, text) {
  const pieces = text.split(/`([^`]+)`/).map((piece, at) => (at % 2 ? element("code", piece) : piece));
  return element(name, "", ...pieces);
}

function labelled(className, name, text) {
  const made = element(name, text);
  made.className = className;
  return made;
}

// A schema in the words that JSON would have.
function shape(schema, all, depth = 0) {
  if (!schema || depth > 6) return "…";
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return shape(all[name], all, depth + 1);
  }
  const either = schema.oneOf || schema.anyOf;
  if (either) return either.filter((one) => one.type !== "null").map((one) => shape(one, all, depth)).join(" | ");
  const types = [].concat(schema.type || "any").filter((type) => type !== "null");
  if (types.includes("array")) return `[${shape(schema.items, all, depth + 1)}]`;
  if (!schema.properties) return types.join(" | ");
  const needed = new Set(schema.required || []);
  const indent = "  ".repeat(depth + 1);
  const lines = Object.entries(schema.properties).map(([name, of]) => {
    const word = of.description ? `   // ${of.description.split("\n")[0].replaceAll("`", "")}` : "";
    return `${indent}${name}${needed.has(name) ? "" : "?"}: ${shape(of, all, depth + 1)}${word}`;
  });
  return `{\n${lines.join("\n")}\n${"  ".repeat(depth)}}`;
}

function table(head, rows) {
  const titles = element("tr", "", ...head.map((title) => element("th", title)));
  const lines = rows.map((row) => element("tr", "", ...row.map((cell) => worded("td", cell))));
  return rows.length ? element("table", "", titles, ...lines) : null;
}

function body(content, all) {
  const [kind, media] = Object.entries(content || {})[0] || [];
  if (!kind) return null;
  return element("div", "", element("p", kind), media.schema ? element("pre", shape(media.schema, all)) : null);
}

function route(method, path, operation, all) {
  const known = (operation.parameters || []).map((one) => [one.name, one.in, one.description || ""]);
  const answers = Object.entries(operation.responses || {}).map(([status, one]) => [status, one.description || ""]);
  const good = Object.entries(operation.responses || {}).find(([status]) => status.startsWith("2"));
  const title = element("summary", "", labelled("method", "code", method.toUpperCase()), element("code", path),
    worded("span", operation.summary || ""));
  const made = element("details", "", title, worded("p", operation.description || ""), table(["parameter", "in", ""], known),
    operation.requestBody ? element("h3", "Body") : null, body(operation.requestBody?.content, all),
    element("h3", "Answers"), table(["status", ""], answers), body(good?.[1]?.content, all));
  made.dataset.words = `${method} ${path} ${operation.summary || ""} ${operation.description || ""}`.toLowerCase();
  return made;
}

function show(document) {
  const groups = new Map();
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      if (!operation.responses) continue;
      const group = (operation.tags || ["other"])[0];
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(route(method, path, operation, document.components?.schemas || {}));
    }
  }
  window.document.getElementById("about").replaceChildren(worded("span", `${document.info.description} Version ${document.info.version}.`));
  routes.replaceChildren(...[...groups].map(([name, those]) => element("section", "", element("h2", name), ...those)));
}

document.getElementById("search").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const section of routes.querySelectorAll("section")) {
    let some = false;
    for (const one of section.querySelectorAll("details")) {
      one.hidden = !words.every((word) => one.dataset.words.includes(word));
      some ||= !one.hidden;
    }
    section.hidden = !some;
  }
});

try {
  const answer = await fetch("/openapi.json");
  if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
  show(await answer.json());
} catch (error) {
  routes.replaceChildren(labelled("failed", "p", `/openapi.json cannot be read: ${error.message}`));
}
