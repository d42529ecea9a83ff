// Questions, and short words about what was done.

import { h, line } from "./dom.js";
import { get, post } from "./api.js";

// Opens a dialog with a form; `submit` may throw, and what it says is shown. Resolves to what it returns, or to undefined.
export function ask(title, fields, { button, danger = false, submit }) {
  return new Promise((resolve) => {
    const error = h("p.error", { role: "alert", hidden: true });
    const go = h(danger ? "button.danger" : "button.primary", { type: "submit" }, button);
    const form = h("form", { method: "dialog" }, h("h2", title), fields, error,
      h("div.row.end", h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), go));
    const dialog = h("dialog", { "aria-label": title }, form);
    let answer;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      go.disabled = true;
      error.hidden = true;
      try {
        answer = await submit(new FormData(form));
        dialog.close();
      } catch (e) {
        error.textContent = line(e.message);
        error.hidden = false;
      }
      go.disabled = false;
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export function toast(text, bad = false) {
  const toasts = document.getElementById("toasts");
  const one = h(bad ? "div.toast.bad" : "div.toast", h("span", line(text)),
    h("button.quiet", { "aria-label": "Dismiss", onclick: () => one.remove() }, "×"));
  toasts.append(one);
  while (toasts.childElementCount > 4) toasts.firstElementChild.remove();
  if (!bad) setTimeout(() => one.remove(), 6000);
}

// Does something and says how it went.
export async function act(work, done) {
  try {
    const answer = await work();
    if (done) toast(typeof done === "function" ? done(answer) : done);
    return answer ?? true;
  } catch (e) {
    toast(e.message, true);
    return undefined;
  }
}

export function field(label, input, hint) {
  return h("label.field", h("span", label), input, hint && h("small", hint));
}

export function newBox(preset = {}) {
  const options = (name, all) => h("select", { name }, all.map(([value, text]) => h("option", { value }, text)));
  return ask("New box", [
    field("Image", h("input", { name: "image", value: preset.image ?? "host", required: true, spellcheck: "false", autocapitalize: "off" }), "host: this machine's own programs, read-only. Other names are pulled."),
    field("Name", h("input", { name: "name", maxlength: 63, pattern: "[A-Za-z0-9]([A-Za-z0-9._\\-]*[A-Za-z0-9])?", spellcheck: "false", title: "letters, digits, - _ and ." }), "Kept as metadata"),
    h("div.pair",
      field("Memory", options("memory", [["", "no limit of its own"], ["256Mi", "256 MiB"], ["512Mi", "512 MiB"], ["1Gi", "1 GiB"], ["2Gi", "2 GiB"], ["4Gi", "4 GiB"]])),
      field("CPUs", options("cpu", [["", "no limit"], ["500m", "½"], ["1", "1"], ["2", "2"], ["4", "4"]]))),
    h("div.pair",
      field("Lives for", options("timeout", [["", "until it is destroyed"], ["600", "10 minutes"], ["3600", "1 hour"], ["28800", "8 hours"], ["86400", "1 day"]])),
      field("Record", options("record", [["steps", "steps with their files"], ["snapshots", "and a state to go back to"], ["commands", "commands only"]]))),
  ], {
    button: "Create",
    submit: async (form) => {
      const word = (name) => String(form.get(name) ?? "").trim();
      const wanted = { image: { uri: word("image") }, entrypoint: ["tail", "-f", "/dev/null"], extensions: { "glasshouse.recording": word("record") } };
      const limits = Object.fromEntries(["memory", "cpu"].map((name) => [name, word(name)]).filter(([, value]) => value));
      if (Object.keys(limits).length) wanted.resourceLimits = limits;
      if (word("timeout")) wanted.timeout = Number(word("timeout"));
      if (word("name")) wanted.metadata = { name: word("name") };
      return post("/v1/sandboxes", wanted);
    },
  });
}

export function confirmed(title, text, button, submit) {
  return ask(title, [h("p", text)], { button, danger: true, submit: async () => (await submit()) ?? true });
}

export async function runningBoxes() {
  const { boxes } = await get("/viewer/boxes");
  return boxes.filter((box) => box.state === "running");
}
