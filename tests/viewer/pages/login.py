"""With keys: a form, a cookie that no script sees, and an end to it."""

import os
import subprocess

from browser import URL, box, call, expect, must, opened

RED, ALL = os.environ["KEY_RED"], os.environ["KEY_ALL"]
red = box(headers=[("OPEN-SANDBOX-API-KEY", RED)], metadata={"name": "of-red"})
alls = box(headers=[("OPEN-SANDBOX-API-KEY", ALL)], metadata={"name": "of-all"})
assert call("GET", "/viewer/boxes")[0] == 401
assert call("GET", "/viewer/traces")[0] == 401
assert call("POST", "/viewer/session", {"key": RED}, [("Origin", "http://evil.example")])[0] == 403
assert call("POST", "/viewer/session", {"key": RED})[0] == 403, "who shows no origin shows the key itself"
assert call("POST", "/viewer/session", {"key": "x" * 5000}, [("Origin", URL)])[0] == 400

with opened() as page:
    expect(page.get_by_label("API key")).to_be_focused()
    page.get_by_label("API key").fill("not-the-right-one")
    page.get_by_role("button", name="Log in").click()
    expect(page.locator(".error")).to_contain_text("not the right one")
    page.get_by_label("API key").fill(RED)
    page.keyboard.press("Enter")
    expect(page.locator(f'[data-box="{red}"]')).to_be_visible()
    expect(page.locator(f'[data-box="{alls}"]')).to_have_count(0)
    assert call("GET", f"/viewer/boxes/{alls}", None, [("OPEN-SANDBOX-API-KEY", RED)])[0] == 404

    cookie = page.context.cookies()[0]
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and len(cookie["value"]) == 64, cookie
    kept = page.evaluate("JSON.stringify([document.cookie, { ...localStorage }, { ...sessionStorage }, location.href])")
    assert RED not in kept and cookie["value"] not in kept, kept

    # The cookie opens what the key opens, and only to our own page.
    shown = ("Cookie", f"glasshouse-session={cookie['value']}")
    assert call("GET", f"/viewer/traces/{red}", None, [shown])[0] == 200
    assert call("GET", f"/viewer/traces/{alls}", None, [shown])[0] == 404
    assert call("POST", f"/v1/sandboxes/{red}/pause", None, [shown])[0] == 403
    assert call("POST", f"/v1/sandboxes/{red}/pause", None, [shown, ("Origin", "http://evil.example")])[0] == 403
    assert call("POST", f"/v1/sandboxes/{red}/pause", None, [shown, ("Sec-Fetch-Site", "cross-site"), ("Origin", URL)])[0] == 403
    assert call("GET", "/v1/sandboxes", None, [shown, ("Sec-Fetch-Site", "cross-site")])[0] == 403
    assert call("GET", "/metrics", None, [shown])[0] == 403, "a tenant is a tenant"

    page.reload()
    row = page.locator(f'[data-box="{red}"]')
    row.get_by_role("button", name="Pause").click()
    expect(row.locator(".state")).to_have_text("paused")

    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    assert page.context.cookies() == []
    assert call("GET", "/viewer/boxes", None, [shown])[0] == 401, "the session is over on the server, too"

    page.get_by_label("API key").fill(ALL)
    page.keyboard.press("Enter")
    for id in (red, alls):
        expect(page.locator(f'[data-box="{id}"]')).to_be_visible()

    # A key that is revoked takes its sessions with it, without a reload.
    revoked = subprocess.run([os.environ["GLASS"], "key", "revoke", "all"], check=False, capture_output=True, env={"GLASSHOUSE_HOME": os.environ["GLASSHOUSE_HOME"], "PATH": "/usr/bin:/bin"})
    assert revoked.returncode == 0, revoked
    expect(page.get_by_label("API key")).to_be_visible()
    page.watched.fine(answers=4)
must("DELETE", f"/v1/sandboxes/{red}", None, [("OPEN-SANDBOX-API-KEY", RED)])
