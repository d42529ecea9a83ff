"""A server that does not answer: it is said, nothing is lost, and it goes on when it is back."""

from browser import box, expect, opened

first = box()
with opened() as page:
    expect(page.locator(f'[data-box="{first}"]')).to_be_visible()
    page.context.set_offline(True)
    expect(page.locator("#banner")).to_contain_text("does not answer")
    expect(page.locator(f'[data-box="{first}"]')).to_be_visible()
    second = box()
    page.context.set_offline(False)
    expect(page.locator(f'[data-box="{second}"]')).to_be_visible()
    expect(page.locator("#banner")).to_be_hidden()
    assert not page.watched.wrong, page.watched.wrong
