"""The list of boxes: it is empty, fills, changes and empties without a reload."""

import urllib.request

from browser import URL, box, expect, must, opened, run

with urllib.request.urlopen(URL + "/") as answer:
    headers = {name.lower(): value for name, value in answer.getheaders()}
    page_text = answer.read().decode()
policy = headers["content-security-policy"]
for part in ["default-src 'none'", "script-src 'nonce-", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'"]:
    assert part in policy, policy
assert "unsafe" not in policy
assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
assert headers["referrer-policy"] == "no-referrer" and headers["cache-control"] == "no-store"
nonce = policy.split("'nonce-")[1].split("'")[0]
assert f'nonce="{nonce}"' in page_text and len(nonce) == 32
with urllib.request.urlopen(URL + "/") as answer:
    assert nonce not in answer.read().decode(), "a nonce is for one answer"

# Who looks at one box does not keep others from being looked at.
pair = [box(), box()]
for id in pair:
    assert must("GET", f"/viewer/boxes/{id}")["box"]["usage"], "it was looked at, for it was asked for"
for id in pair:
    must("DELETE", f"/v1/sandboxes/{id}")

with opened() as page:
    expect(page.get_by_role("heading", name="No boxes yet")).to_be_visible()

    first = box(metadata={"name": "first", "team": "red"}, resourceLimits={"memory": "512Mi"})
    row = page.locator(f'[data-box="{first}"]')
    expect(row).to_be_visible()
    expect(row).to_contain_text("first")
    expect(row).to_contain_text("team=red")
    expect(row.locator(".state")).to_have_text("running")
    expect(row.locator(".badge")).to_have_text(must("GET", f"/viewer/boxes/{first}")["box"]["level"])
    # What it uses comes with the second look.
    expect(row.locator(".memory .line")).to_be_attached()
    expect(row.locator(".memory")).to_contain_text("of 512 MiB")
    assert "MiB" in row.locator(".memory b").inner_text()

    # What it is called can change, also while somebody looks.
    must("PATCH", f"/v1/sandboxes/{first}/metadata", {"name": "renamed", "team": None, "shift": "late"})
    expect(row.locator(".name")).to_have_text("renamed")
    expect(row.locator(".labels")).to_have_text("shift=late")

    row.get_by_role("button", name="Pause").click()
    expect(row.locator(".state")).to_have_text("paused")
    assert must("GET", f"/v1/sandboxes/{first}")["status"]["state"] == "Paused"
    row.get_by_role("button", name="Resume").click()
    expect(row.locator(".state")).to_have_text("running")

    # A box that works is seen to: its processor time grows.
    must("POST", f"/v1/sandboxes/{first}/proxy/44772/command", {"command": "while :; do :; done", "background": True})
    expect(row.locator(".cpu b")).not_to_have_text("0.0 %")

    page.get_by_role("button", name="New box").first.click()
    dialog = page.get_by_role("dialog")
    dialog.locator("[name=name]").fill("second")
    dialog.locator("[name=memory]").select_option("256Mi")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("link", name="Timeline")).to_be_visible()
    second = page.url.split("/box/")[1]
    expect(page.locator(".facts")).to_contain_text("second")
    assert must("GET", f"/v1/sandboxes/{second}")["metadata"] == {"name": "second"}
    assert must("GET", f"/viewer/boxes/{second}")["box"]["recording"] == "steps"

    # What cannot be done is said, and nothing is lost.
    page.goto(URL + "/#/")
    page.get_by_role("button", name="New box").click()
    dialog.locator("[name=image]").fill("no/such:image:at all")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.locator(".error")).to_be_visible()
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)

    page.get_by_label("Filter boxes").fill("second")
    expect(row).to_be_hidden()
    expect(page.locator(f'[data-box="{second}"]')).to_be_visible()
    page.get_by_label("Filter boxes").fill("neither")
    expect(page.locator(".empty")).to_contain_text("No box fits")
    page.get_by_label("Filter boxes").fill("")

    # What listens in a box is named, and can be reached.
    must("POST", f"/v1/sandboxes/{second}/proxy/44772/command", {"command": "exec python3 -m http.server 8000", "background": True})
    page.goto(f"{URL}/#/box/{second}")
    link = page.locator(".ports a")
    expect(link).to_have_text("8000")
    assert link.get_attribute("href") == f"/v1/sandboxes/{second}/proxy/8000/"

    page.goto(f"{URL}/#/box/{second}/about")
    expect(page.locator(".table")).to_contain_text("when it is destroyed")
    expect(page.locator("table")).to_contain_text("256 MiB")

    page.goto(URL + "/#/")
    row.get_by_role("button", name="Destroy").click()
    page.get_by_role("dialog").get_by_role("button", name="Destroy").click()
    expect(row).to_have_count(0)
    must("DELETE", f"/v1/sandboxes/{second}")
    expect(page.get_by_role("heading", name="No boxes yet")).to_be_visible()

    # The record of a box that is gone stays.
    page.goto(URL + "/#/traces")
    expect(page.locator(".trace")).to_have_count(4)
    page.watched.fine(answers=1)
