"""A warm Python that runs each program in a fork of itself, with no walls: what there is to gain at the most.

Its arguments are the modules that it loads. A program's path on each line of its input; how it ended on each line of its output.
"""

import gc
import os
import sys

for name in sys.argv[1:]:
    __import__(name)
gc.collect()
gc.freeze()
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.dup2(2, 1)  # What the program says is not for whoever reads us.
            with open(line[:-1]) as file:
                program = file.read()
            exec(compile(program, line[:-1], "exec"), {"__name__": "__main__"})
            sys.stdout.flush()
            status = 0
        finally:
            os._exit(status)
    print(os.waitpid(child, 0)[1], flush=True)
