"""A record once more: one that goes the same way, and one that does not."""

from browser import URL, box, expect, must, opened, run

same = box()
run(same, "echo stays > a; cat a")
other = box()
run(other, "printf 'begin\\n'; cat /proc/sys/kernel/random/uuid | tr -d 0-9a-f-; cat /root/mark 2>/dev/null || echo none; echo end")
run(other, "echo later")
with opened(f"/#/box/{same}") as page:
    page.get_by_role("link", name="Replay").click()
    expect(page.get_by_role("heading", name="Replay")).to_be_visible()
    page.locator("form").get_by_role("button", name="Replay").click()
    expect(page.locator(".verdict")).to_contain_text("All 1 step went the same way")

    # In a box that is not as the first one was.
    ground = box(metadata={"name": "ground"})
    run(ground, "echo '<b>some</b>' > /root/mark")
    page.goto(f"{URL}/#/replay/{other}")
    page.locator("select[name=target]").select_option(ground)
    page.locator("select[name=strictness]").select_option("output-only")
    page.locator("form").get_by_role("button", name="Replay").click()
    expect(page.locator(".verdict")).to_contain_text("Step 1 of 2 went another way")
    step = page.locator('[data-diverged="1"]')
    expect(step.locator(".title")).to_contain_text("cat /root/mark")
    # Both sides, beside each other.
    pair = step.locator("tr", has=page.locator("td.minus")).first
    expect(pair.locator("td.minus")).to_have_text("none")
    expect(pair.locator("td.plus")).to_have_text("<b>some</b>")
    left, right = (pair.locator(f"td.{side}").bounding_box() for side in ("minus", "plus"))
    assert left["y"] == right["y"] and left["x"] + left["width"] <= right["x"] + 1, (left, right)
    expect(step.locator("th")).to_have_text(["On record", "This time"])
    assert must("GET", f"/v1/sandboxes/{ground}")["status"]["state"] == "Running"

    # A reset undid the first steps: those of a replay are counted anew, and what is shown is the command that went another way.
    again = box()
    run(again, "echo FIRST")
    run(again, "echo SECOND")
    must("POST", f"/v1/sandboxes/{again}/reset")
    run(again, "date +%s%N > /root/t; echo THIRD")
    page.goto(f"{URL}/#/replay/{again}")
    page.locator("form").get_by_role("button", name="Replay").click()
    expect(page.locator(".verdict")).to_contain_text("Step 1 of 1 went another way")
    step = page.locator('[data-diverged="1"]')
    expect(step.locator(".title")).to_contain_text("echo THIRD")
    step.get_by_role("link", name="step 3 on record").click()
    expect(page.locator('.found[data-step="3"]')).to_contain_text("THIRD")

    # A box of a snapshot is done again on that snapshot.
    made = box(image=None, snapshotId=must("POST", f"/v1/sandboxes/{ground}/snapshots")["id"])
    assert "<b>some</b>" in run(made, "cat /root/mark")["stdout"]
    page.goto(f"{URL}/#/replay/{made}")
    page.locator("form").get_by_role("button", name="Replay").click()
    expect(page.locator(".verdict")).to_contain_text("All 1 step went the same way")

    page.goto(f"{URL}/#/replay/{other}")
    page.locator("select[name=target]").select_option(ground)
    page.locator("select[name=strictness]").select_option("output-only")
    page.get_by_label("Go on after").check()
    page.locator("form").get_by_role("button", name="Replay").click()
    expect(page.locator(".verdict")).to_contain_text("2 of 2 steps done")
    page.watched.fine()
