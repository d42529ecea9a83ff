"""Snapshots: a tree, back to one of them, and a box from one of them."""

from browser import URL, box, expect, must, opened, run

id = box()
with opened(f"/#/box/{id}/snapshots") as page:
    expect(page.get_by_role("heading", name="No snapshots yet")).to_be_visible()
    run(id, "echo one > f")
    page.locator(".part").get_by_role("button", name="Snapshot").click()
    expect(page.locator(".snapshot")).to_have_count(1)
    run(id, "echo two > f")
    page.locator(".acts").get_by_role("button", name="Snapshot").click()
    page.get_by_role("dialog").get_by_label("Name").fill("second")
    page.get_by_role("dialog").get_by_role("button", name="Snapshot").click()
    expect(page.locator(".snapshot")).to_have_count(2)
    one, two = sorted(must("GET", f"/v1/snapshots?sandboxId={id}")["items"], key=lambda snapshot: snapshot["createdAt"])
    first, second = (page.locator(f'[data-snapshot="{snapshot["id"]}"]') for snapshot in (one, two))
    expect(second).to_contain_text("second")
    # The second stands on the first, and the box on the second.
    inner = page.locator(f'li:has(> [data-snapshot="{one["id"]}"]) > ul [data-snapshot="{two["id"]}"]')
    expect(inner).to_be_visible()
    leaf = f'[data-leaf="{id}"]'
    expect(page.locator(f'li:has(> [data-snapshot="{two["id"]}"]) > ul {leaf}')).to_contain_text("this box is here")

    first.get_by_role("button", name="Restore").click()
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    expect(page.locator(f'li:has(> [data-snapshot="{one["id"]}"]) > ul > li > {leaf}')).to_be_visible()
    assert run(id, "cat f")["stdout"] == "one\n"

    second.get_by_role("button", name="Fork").click()
    expect(page.get_by_label("Run a command")).to_be_visible()
    fork = page.url.split("/box/")[1]
    assert fork != id
    assert run(fork, "cat f")["stdout"] == "two\n"
    expect(page.locator(".timeline .step")).to_have_count(1)

    # A fork of the box as it is now.
    page.goto(f"{URL}/#/box/{id}")
    page.locator(".acts").get_by_role("button", name="Fork").click()
    expect(page).not_to_have_url(f"{URL}/#/box/{id}")
    other = page.url.split("/box/")[1]
    assert other not in (id, fork) and run(other, "cat f")["stdout"] == "one\n"

    page.goto(f"{URL}/#/box/{id}/snapshots")
    expect(page.locator(f'[data-leaf="{fork}"]')).to_be_visible()
    second.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(second).to_have_count(0)
    page.watched.fine()
