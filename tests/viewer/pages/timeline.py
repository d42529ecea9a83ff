"""A run, step by step: as it happens, with what it wrote and what it changed."""

from browser import URL, box, expect, must, opened, run

id = box()
with opened(f"/#/box/{id}") as page:
    expect(page.get_by_role("heading", name="Nothing has happened yet")).to_be_visible()

    run(id, "mkdir src; printf 'one\\ntwo\\n' > src/a.txt; echo written")
    first = page.locator('[data-step="1"]')
    expect(first).to_be_visible()
    expect(first.locator(".preview pre")).to_have_text("written")
    expect(first.locator(".end")).to_contain_text("exit code 0")
    expect(first.locator(".changed")).to_have_text("2 paths changed")

    # From the page itself.
    page.get_by_label("Run a command").fill("sed -i s/two/three/ src/a.txt; echo oh >&2; exit 4")
    page.get_by_role("button", name="Run").click()
    second = page.locator('[data-step="2"]')
    expect(second.locator(".end")).to_contain_text("exit code 4")
    assert "failed" in second.get_attribute("class")
    second.locator(".head").click()
    expect(second.locator(".more .err")).to_have_text("oh\n", use_inner_text=False)
    expect(second.locator(".changes .path")).to_have_text("/root/src/a.txt")
    expect(second.locator(".diff .minus")).to_have_text("-two\n", use_inner_text=False)
    expect(second.locator(".diff .plus")).to_have_text("+three\n", use_inner_text=False)

    # What is open stays open while more comes.
    must("POST", f"/v1/sandboxes/{id}/tools/file_write", {"path": "b.txt", "content": "four\n"})
    third = page.locator('[data-step="3"]')
    expect(third.locator(".tool")).to_have_text("file_write")
    expect(second.locator(".diff")).to_be_visible()
    third.locator(".head").click()
    expect(third.locator(".params")).to_contain_text('"content": "four\\n"')

    # A removed file shows what it held.
    run(id, "rm src/a.txt")
    fourth = page.locator('[data-step="4"]')
    fourth.locator(".head").click()
    expect(fourth.locator(".changes .D")).to_be_visible()
    expect(fourth.locator(".diff .minus")).to_have_text(["-one\n", "-three\n"], use_inner_text=False)

    # Much output is cut, until somebody wants all of it.
    run(id, "head -c 200000 /dev/zero | tr '\\0' x | fold -w 100")
    fifth = page.locator('[data-step="5"]')
    fifth.locator(".head").click()
    out = fifth.locator("pre.out").last
    expect(fifth.get_by_role("button", name="Show all")).to_be_visible()
    shown = len(out.text_content())
    assert shown == 64 * 1024, shown
    fifth.get_by_role("button", name="Show all").click()
    expect(fifth.get_by_role("button", name="Show all")).to_have_count(0)
    assert len(fifth.locator("pre.out").last.text_content()) >= 200_000

    # What code shows is seen: a picture of two by three points, and a value; what only says that it is one is not.
    must("POST", f"/v1/sandboxes/{id}/contexts", {"id": "plots"})
    code = """
import struct, zlib
part = lambda kind, data: struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
rows = b''.join(b'\\0' + bytes([200, 30, 30]) * 2 for _ in range(3))
png = b'\\x89PNG\\r\\n\\x1a\\n' + part(b'IHDR', struct.pack('>IIBBBBB', 2, 3, 8, 2, 0, 0, 0)) + part(b'IDAT', zlib.compress(rows)) + part(b'IEND', b'')
display({'image/png': png, 'text/plain': 'a plot'}, raw=True)
display({'image/png': 'x" onerror="window.hit=1'}, raw=True)
6 * 7
"""
    must("POST", f"/v1/sandboxes/{id}/contexts/plots/run", {"code": code})
    sixth = page.locator('[data-step="6"]')
    sixth.locator(".head").click()
    picture = sixth.locator(".result img")
    expect(picture).to_have_count(1)
    expect(picture).to_have_js_property("naturalHeight", 3)
    expect(sixth.locator(".result pre")).to_have_text(["a plot", "42"])
    assert page.evaluate("window.hit") is None

    page.get_by_label("Failed only").check()
    expect(page.locator(".timeline .step")).to_have_count(1)
    page.get_by_label("Failed only").uncheck()
    page.get_by_label("Filter commands").fill("FOLD")
    expect(page.locator(".timeline .step")).to_have_count(1)
    expect(page.locator('[data-step="5"]')).to_be_visible()
    page.get_by_label("Filter commands").fill("")
    expect(page.locator(".timeline .step")).to_have_count(6)
    assert page.locator(".timeline .step").first.get_attribute("data-step") == "6"
    page.get_by_label("Order").select_option("oldest")
    expect(page.locator(".timeline .step").first).to_have_attribute("data-step", "1")

    page.get_by_role("button", name="Verify").click()
    expect(page.locator(".toast")).to_contain_text("The record is what was written")

    # All steps together.
    page.get_by_role("link", name="Files").click()
    expect(page.locator(".changes .path", has_text="/root/b.txt")).to_be_visible()
    expect(page.locator(".diff .plus")).to_have_text("+four\n", use_inner_text=False)

    # A search leads to the place.
    page.goto(URL + "/#/traces?q=three")
    hit = page.locator(".hit", has_text="sed -i").first
    expect(hit.locator("mark").first).to_have_text("three")
    hit.click()
    expect(page.locator('.found[data-step="2"] .more')).to_be_visible()

    # When the box is gone, its record is still there.
    must("DELETE", f"/v1/sandboxes/{id}")
    expect(page.locator("p.note").first).to_contain_text("This box is gone")
    expect(page.locator(".timeline .step")).to_have_count(6)
    page.watched.fine(answers=2)
