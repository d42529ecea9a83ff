

# A zygote: an interpreter that has loaded what contexts want to have at hand, runs nobody's code, and is forked for each new
# context. zygote.rs draws its life and has the words. It is told after driver.py, whose drive() goes on in each fork.

def wait(names, directory):
    import _signal
    import _socket
    import gc
    import os
    import sys

    # What code often wants, and what telling an error takes.
    USUAL = ('bisect', 'collections', 'copy', 'datetime', 'functools', 'heapq', 'itertools', 'json', 'linecache', 'math',
             'operator', 'random', 're', 'string', 'tempfile', 'traceback', 'typing')
    # A little of what code is made of.
    REHEARSED = '''
import sys
class A(object):
    """Text."""
    def f(self, x=3, *rest, **names):
        y = [i for i in range(x) if i % 2 == 0 and not i > 7]
        for k, v in {'a': (1, 2.5), 'b': None}.items():
            try:
                y += [lambda z: z[0:1], k + '%s' % v]
            except (ValueError, KeyError) as error:
                raise RuntimeError(str(error))
            while x:
                x -= 1
        return sum(y) if y else x
assert A
print(A().f(2) == 2)
'''
    PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
    LANDLOCK_RESTRICT_SELF = 446
    SET_ROBUST_LIST, GET_ROBUST_LIST = {'x86_64': (273, 274), 'aarch64': (99, 100)}.get(os.uname().machine, (None, None))
    RT_SIGACTION = {'x86_64': 13, 'aarch64': 134}.get(os.uname().machine)
    # Its words come in another order on each kind of machine.
    CLONE = {'x86_64': lambda place: (56, AS_A_SIBLING, 0, 0, place, 0),
             'aarch64': lambda place: (220, AS_A_SIBLING, 0, 0, 0, place)}.get(os.uname().machine)
    SIG_DFL, SIG_IGN = 0, 1
    PR_GET_TID_ADDRESS = 40
    # CLONE_PARENT, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID
    AS_A_SIBLING = 0x8000 | 0x200000 | 0x1000000 | _signal.SIGCHLD
    # Two that cannot be changed, the one by which ended children are told, and those that Python itself ignores.
    LEFT = (_signal.SIGKILL, _signal.SIGSTOP, _signal.SIGCHLD, _signal.SIGPIPE, getattr(_signal, 'SIGXFSZ', _signal.SIGPIPE))

    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, 3)
    os.set_inheritable(3, False)

    def say(word, text):
        said = ('%s %s' % (word, text)).replace('\n', ' ').encode('utf-8', 'replace')
        line.sendall(said[:1000] + b'\n')

    def give_up(word, text):
        say(word, text)
        os._exit(0)

    def call(number, *args):
        return library.syscall(*[ctypes.c_long(arg) for arg in (number,) + args])

    try:
        import ctypes
        library = ctypes.CDLL(None)
        library.prctl.argtypes = [ctypes.c_int] + 4 * [ctypes.c_ulong]
    except Exception as error:
        give_up('unable', 'this Python has no ctypes: %s' % error)
    if RT_SIGACTION is None:
        give_up('unable', 'it does not know this machine')

    def signals(handler):
        """Calls that change all signals, also those that the C library keeps to itself. Python's own table stays as it is."""
        # As the kernel has it: handler, flags, restorer, mask.
        actions.append((ctypes.c_ulong * 4)(handler))
        return [[ctypes.c_long(word) for word in (RT_SIGACTION, number, ctypes.addressof(actions[-1]), 0, 8)]
                for number in range(1, 65) if number not in LEFT]

    def set_signals(calls):
        for words in calls:
            library.syscall(*words)

    actions = []
    deaf, listening = signals(SIG_IGN), signals(SIG_DFL)
    # Nobody can look into us, write into us or take our descriptors, though he is of the same user.
    if library.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        give_up('unable', 'the kernel does not let it hide itself')
    set_signals(deaf)
    try:
        os.chdir(directory)
    except OSError as error:
        give_up('failed', 'directory %s: %s' % (directory, error.strerror))
    for name in names or USUAL:
        try:
            __import__(name)
        except BaseException as error:
            give_up('failed', 'cannot import %s: %s: %s' % (name, type(error).__name__, error))
    # What these have changed of it, and opened.
    set_signals(deaf)
    os.chdir('/')
    null = os.open('/dev/null', os.O_RDWR)
    for number in [int(name) for name in os.listdir('/proc/self/fd')]:
        try:
            os.fstat(number)
        except OSError:
            # That of the list itself.
            continue
        if number > 3 and number != null:
            # Whoever opened it keeps a number that is nobody else's, and nothing behind it that forks would share.
            os.dup2(null, number, False)
    os.close(null)
    # What Python sets up when it first compiles anything is set up once, and not in each fork.
    import _ast
    for flags in (0, _ast.PyCF_ONLY_AST):
        compile(REHEARSED, '', 'exec', flags, True)
    compile('0', '', 'eval', 0, True)
    gc.collect()
    if hasattr(gc, 'freeze'):
        gc.freeze()
    space = _socket.CMSG_SPACE(3 * 4)

    def receive(socket):
        message, control, flags, address = socket.recvmsg(64, space, _socket.MSG_CMSG_CLOEXEC)
        if not message:
            os._exit(0)
        descriptors = []
        for level, kind, content in control:
            if kind == _socket.SCM_RIGHTS:
                descriptors += [int.from_bytes(content[at:at + 4], sys.byteorder)
                                for at in range(0, len(content) - 3, 4)]
        return message.split(), descriptors

    def thread_number():
        """Where the C library keeps the number of this thread, if the kernel can tell."""
        place = ctypes.c_ulong(0)
        if library.prctl(PR_GET_TID_ADDRESS, ctypes.addressof(place), 0, 0, 0) != 0 or not place.value:
            return None
        return place.value if ctypes.c_int.from_address(place.value).value == os.getpid() else None

    def siblings():
        """What makes a fork whose parent is ours: what fork() does, but for that. 0 in the fork. None: it cannot be done here."""
        place = thread_number()
        if place is None or CLONE is None:
            return None
        python = ctypes.PyDLL(None)
        try:
            syscall, before, in_fork, after = (python.syscall, python.PyOS_BeforeFork, python.PyOS_AfterFork_Child,
                                               python.PyOS_AfterFork_Parent)
        except AttributeError:
            return None
        words = [ctypes.c_long(word) for word in CLONE(place)]
        # The kernel forgets in the fork which locks are to be given back when it dies.
        head, size = ctypes.c_ulong(0), ctypes.c_ulong(0)
        if call(GET_ROBUST_LIST, 0, ctypes.addressof(head), ctypes.addressof(size)) != 0:
            return None
        robust = [ctypes.c_long(word) for word in (SET_ROBUST_LIST, head.value, size.value)]

        def sibling():
            before()
            made = syscall(*words)
            if made == 0:
                syscall(*robust)
                in_fork()
            else:
                after()
            return made

        return sibling

    def fork(descriptors):
        """Whether we are the fork. It is the guest's child and not ours."""
        # What the C library does for other threads when it forks is not missed where there are none.
        if sibling is None or len(os.listdir('/proc/self/task')) != 1:
            return fork_twice(descriptors)
        if sibling() == 0:
            return True
        # If it came to nothing, nobody has the other ends any more, and the guest sees that.
        for descriptor in descriptors:
            os.close(descriptor)
        return False

    def fork_twice(descriptors):
        """The same where that cannot be done: whoever stood between has ended."""
        between = os.fork()
        if between != 0:
            os.waitpid(between, 0)
            for descriptor in descriptors:
                os.close(descriptor)
            return False
        parent = os.getpid()
        try:
            end, held = os.pipe()
            is_fork = os.fork() == 0
        except OSError:
            is_fork = False
        if not is_fork:
            os._exit(0)
        # What an end leaves open is closed a moment before its children are somebody else's.
        os.close(held)
        os.read(end, 1)
        os.close(end)
        while os.getppid() == parent:
            os.sched_yield()
        return True

    def be_born(descriptors):
        """A fork, that is nobody's yet. The line of the zygote is not its own."""
        os.setsid()
        if len(descriptors) > 2:
            os.write(descriptors[2], b'0')
        line.detach()
        os.dup2(descriptors[1], 2)
        os.dup2(descriptors[0], 3)
        for descriptor in descriptors:
            os.close(descriptor)
        return _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, 3)

    def become(words, descriptors):
        """From here on it is a context, with the walls of one."""
        if words[1] == b'fenced':
            if call(LANDLOCK_RESTRICT_SELF, descriptors[0], 0) != 0:
                raise OSError('it cannot be fenced in')
            os.close(descriptors[0])
        if words[2] == b'bound':
            library.prctl(PR_SET_PDEATHSIG, _signal.SIGKILL, 0, 0, 0)
            if os.getppid() != int(words[3]):
                os._exit(0)
        os.chdir(directory)
        library.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        set_signals(listening)
        forget()

    def forget():
        """What would be the same in every fork."""
        loaded = sys.modules.get
        if 'random' in sys.modules and sys.version_info < (3, 7):
            # Later ones do so by themselves whenever they are forked.
            loaded('random').seed()
        if 'numpy.random' in sys.modules:
            loaded('numpy.random').seed()
        if 'tempfile' in sys.modules:
            loaded('tempfile')._name_sequence = None
        if 'multiprocessing.process' in sys.modules:
            loaded('multiprocessing.process').current_process().authkey = os.urandom(32)

    sibling = siblings()
    say('ready', '%d.%d.%d' % sys.version_info[:3])
    while True:
        words, descriptors = receive(line)
        if fork(descriptors):
            break
    try:
        own = be_born(descriptors)
        own.sendall(b'born\n')
        become(*receive(own))
        own.detach()
    except BaseException as error:
        os.write(2, ('%s: %s\n' % (type(error).__name__, error)).encode('utf-8', 'replace'))
        os._exit(70)
    return sys._getframe()
