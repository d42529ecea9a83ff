"""What a person does with `osb`, the command line of OpenSandbox."""

import json
import os
import subprocess
import sys
import tempfile

OSB = os.path.join(os.path.dirname(sys.executable), "osb")
PROXY = ["--use-server-proxy"] if os.environ.get("THROUGH_PROXY") else []


def osb(*words, code=0):
    done = subprocess.run([OSB, *PROXY, *words], capture_output=True, text=True)
    assert done.returncode == code, (words, done)
    return done.stdout


def told(*words):
    return json.loads(osb(*words, "-o", "json"))


with tempfile.TemporaryDirectory() as home:
    # Its settings are nobody's.
    os.environ["HOME"] = home
    made = told("sandbox", "create", "--image", "host", "--metadata", "by=osb", "--timeout", "10m")
    sandbox = made["id"]
    try:
        listed = told("sandbox", "list", "--metadata", "by=osb")
        assert [item["id"] for item in listed["items"]] == [sandbox], listed
        assert osb("command", "run", sandbox, "-o", "raw", "--", "echo", "hello").strip() == "hello"
        osb("command", "run", sandbox, "-o", "raw", "--", "exit 3", code=1)
        osb("file", "write", sandbox, "/tmp/x", "--content", "one two", "--mode", "0600")
        osb("file", "replace", sandbox, "/tmp/x", "--old", "two", "--new", "three")
        assert osb("file", "cat", sandbox, "/tmp/x") == "one three"
        assert told("sandbox", "metrics", sandbox)["cpu_count"] > 0
        if not PROXY:  # A person has time; one way of asking has to do for all of them.
            line = ["--", "sh", "-c", "echo begun; sleep 1000"]
            background = json.loads(osb("command", "run", sandbox, "--background", "-o", "json", *line))
            command = background["execution_id"]
            assert told("command", "status", sandbox, command)["running"] is True
            while "begun" not in osb("command", "logs", sandbox, command, "-o", "raw"):
                pass
            osb("command", "interrupt", sandbox, command)
            assert told("command", "status", sandbox, command)["running"] is False

            local = os.path.join(home, "local")
            with open(local, "wb") as file:
                file.write(b"of here\0")
            osb("file", "mkdir", sandbox, "/tmp/deep", "--mode", "0750")
            osb("file", "upload", sandbox, local, "/tmp/deep/there")
            osb("file", "mv", sandbox, "/tmp/deep/there", "/tmp/deep/moved")
            osb("file", "chmod", sandbox, "/tmp/deep/moved", "--mode", "0640")
            osb("file", "download", sandbox, "/tmp/deep/moved", local + ".back")
            with open(local + ".back", "rb") as file:
                assert file.read() == b"of here\0"
            info = json.dumps(told("file", "info", sandbox, "/tmp/deep", "/tmp/deep/moved"))
            assert "640" in info and "750" in info, info
            assert "/tmp/deep/moved" in json.dumps(told("file", "search", sandbox, "/tmp", "--pattern", "mov*"))
            osb("file", "rm", sandbox, "/tmp/deep/moved")
            osb("file", "rmdir", sandbox, "/tmp/deep")
            osb("file", "cat", sandbox, "/tmp/deep/moved", code=1)
        snapshot = told("snapshot", "create", sandbox, "--name", "osb")
        assert snapshot["status"] == "Ready", snapshot
        events = osb("diagnostics", "events", sandbox, "--scope", "all", "-o", "raw")
        assert "created from host" in events and "echo hello" in events and "snapshot" in events, events
        assert "hello" in osb("diagnostics", "logs", sandbox, "--scope", "all", "-o", "raw")
        assert sandbox in osb("devops", "summary", sandbox)
    finally:
        osb("sandbox", "kill", sandbox)
