"""Ten thousand steps: a page of them at a time, and every one can be reached."""

from browser import expect, opened

with opened("/#/box/long0record") as page:
    expect(page.locator(".timeline .step")).to_have_count(49)
    expect(page.locator(".timeline > li").first).to_contain_text("box ended")
    expect(page.locator(".timeline .step").first).to_have_attribute("data-step", "10000")
    expect(page.locator(".pager")).to_contain_text("10001 entries")
    page.get_by_role("button", name="Last page").click()
    expect(page.locator('[data-step="1"]')).to_be_visible()
    page.keyboard.press("[")
    expect(page.locator('[data-step="2"]')).to_be_visible()
    page.get_by_label("Failed only").check()
    expect(page.locator(".timeline .step")).to_have_count(10)
    page.get_by_label("Failed only").uncheck()
    page.get_by_label("Filter commands").fill("number 4321")
    expect(page.locator(".timeline .step")).to_have_count(1)
    page.locator('[data-step="4321"] .head').click()
    expect(page.locator('[data-step="4321"] .more pre.out')).to_have_text("number 4321\n", use_inner_text=False)
    # A step in the middle, by its line in the record.
    page.goto(page.url.split("#")[0] + "#/box/long0record?seq=15000")
    expect(page.locator('.found[data-step="5000"]')).to_be_in_viewport()
    page.watched.fine(answers=2)
