"""What schemathesis looks at beside its own checks."""

import schemathesis


@schemathesis.check
def nothing_breaks(ctx, response, case):
    """No answer says that something broke on our side. RUNTIME_ERROR with 500 is execd's word for what failed in the box."""
    if response.status_code < 500 or response.status_code in (501, 503):
        return
    code = response.json().get("code")
    assert response.status_code == 500 and code in ("RUNTIME_ERROR", "DOCKER::SANDBOX_IMAGE_PULL_FAILED"), code
