"""Everything that a box and its owner can say, said to hurt whoever looks at it."""

import os
import subprocess

from browser import URL, box, expect, must, opened, run

SCRIPT = "<script>window.pwned=1</script>"
IMAGE = '<img src=x onerror="window.pwned=2">'
BOTH = f"{SCRIPT}{IMAGE}<svg/onload=window.pwned=3>\"'><iframe srcdoc='{SCRIPT}'>"
TURNED = "abc\u202egnp.exe\u2066\u200b"


def glass(*args):
    made = subprocess.run([os.environ["GLASS"], *args], capture_output=True, text=True, check=False, env={"GLASSHOUSE_HOME": os.environ["GLASSHOUSE_HOME"], "PATH": "/usr/bin:/bin"})
    assert made.returncode == 0, made
    return made.stdout.strip()


# Labels that the API would not take: the program does.
glass("create", "--name", "hostile", "--record", "steps", "--label", f"evil={BOTH}", "--label", f"turned={TURNED}")
id = next(one["id"] for one in must("GET", "/viewer/boxes")["boxes"])
run(id, f"cat <<'END'\n{BOTH}\n{TURNED}\n\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2J\x1b[999;999H\x9b31m javascript:alert(1)\nEND")
run(id, f"cat >&2 <<'END'\n{BOTH}\nEND\nexit 1")
run(id, "touch -- '<script>window.pwned=4<' '<img src=x onerror=window.pwned=5>' \"$(printf 'a\\nb\\342\\200\\256c')\"; echo '<img src=x onerror=window.pwned=6>' > page.html")
must("POST", f"/v1/sandboxes/{id}/tools/file_write", {"path": "x<script>window.pwned=7<", "content": BOTH})
must("POST", f"/v1/sandboxes/{id}/tools/file_read", {"path": f"none/{IMAGE}"})
must("POST", f"/v1/sandboxes/{id}/snapshots")

with opened() as page:
    def look():
        """That no element came out of a text, and no letter is hidden."""
        found = page.evaluate("[document.scripts.length, document.images.length, document.querySelectorAll('iframe, object, embed, main script, main img, [onerror], [onload]').length]")
        assert found == [1, 1, 0], found
        text = page.evaluate("document.body.innerText")
        assert not any(letter in text for letter in "\u202e\u2066\u200b\x1b\x9b\x07"), text

    expect(page.locator(f'[data-box="{id}"]')).to_contain_text(SCRIPT)
    expect(page.locator(f'[data-box="{id}"]')).to_contain_text("abc\\u{202e}gnp.exe\\u{2066}\\u{200b}")
    look()

    page.goto(f"{URL}/#/box/{id}")
    expect(page.locator(".timeline .step")).to_have_count(5)
    for step in range(1, 6):
        page.locator(f'[data-step="{step}"] .head').click()
        expect(page.locator(f'[data-step="{step}"] .more > *').first).to_be_visible()
    out = page.locator('[data-step="1"] .more pre.out')
    expect(out).to_contain_text(BOTH)
    expect(out).to_contain_text("\\x1b]0;title\\x07\\x1b[2J")
    expect(out.locator(".f1")).to_have_text("red")
    expect(page.locator('[data-step="3"] .changes')).to_contain_text("<script>window.pwned=4<")
    expect(page.locator('[data-step="4"] .diff')).to_contain_text(SCRIPT)
    look()

    for part in ("files", "snapshots", "about"):
        page.goto(f"{URL}/#/box/{id}/{part}")
        expect(page.locator(".part")).to_contain_text({"files": "onerror=window.pwned=5", "snapshots": "this box is here", "about": SCRIPT}[part])
        look()

    page.goto(f"{URL}/#/traces?q=pwned")
    expect(page.locator(".hit").first).to_be_visible()
    look()
    page.get_by_label("Search traces").fill(IMAGE)
    expect(page.locator(".hit mark").first).to_have_text(IMAGE)
    look()

    # Addresses are words of others, too.
    for address in ("#/box/%3Cimg%20src=x%20onerror=window.pwned=8%3E", "#/replay/%3Cscript%3Ewindow.pwned=9%3C%2Fscript%3E", "#/%3Cb%3E", "#/box/%zz"):
        page.goto(f"{URL}/{address}")
        expect(page.locator("main > *").first).to_be_visible()
        look()

    # What a box serves cannot be loaded by the page as a script of its own address.
    must("POST", f"/v1/sandboxes/{id}/proxy/44772/command", {"command": "cd /tmp; echo 'window.pwned=10' > evil.js; exec python3 -m http.server 8000", "background": True})
    page.goto(f"{URL}/#/box/{id}")
    expect(page.locator(".ports a")).to_have_text("8000")
    page.watched.fine(answers=8)
    page.evaluate(f"""() => new Promise((done) => {{
        const script = document.createElement('script');
        script.onerror = script.onload = done;
        try {{ script.src = '/v1/sandboxes/{id}/proxy/8000/evil.js'; }} catch {{ script.setAttribute('data-refused', ''); done(); return; }}
        document.body.append(script);
    }})""")
    assert page.evaluate("window.pwned") is None
