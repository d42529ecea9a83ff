// The log-in. The key goes to the server once; what stays is a cookie that this page cannot read.

import { h, line } from "./dom.js";
import { post } from "./api.js";

export function login(main, done) {
  document.title = "Log in · Glasshouse";
  const key = h("input", { name: "key", type: "password", autocomplete: "current-password", required: true, spellcheck: "false" });
  const error = h("p.error", { role: "alert", hidden: true });
  const button = h("button.primary", { type: "submit" }, "Log in");
  const form = h("form.card.login", h("h1", "Glasshouse"), h("p.faint", "This server wants an API key. ", h("code", "glass key add NAME"), " makes one."),
    h("label.field", h("span", "API key"), key), error, button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    error.hidden = true;
    try {
      await post("/viewer/session", { key: key.value });
      key.value = "";
      done();
    } catch (e) {
      error.textContent = line(e.message);
      error.hidden = false;
      key.select();
    }
    button.disabled = false;
  });
  main.replaceChildren(form);
  key.focus();
  return {};
}
