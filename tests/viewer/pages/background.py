"""A command in the background: it runs until it ends, and is one entry however it ends."""

from browser import box, expect, must, opened, run

for recording in ("steps", "commands"):
    id = box(extensions={"glasshouse.recording": recording})
    command = "until [ -e /root/go ]; do sleep 0.1; done; echo said; exit 3"
    must("POST", f"/v1/sandboxes/{id}/proxy/44772/command", {"command": command, "background": True})
    with opened(f"/#/box/{id}") as page:
        first = page.locator(".timeline .step", has_text="until [ -e /root/go ]")
        expect(first).to_have_class("step running")
        expect(first.locator(".end")).to_have_text("running")
        run(id, "echo between; touch /root/go")
        expect(first).to_have_class("step failed")
        expect(first.locator(".end")).to_contain_text("exit code 3")
        expect(first.locator(".preview")).to_contain_text("said")
        expect(page.locator(".timeline .step")).to_have_count(2)

        # What goes with the box does not run any more.
        must("POST", f"/v1/sandboxes/{id}/proxy/44772/command", {"command": "exec sleep 1000", "background": True})
        expect(page.locator(".timeline .step.running")).to_have_count(1)
        must("POST", f"/v1/sandboxes/{id}/reset")
        expect(page.locator(".timeline .step.running")).to_have_count(0)
        expect(page.locator(".timeline .step")).to_have_count(3)
        page.watched.fine()
