"""ipykernel through jupyter_client, one turn for each line of stdin: `run` (1+1 in a live kernel) and `new` (a kernel until it
has run that) answer nanoseconds, `memory` the bytes of the live kernel that are in memory.
"""
import sys, time

from jupyter_client.manager import start_new_kernel


def run(client):
    reply = client.execute_interactive("1+1", output_hook=lambda message: None, timeout=60)
    assert reply["content"]["status"] == "ok", reply


def memory(manager):
    with open("/proc/%d/status" % manager.provisioner.pid) as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS:"))


def main():
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        run(client)
        print("ready", flush=True)
        for line in sys.stdin:
            what = line.strip()
            if what == "memory":
                print(memory(manager), flush=True)
                continue
            start = time.monotonic_ns()
            if what == "new":
                other, talk = start_new_kernel(kernel_name="python3")
                run(talk)
                took = time.monotonic_ns() - start
                talk.stop_channels()
                other.shutdown_kernel(now=True)
            else:
                run(client)
                took = time.monotonic_ns() - start
            print(took, flush=True)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


main()
