"""How it looks: nothing is wider than a phone, every text can be told from its ground, and all of it works without a mouse."""

import os
import subprocess

from browser import URL, box, browser, expect, must, opened, run

# The program takes longer names than the API.
subprocess.run([os.environ["GLASS"], "create", "--label", f"name={'n' * 300}", "--label", f"word={'w' * 300}"], check=True, capture_output=True, env={"GLASSHOUSE_HOME": os.environ["GLASSHOUSE_HOME"], "PATH": "/usr/bin:/bin"})
cli = must("GET", "/viewer/boxes")["boxes"][0]["id"]
id = box(metadata={"name": "looked-at", "team": "red"}, resourceLimits={"memory": "512Mi", "cpu": "1"})
run(id, "mkdir src; printf 'one\\n' > src/a; printf '\\033[31mred\\033[32mgreen\\033[33myellow\\033[34mblue\\033[35mmagenta\\033[36mcyan\\033[90mgrey\\033[0m\\n'")
run(id, "echo two > src/a; echo no >&2; exit 3")
run(id, f"echo {'x' * 300}; : {'y' * 300}")
must("POST", f"/v1/sandboxes/{id}/snapshots", {"name": "kept"})
long = "z" * 63
other = box(metadata={"name": long, "a-long-label-for-a-narrow-page": long})

# Every text that is seen, against what is behind it.
FAINT = """() => {
    const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = (element) => { for (let at = element; at; at = at.parentElement) { const c = numbers(getComputedStyle(at).backgroundColor); if ((c[3] ?? 1) === 1) return c; } return [255, 255, 255]; };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [];
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const element = node.parentElement;
        if (!node.textContent.trim() || !element.checkVisibility() || element.closest(':disabled, noscript, script, .skip, option')) continue;
        const [a, b] = [light(numbers(getComputedStyle(element).color)), light(behind(element))];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < 4.5) found.push(`${element.tagName}.${element.className}: ${node.textContent.trim().slice(0, 30)} ${contrast.toFixed(2)}`);
    }
    return found;
}"""
VIEWS = [
    ("#/", f'[data-box="{other}"] .line'),
    (f"#/box/{id}", ".timeline .step"),
    (f"#/box/{id}/files", ".changes"),
    (f"#/box/{id}/snapshots", ".snapshot"),
    (f"#/box/{id}/about", ".table"),
    (f"#/box/{other}", ".empty"),
    (f"#/box/{cli}/about", ".table"),
    ("#/traces", ".trace"),
    ("#/traces?q=red", ".hit"),
    (f"#/replay/{id}", "form"),
    ("#/nowhere", ".empty"),
]

with browser() as chromium:
    for scheme in ("light", "dark"):
        for width in (390, 1280):
            with opened("/", width, 844, scheme, chromium) as page:
                for address, sign in VIEWS:
                    page.goto(f"{URL}/{address}")
                    expect(page.locator(sign).first).to_be_attached()
                    if address == f"#/box/{id}":
                        for step in ("1", "2"):
                            page.locator(f'[data-step="{step}"] .head').click()
                            expect(page.locator(f'[data-step="{step}"] .more .changes')).to_be_visible()
                    if address == "#/":
                        # A long name is cut, and is there for whoever points at it.
                        name = page.locator(f'[data-box="{cli}"] .name')
                        assert name.bounding_box()["height"] < 40, name.bounding_box()
                        assert name.get_attribute("title") == "n" * 300
                    if address == f"#/box/{cli}/about":
                        expect(page.locator(".table dt", has_text="Entrypoint")).to_have_count(0)
                    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    assert wide <= 0, (scheme, width, address, wide)
                    faint = page.evaluate(FAINT)
                    assert not faint, (scheme, width, address, faint)
                # Pages beside the viewer.
                for address, sign in ((f"/v1/sandboxes/{id}/trace?format=html", "main > ol > li"), ("/docs", "details")):
                    page.goto(URL + address)
                    expect(page.locator(sign).first).to_be_attached()
                    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    assert wide <= 0, (scheme, width, address, wide)
                assert "`" not in page.locator("body").text_content(), "code is code"
                page.watched.fine()

    with opened("/", chromium=chromium) as page:
        # Colours: as the system, then as somebody wants, also after a reload.
        ground = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(ground) == "rgb(255, 255, 255)"
        page.keyboard.press("d")
        page.keyboard.press("d")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        dark = page.evaluate(ground)
        assert dark != "rgb(255, 255, 255)"
        page.reload()
        expect(page.locator(f'[data-box="{id}"]')).to_be_visible()
        assert page.evaluate(ground) == dark

        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)

        # To the older box, into it, through its parts, and back.
        page.keyboard.press("j")
        page.keyboard.press("j")
        focused = page.locator(":focus")
        expect(focused).to_have_text(id)
        outline = focused.evaluate("(element) => getComputedStyle(element).outlineStyle")
        assert outline == "solid", outline
        page.keyboard.press("Enter")
        expect(page.locator(".timeline .step")).to_have_count(3)
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        expect(page.locator('[data-step="3"] .more')).to_be_visible()
        page.keyboard.press("3")
        expect(page.locator(".snapshot")).to_be_visible()
        page.keyboard.press("p")
        expect(page.locator(".facts")).to_contain_text("paused")
        page.keyboard.press("p")
        expect(page.locator(".facts")).to_contain_text("running")
        page.keyboard.press("g")
        page.keyboard.press("t")
        expect(page.locator(".trace")).to_have_count(3)
        page.keyboard.press("/")
        expect(page.get_by_label("Search traces")).to_be_focused()
        page.keyboard.type("red?")
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        expect(page.get_by_role("heading", name="Boxes")).to_be_visible()
        page.keyboard.press("n")
        expect(page.get_by_role("dialog", name="New box")).to_be_visible()
        # The question for its ports, on its way when the box is paused, finds it so.
        page.watched.fine(crossed=f"{id}/ports")
