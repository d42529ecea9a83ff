"""Others that run commands in containers, one turn for each line of stdin: `first` or `exec`. Answers are nanoseconds.

Called as `python peers.py NAME IMAGE`. The image is there already, has /bin/true and /bin/sleep, and needs no network.
"""
import asyncio, logging, sys, time

logging.disable(logging.CRITICAL)
NAME, IMAGE = sys.argv[1:3]
SLEEP = ["/bin/sleep", "infinity"]
# It names a user that the image does not know, and waits for a `sleep` that does not listen, unless it is told.
CONFIG = {"command": SLEEP, "network_mode": "none", "user": "0:0", "stop_signal": "SIGKILL"}


class MsEnclave:
    def __init__(self):
        self.loop = asyncio.new_event_loop()

    def open(self):
        from ms_enclave.sandbox.boxes import SandboxFactory
        from ms_enclave.sandbox.model import DockerSandboxConfig, SandboxType

        config = DockerSandboxConfig(
            image=IMAGE, command=SLEEP, working_dir="/", network_enabled=False, tools_config={}
        )
        box = SandboxFactory.create_sandbox(SandboxType.DOCKER, config)
        self.loop.run_until_complete(box.start())
        return box

    def run(self, box):
        result = self.loop.run_until_complete(box.execute_command(["/bin/true"], stream=False))
        assert result.exit_code == 0, result

    def close(self, box):
        # Not `stop`, which waits for a `sleep` that does not listen.
        self.loop.run_until_complete(box.cleanup())


class LlmSandbox:
    def open(self):
        from llm_sandbox import SandboxSession

        box = SandboxSession(
            image=IMAGE, lang="python", workdir="/", skip_environment_setup=True, keep_template=True,
            runtime_configs=CONFIG,
        )
        box.open()
        return box

    def run(self, box):
        assert box.execute_command("/bin/true").exit_code == 0

    def close(self, box):
        box.close()


def main():
    peer = {"ms-enclave": MsEnclave, "llm-sandbox": LlmSandbox}[NAME]()
    out, sys.stdout = sys.stdout, sys.stderr
    live = peer.open()
    try:
        peer.run(live)
        print("ready", file=out, flush=True)
        for line in sys.stdin:
            start = time.monotonic_ns()
            box = peer.open() if line.strip() == "first" else live
            peer.run(box)
            took = time.monotonic_ns() - start
            if box is not live:
                peer.close(box)
            print(took, file=out, flush=True)
    finally:
        peer.close(live)


main()
