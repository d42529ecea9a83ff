"""A browser, a server, and what is asked of both. Everything waits for what it expects; nothing sleeps."""

import json
import os
import urllib.error
import urllib.request
from contextlib import contextmanager

from playwright.sync_api import expect, sync_playwright

URL = os.environ["VIEWER_URL"]
# A machine with two busy processors is slow.
PATIENCE_MS = 60_000
# As on a machine without a network: nothing is asked of anybody else. Debian's Chromium cannot build its own box as root.
ARGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]

expect.set_options(timeout=PATIENCE_MS)


def call(method, path, body=None, headers=(), url=URL):
    """A request as any program makes it. Status and answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, method=method, data=data)
    request.add_header("content-type", "application/json")
    for name, value in headers:
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
            is_json = answer.headers.get_content_type() == "application/json"
            return answer.status, json.loads(text) if text and is_json else None
    except urllib.error.HTTPError as e:
        text = e.read()
        return e.code, json.loads(text) if text else None


def must(method, path, body=None, headers=()):
    status, answer = call(method, path, body, headers)
    assert status < 300, (method, path, status, answer)
    return answer


def box(headers=(), **more):
    """Makes a box whose steps are on record with their files. Its id."""
    wanted = {
        "image": {"uri": "host"},
        "entrypoint": ["tail", "-f", "/dev/null"],
        "extensions": {"glasshouse.recording": "steps"},
    }
    return must("POST", "/v1/sandboxes", {**wanted, **more}, headers)["id"]


def run(id, command):
    return must("POST", f"/v1/sandboxes/{id}/exec", {"command": command})


class Watched:
    """A page, and all that goes wrong in it without being seen."""

    def __init__(self, page):
        self.page = page
        self.wrong = []
        self.refused = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: self.heard(message))
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.add_init_script(
            "addEventListener('securitypolicyviolation', (e) => { (window.refusals ??= []).push(`${e.violatedDirective} ${e.blockedURI}`); });"
        )

    def heard(self, message):
        if message.type not in ("error", "warning"):
            return
        # The browser tells of every answer that is an error; whether one was due is the script's business.
        if message.text.startswith("Failed to load resource"):
            self.refused.append(f"{message.text} {message.location['url']}")
        else:
            self.wrong.append(f"console: {message.text}")

    def fine(self, answers=0, crossed=None):
        """That nothing went wrong, and at most so many answers were errors, beside those at addresses that end in `crossed`."""
        refusals = self.page.evaluate("window.refusals ?? []")
        assert not self.wrong and not refusals, (self.wrong, refusals)
        refused = [one for one in self.refused if crossed is None or not one.endswith(crossed)]
        assert len(refused) <= answers, refused
        assert self.page.evaluate("window.pwned") is None


@contextmanager
def browser(*more):
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=[*ARGS, *more])
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def opened(path="/", width=1280, height=800, scheme="light", chromium=None):
    """A page of the viewer."""
    if chromium is None:
        with browser() as one, opened(path, width, height, scheme, one) as page:
            yield page
        return
    context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    page.watched = Watched(page)
    page.goto(URL + path)
    yield page
    context.close()
