"""Snapshots with the same layers: each stands on an older one, and a box is where it was put."""

from browser import box, expect, must, opened, run


def snapshot(id, name):
    return must("POST", f"/v1/sandboxes/{id}/snapshots", {"name": name})["id"]


def parents():
    tree = must("GET", "/viewer/snapshots")
    return {one["id"]: one["parent"] for one in [*tree["snapshots"], *tree["boxes"]]}


a = box()
run(a, "echo one > f")
one = snapshot(a, "t-one")
run(a, "echo two > f")
two = snapshot(a, "t-two")
b = box(image=None, snapshotId=one)
three = snapshot(b, "t-three")
must("POST", f"/v1/sandboxes/{a}/restore", {"snapshotId": one})
found = parents()
assert found[one] is None and found[two] == one and found[three] == one, (found, one, two, three)
assert found[a] == one and found[b] == three, (found, a, b)

with opened(f"/#/box/{a}/snapshots") as page:
    leaf = f'[data-leaf="{a}"]'
    expect(page.locator(f'li:has(> [data-snapshot="{one}"]) > ul > li > {leaf}')).to_contain_text("this box is here")
    # It is where it was put, also if that is another box's.
    page.locator(f'[data-snapshot="{three}"]').get_by_role("button", name="Restore").click()
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    expect(page.locator(f'li:has(> [data-snapshot="{three}"]) > ul > li > {leaf}')).to_be_visible()
    page.watched.fine()
