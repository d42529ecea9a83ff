// Requests to the server that this page is from. No key is ever kept here: the browser has a cookie that scripts cannot read.

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// The server does not answer.
export class Gone extends Error {}

const watchers = new Set();

// Calls with "up", "gone" or "login" when that becomes so.
export function watch(call) {
  watchers.add(call);
}

function tell(what) {
  for (const call of watchers) call(what);
}

async function request(method, path, body) {
  const init = { method, headers: {}, credentials: "same-origin", cache: "no-store", redirect: "error" };
  if (body !== undefined) {
    init.headers["content-type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, init);
  } catch {
    tell("gone");
    throw new Gone("the server does not answer");
  }
  tell("up");
  const text = await response.text();
  let answer = null;
  try {
    answer = text ? JSON.parse(text) : null;
  } catch {
    if (response.ok) throw new Refused(response.status, "", "the answer is not what it has to be");
  }
  if (response.ok) return answer;
  if (response.status === 401 && path !== "/viewer/session") tell("login");
  throw new Refused(response.status, answer?.code ?? "", answer?.message ?? `the server answered ${response.status}`);
}

export const get = (path) => request("GET", path);
export const post = (path, body = {}) => request("POST", path, body);
export const del = (path) => request("DELETE", path);

export const boxPath = (id, rest = "") => `/v1/sandboxes/${encodeURIComponent(id)}${rest}`;

export function query(words) {
  const given = Object.entries(words).filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false);
  return given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, value === true ? "1" : String(value)]))}` : "";
}
