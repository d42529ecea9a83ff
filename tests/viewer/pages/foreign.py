"""Pages of other sites, other ports of this machine, and other names for it: none of them reaches a box."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from browser import URL, Watched, box, browser, call, expect, must, run

id = box()
host = URL.removeprefix("http://")
port = host.split(":")[1]

# By hand: what a browser would say of where it comes from.
for headers, status in [
    ([("Origin", "http://evil.example")], 403),
    ([("Origin", "null")], 403),
    ([("Origin", f"http://127.0.0.1:{int(port) - 1}")], 403),
    ([("Sec-Fetch-Site", "cross-site")], 403),
    ([("Sec-Fetch-Site", "same-site")], 403),
    ([("Host", "evil.example")], 403),
    ([("Host", f"evil.example:{port}")], 403),
    ([("Origin", URL), ("Sec-Fetch-Site", "same-origin")], 200),
    # Programs name no origin.
    ([], 200),
]:
    answer = call("POST", f"/v1/sandboxes/{id}/exec", {"command": "true"}, headers)
    assert answer[0] == status, (headers, answer)
for headers, status in [([("Sec-Fetch-Site", "cross-site")], 403), ([("Host", "evil.example")], 403), ([("Origin", "http://evil.example")], 403), ([], 200)]:
    assert call("GET", "/viewer/boxes", None, headers)[0] == status, headers


class Elsewhere(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title><p>elsewhere")

    def log_message(self, *args):
        pass


elsewhere = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
threading.Thread(target=elsewhere.serve_forever, daemon=True).start()

TRY = """async ([url, id]) => {
    const tell = async (what) => { try { const r = await what(); return r.type === 'opaque' ? 'opaque' : String(r.status); } catch { return 'refused'; } };
    const body = JSON.stringify({ command: 'touch /root/was-here' });
    const socket = (path) => new Promise((done) => { const ws = new WebSocket(url.replace('http', 'ws') + path); ws.onopen = () => done('open'); ws.onerror = () => done('refused'); });
    return [
        await tell(() => fetch(`${url}/v1/sandboxes/${id}/exec`, { method: 'POST', headers: { 'content-type': 'application/json' }, body })),
        await tell(() => fetch(`${url}/v1/sandboxes/${id}/exec`, { method: 'POST', mode: 'no-cors', body })),
        await tell(() => fetch(`${url}/viewer/boxes`)),
        await tell(() => fetch(`${url}/v1/sandboxes/${id}`, { method: 'DELETE' })),
        await socket(`/v1/sandboxes/${id}/proxy/8000/`),
        await socket(`/v1/sandboxes/${id}/stream`),
    ];
}"""

with browser("--host-resolver-rules=MAP evil.example 127.0.0.1") as chromium:
    page = chromium.new_page()
    page.set_default_timeout(60_000)
    for origin in (f"http://127.0.0.1:{elsewhere.server_port}", f"http://localhost:{elsewhere.server_port}", f"http://evil.example:{elsewhere.server_port}"):
        page.goto(origin)
        answers = page.evaluate(TRY, [URL, id])
        # What could be sent without asking was sent, and refused: the last word is what is in the box.
        assert answers == ["refused", "opaque", "refused", "refused", "refused", "refused"], (origin, answers)
    assert run(id, "ls /root")["stdout"] == "", "nothing was done"

    # A form of another site.
    page.goto(f"http://evil.example:{elsewhere.server_port}")
    page.evaluate("""([url, id]) => { const form = document.createElement('form'); form.method = 'post'; form.enctype = 'text/plain'; form.action = `${url}/v1/sandboxes/${id}/pause`; document.body.append(form); form.submit(); }""", [URL, id])
    expect(page.locator("body")).to_contain_text("FOREIGN_REQUEST")
    assert must("GET", f"/v1/sandboxes/{id}")["status"]["state"] == "Running"

    # A name that somebody made to point here.
    answer = page.goto(f"http://evil.example:{port}/")
    assert answer.status == 403, answer.status

    # Our page in a frame of somebody else's.
    page.goto(f"http://127.0.0.1:{elsewhere.server_port}")
    framed = page.evaluate("""(url) => new Promise((done) => { const frame = document.createElement('iframe'); frame.onload = () => { try { done(frame.contentWindow.location.href); } catch { done('not ours'); } }; frame.src = url; document.body.append(frame); })""", URL)
    assert framed == "not ours"
    assert all(frame.locator("#main").count() == 0 for frame in page.frames), "the page is not shown in a frame"

    # A page that a box serves comes from our address, and is of no origin.
    must("POST", f"/v1/sandboxes/{id}/proxy/44772/command", {"command": "cd /tmp; echo '<!doctype html><p>inside<script src=own.js></script>' > index.html; echo 'window.own = 1' > own.js; exec python3 -m http.server 8000", "background": True})
    while call("GET", f"/v1/sandboxes/{id}/proxy/8000/")[0] == 502:
        pass
    page.goto(f"{URL}/v1/sandboxes/{id}/proxy/8000/")
    expect(page.locator("p")).to_have_text("inside")
    assert page.evaluate("origin") == "null"
    # Nothing tells what it asks for from what another site does: not even its own script comes.
    assert page.evaluate("typeof own") == "undefined"
    answers = page.evaluate(TRY, [URL, id])
    assert answers[0] == "refused" and answers[2:4] == ["refused", "refused"] and answers[5] == "refused", answers
    assert run(id, "ls /root")["stdout"] == "", "nothing was done"

    # An image and a link of another site's lead to no port. A link leads to our page.
    page.goto(f"http://evil.example:{elsewhere.server_port}")
    shown = page.evaluate("""(url) => new Promise((done) => { const script = document.createElement('script'); script.onload = () => done('loaded'); script.onerror = () => done('refused'); script.src = url; document.body.append(script); })""", f"{URL}/v1/sandboxes/{id}/proxy/8000/own.js")
    assert shown == "refused", shown
    page.evaluate("(url) => { location.href = url; }", f"{URL}/v1/sandboxes/{id}/proxy/8000/")
    expect(page.locator("body")).to_contain_text("FOREIGN_REQUEST")
    page.goto(f"http://evil.example:{elsewhere.server_port}")
    page.evaluate("(url) => { location.href = url; }", URL)
    expect(page.locator(f'[data-box="{id}"]')).to_be_visible()

    # And our own page is still served.
    page = chromium.new_page()
    watched = Watched(page)
    page.goto(URL)
    expect(page.locator(f'[data-box="{id}"]')).to_be_visible()
    watched.fine()
