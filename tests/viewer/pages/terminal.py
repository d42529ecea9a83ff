"""A shell in a box, typed into and looked at."""

import re

from browser import URL, box, expect, must, opened

id = box()
with opened(f"/#/box/{id}/terminal") as page:
    screen = page.locator(".screen")
    status = page.locator(".toolbar [role=status]")

    def type(text):
        page.get_by_label("Terminal").focus()
        page.keyboard.type(text)
        page.keyboard.press("Enter")

    def row(text):
        return page.locator(".screen > div", has_text=text)

    expect(status).to_have_text("Connected")
    type("echo $((6*7))is")
    expect(row("42is")).to_be_visible()

    # It has the size that is seen, also when that becomes another.
    type("echo si''ze $(stty size)")
    expect(page.locator(".screen > div", has_text=re.compile(r"^size \d+ \d+"))).to_have_count(1)
    page.set_viewport_size({"width": 700, "height": 600})
    type("until [ $(stty size | cut -d' ' -f2) -lt 120 ]; do :; done; echo no''w $(stty size)")
    now = page.locator(".screen > div", has_text=re.compile(r"^now \d+ \d+"))
    expect(now).to_have_count(1)
    wide = int(now.inner_text().split()[2])
    assert 20 <= wide < 120, wide

    # A program that draws where it wants, on a screen of its own.
    type("printf '\\033[?1049h\\033[2J\\033[3;5Hhere\\033[31;1m red\\033[0m\\033[4;1Hgone\\033[1K\\rleft'; read x; printf '\\033[?1049l'")
    expect(page.locator(".screen > div", has_text="here")).to_have_text("    here red", use_inner_text=False)
    assert page.locator(".screen span.bold", has_text="red").evaluate("(e) => getComputedStyle(e).color") == "rgb(255, 161, 152)"
    expect(page.locator(".screen > div", has_text="left")).to_have_text("left", use_inner_text=False)
    page.keyboard.press("Enter")
    expect(row("42is")).to_be_visible()

    # What programs write is letters, and what they ask is answered with numbers.
    before = page.title()
    type("clear; printf '<img src=x onerror=window.pwned=1>\\033]0;pwned\\007\\033]52;c;cHduZWQ=\\007\\342\\200\\256abc\\n'; echo after")
    expect(row("<img src=x onerror=window.pwned=1>abc")).to_be_visible()
    assert page.title() == before
    type("printf '\\033[6n'; IFS= read -rs -d R where; echo \"at ${where#*[}\"")
    expect(row("at ").last).to_have_text(re.compile(r"^at \d+;\d+\s*$"))

    # A mark stands on the letter before it, also on a wide one; what is invisible stands nowhere.
    type("printf 'cafe\\314\\201 \\346\\227\\245\\314\\202 x\\357\\270\\217\\342\\200\\213y\\n'")
    expect(row("cafe\u0301 \u65e5\u0302 xy")).to_be_visible()

    # Keys that end things.
    type("sleep 1000; echo slept")
    expect(row("sleep 1000").last).to_be_visible()
    page.keyboard.press("Control+c")
    type("echo end''ed")
    expect(row("ended")).to_be_visible()
    assert page.locator(".screen > div").filter(has_text="slept").count() == 1, "only as it was typed"

    # Letters are for the shell, and not for the page.
    page.keyboard.type("?n")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Control+u")

    type("exit 3")
    expect(status).to_have_text("The shell has ended, exit code 3.")
    page.get_by_role("button", name="New shell").click()
    expect(status).to_have_text("Connected")

    # The shell ends with the page, and is on record.
    page.goto(f"{URL}/#/box/{id}")
    expect(page.locator(".timeline .step.running")).to_have_count(0)
    expect(page.locator(".timeline .step")).to_have_count(2)
    # What is no text is not in what is shown at once, and is there for whoever opens it.
    shell = page.locator(".timeline .step").last
    expect(shell.locator(".preview pre")).to_contain_text("42is")
    assert "\\x1b" not in shell.locator(".preview pre").inner_text()
    shell.locator(".head").click()
    expect(shell.locator(".more pre.out")).to_contain_text("\\x1b[6n")

    must("POST", f"/v1/sandboxes/{id}/pause")
    page.goto(f"{URL}/#/box/{id}/terminal")
    expect(status).to_have_text("The box does not run.")
    page.watched.fine()
