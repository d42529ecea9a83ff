# The driver of a Python context. It is told over descriptor 3 and lives in no file; see context.rs for the words.
# It has to run on Python 3.6, so that old images have contexts too. Its last line, which begins it, is added by context.rs:
# a zygote (zygote.py) does what can be done before there is a context, and goes on in each fork.

def drive(wait=None):
    # Nothing that Python has not loaded by itself, but for three modules in C: what `ast` and `linecache` would load takes
    # longer than Python does.
    import _ast as ast
    import _signal
    import _socket
    import _thread
    import builtins
    import io
    import os
    import sys
    import time

    # User code may replace whatever it likes of these modules and builtins; the driver keeps what it needs.
    BaseException_, Exception_, KeyboardInterrupt_ = BaseException, Exception, KeyboardInterrupt
    SystemExit_, int_, isinstance_, len_, repr_, str_, type_ = SystemExit, int, isinstance, len, repr, str, type
    compile_, eval_, dict_, hasattr_, getattr_, bytes_ = compile, eval, dict, hasattr, getattr, bytes
    close, dup2, getpid, read, write = os.close, os.dup2, os.getpid, os.read, os.write
    callable_, enumerate_, list_, max_, memoryview_ = callable, enumerate, list, max, memoryview
    SyntaxError_, UnicodeError_, OSError_, ValueError_, float_ = SyntaxError, UnicodeError, OSError, ValueError, float
    bytearray_, tuple_, range_, Stream = bytearray, tuple, range, io.IOBase
    try:
        from _json import encode_basestring_ascii as quoted
    except ImportError:
        from json.encoder import py_encode_basestring_ascii as quoted
    fstat, urandom, exit_now, set_signal, SIGINT = os.fstat, os.urandom, os._exit, _signal.signal, _signal.SIGINT
    File, Reader, Writer, Text = io.FileIO, io.BufferedReader, io.BufferedWriter, io.TextIOWrapper
    usual_hook = sys.excepthook
    settrace, gettrace, setprofile, getprofile = sys.settrace, sys.gettrace, sys.setprofile, sys.getprofile
    get_ident, main_thread, sleep = _thread.get_ident, _thread.get_ident(), time.sleep
    byteorder, open_null = sys.byteorder, (os.open, '/dev/null', os.O_RDWR | getattr(os, 'O_CLOEXEC', 0))

    CELLS_MAX = 1000
    KILLED_WITHIN_S = 5
    TRACEBACK_LINES_MAX = 400
    TRACEBACK_CHARS_MAX = 65536
    AWAIT, TREE, Expr, Expression = getattr(ast, 'PyCF_ALLOW_TOP_LEVEL_AWAIT', 0), ast.PyCF_ONLY_AST, ast.Expr, ast.Expression
    CO_COROUTINE = 0x80
    # What code names that needs a running loop, what it names that runs one, and who waits in one.
    WANT_LOOP = ('create_task', 'ensure_future', 'get_running_loop')
    HAVE_LOOP = ('run', 'run_until_complete', 'run_forever', 'Runner')
    WAITING = ('asyncio', 'selectors')
    OWN_CODE = drive.__code__.co_filename
    OWN_FRAME = '  File "<glasshouse>"'

    class State:
        running = False     # whether an interrupt is meant for somebody
        exec_id = 0         # for whom
        whole = False       # whether what runs is a program
        results = -1        # where results go
        shown = 0           # figures that were shown and must not be shown again
        emitting = False    # whether a result is under way that an interrupt has to wait for
        interrupted = False  # and one does
        loop = None
        watch = (None, None)  # who follows the code's steps, for debuggers and the like; the driver's are none of it
        cells = {}          # sources, by the names that tracebacks have for them

    def interrupted(number, frame):
        if State.running:
            # A fork of the code's hears it too, and does not speak for us.
            if getpid() == own_pid:
                try:
                    line.sendall(b'heard %d\n' % State.exec_id)
                except OSError_:
                    pass
            if State.emitting and not State.interrupted:
                # Half a line would be no result at all. A second one does not wait for who does not read.
                State.interrupted = True
                return
            raise KeyboardInterrupt_

    # Results.

    def encoded(value):
        """JSON of texts, lists and dicts, by nothing that user code can have replaced."""
        if isinstance_(value, dict_):
            return '{' + ', '.join([encoded(k) + ': ' + encoded(v) for k, v in value.items()]) + '}'
        if isinstance_(value, list_):
            return '[' + ', '.join([encoded(v) for v in value]) + ']'
        try:
            value.encode('utf-8')
        except UnicodeError_:
            # Half a letter is none that JSON could hold.
            value = value.encode('utf-8', 'backslashreplace').decode('utf-8')
        return quoted(value)

    # Threads show things, too, and what is long is written in parts.
    emitting = _thread.allocate_lock()

    def emit(kind, content):
        if State.results < 0 or getpid() != own_pid:
            return
        rest = memoryview_((encoded({kind: content}) + '\n').encode('ascii'))
        with emitting:
            # Only this thread is interrupted.
            State.emitting = get_ident() == main_thread
            try:
                while rest:
                    rest = rest[write(State.results, rest):]
            finally:
                State.emitting = False
        if State.interrupted and get_ident() == main_thread:
            State.interrupted = False
            raise KeyboardInterrupt_

    SHAPES = (
        ('_repr_html_', 'text/html'),
        ('_repr_markdown_', 'text/markdown'),
        ('_repr_json_', 'application/json'),
        ('_repr_latex_', 'text/latex'),
        ('_repr_svg_', 'image/svg+xml'),
        ('_repr_png_', 'image/png'),
        ('_repr_jpeg_', 'image/jpeg'),
        ('_repr_pdf_', 'application/pdf'),
        ('_repr_javascript_', 'application/javascript'),
    )

    def finite(value):
        """The same without numbers that JSON does not have."""
        if isinstance_(value, float_):
            return value if value - value == 0 else None
        if isinstance_(value, dict_):
            return {finite(k) if isinstance_(k, float_) else k: finite(v) for k, v in value.items()}
        return [finite(v) for v in value] if isinstance_(value, (list_, tuple_)) else value

    def json_of(value):
        import json

        def refuse(constant):
            raise ValueError_(constant)

        if isinstance_(value, str_):
            # Text of JSON is what it says. Any other is text.
            try:
                json.loads(value, parse_constant=refuse)
                return value
            except ValueError_:
                pass
        try:
            return json.dumps(value, default=repr_, allow_nan=False)
        except ValueError_:
            return json.dumps(finite(value), default=repr_, allow_nan=False)

    def as_text(mime, value):
        """A shape as it crosses the wall: text, base64 of bytes, text of JSON."""
        if isinstance_(value, (bytes_, bytearray_, memoryview_)):
            import base64
            return base64.b64encode(bytes_(value)).decode('ascii')
        if isinstance_(value, str_) and not (mime == 'application/json' or str_(mime).endswith('+json')):
            return value
        return json_of(value)

    def bundle(value):
        data, metadata = {}, {}

        def take(mime, shape):
            if isinstance_(shape, tuple_) and len_(shape) == 2 and isinstance_(shape[1], dict_):
                shape, extra = shape
                if extra:
                    metadata[mime] = extra
            if shape is not None:
                data[str_(mime)] = as_text(mime, shape)

        def found(name):
            try:
                return getattr_(value, name, None)
            except Exception_:
                return None

        # A class has these too, but they are its objects'; and what has every attribute that it is asked for means none.
        has_shapes = not isinstance_(value, type_) and found('_ipython_canary_method_should_not_exist_') is None

        def asked(name):
            method = found(name) if has_shapes else None
            return method if callable_(method) else None

        def attempt(act):
            try:
                act()
            except Exception_ as error:
                print_error(error)

        def whole():
            method = asked('_repr_mimebundle_')
            if method is None:
                return
            made = method(include=None, exclude=None)
            if isinstance_(made, tuple_) and len_(made) == 2:
                made, extra = made
                metadata.update(extra or {})
            for mime, shape in (made or {}).items():
                take(mime, shape)

        attempt(whole)
        for name, mime in SHAPES:
            if mime not in data:
                method = asked(name)
                if method is not None:
                    attempt(lambda: take(mime, method()))
        if 'image/png' not in data and is_figure(value):
            attempt(lambda: take('image/png', picture(value)))
        if 'text/plain' not in data:
            data['text/plain'] = repr_(value)
        return data, metadata

    def shown(data, metadata):
        made = {'data': data}
        if metadata:
            made['metadata'] = json_of(metadata)
        return made

    class DisplayHandle:
        """What was shown, to be shown anew. Nothing that was told is taken back, so that is one more display."""

        def __init__(self, display_id=None):
            self.display_id = display_id or urandom(16).hex()

        def display(self, value, **options):
            display(value, display_id=self.display_id, **options)

        def update(self, value, **options):
            display(value, display_id=self.display_id, update=True, **options)

        def __repr__(self):
            return '<DisplayHandle display_id=%s>' % self.display_id

    def display(*values, **options):
        """Shows each value in all shapes that it has; with raw=True, a dict from MIME types to shapes."""
        include, exclude, display_id = options.get('include'), options.get('exclude'), options.get('display_id')
        for value in values:
            if options.get('raw') and isinstance_(value, dict_):
                publish_display_data(value, options.get('metadata'))
                continue
            data, metadata = bundle(value)
            for mime in list_(data):
                if (include and mime not in include) or (exclude and mime in exclude):
                    del data[mime]
            metadata.update(options.get('metadata') or {})
            emit('display', shown(data, metadata))
        if display_id is not None:
            return DisplayHandle(None if display_id is True else display_id)

    def publish_display_data(data, metadata=None, *args, **options):
        """Shows these shapes."""
        emit('display', shown({str_(mime): as_text(mime, shape) for mime, shape in data.items()}, metadata))

    def displayhook(value):
        if value is None:
            return
        builtins._ = None
        emit('value', shown(*bundle(value)))
        builtins._ = value

    # Figures.

    def is_figure(value):
        figure = sys.modules.get('matplotlib.figure')
        return figure is not None and isinstance_(value, figure.Figure)

    def picture(figure):
        buffer = io.BytesIO()
        figure.savefig(buffer, format='png', bbox_inches='tight')
        pyplot = sys.modules.get('matplotlib.pyplot')
        if pyplot is not None:
            pyplot.close(figure)
        return buffer.getvalue()

    def show_figures(*args, **kwargs):
        pyplot = sys.modules.get('matplotlib.pyplot')
        if pyplot is None:
            return
        for number in list_(pyplot.get_fignums()):
            figure = pyplot.figure(number)
            if figure.get_axes() or figure.texts or figure.images or figure.lines:
                emit('display', {'data': {'image/png': as_text('image/png', picture(figure)),
                                          'text/plain': repr_(figure)}})
        pyplot.close('all')

    def keep_lines():
        """Lets tracebacks show the lines of cells."""
        known = getattr_(sys.modules.get('linecache'), 'cache', None)
        for name, source in State.cells.items() if isinstance_(known, dict_) else ():
            if name not in known:
                lines = [text + '\n' for text in source.split('\n')]
                known[name] = (len_(source), None, lines, name)

    def afterwards(name, finder, act):
        """The way to a module, after whose loading something is done."""
        import importlib.util
        sys.meta_path.remove(finder)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                act(module)

            try:
                spec.loader.exec_module = exec_module
            except AttributeError:
                # One that is built in is not told of.
                pass
        return spec

    class Lines:
        """Knows the lines of cells as soon as anybody loads `linecache`."""

        @classmethod
        def find_spec(cls, name, path=None, target=None):
            # If it is built in, the next run's lines are known.
            return afterwards(name, cls, lambda module: keep_lines()) if name == 'linecache' else None

    sys.meta_path.insert(0, Lines)

    class Shown:
        """Has IPython's display() be ours, and what that is made of: without its shell, it would only print, or begin that shell."""

        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name != 'IPython.core.display_functions':
                return None

            def ours(module):
                module.display, module.publish_display_data = display, publish_display_data

            return afterwards(name, cls, ours)

    sys.meta_path.insert(0, Shown)

    class Backend:
        """Finds the module that matplotlib draws with, which is in no file: its own Agg, and a show() of ours."""

        NAME = 'glasshouse_figures'

        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name == 'matplotlib.pyplot' and 'MPLBACKEND' not in os.environ:
                # Not by that variable: programs that the code starts would inherit it, and do not have this module.
                try:
                    sys.modules['matplotlib'].use('module://' + cls.NAME)
                except Exception_:
                    pass
            if name != cls.NAME:
                return None
            import importlib.machinery
            return importlib.machinery.ModuleSpec(name, cls)

        @staticmethod
        def create_module(spec):
            return None

        @staticmethod
        def exec_module(module):
            import matplotlib.backends.backend_agg as agg
            for name in ('FigureManager', 'backend_version', 'draw_if_interactive', 'new_figure_manager',
                         'new_figure_manager_given_figure', 'mainloop'):
                if hasattr_(agg, name):
                    setattr(module, name, getattr_(agg, name))
            module.FigureCanvas = agg.FigureCanvasAgg
            module.show = show_figures

    sys.meta_path.insert(0, Backend)

    # Errors.

    def own_trace(error):
        """Where an exception came through the code's own frames, and not through ours above them."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == OWN_CODE:
            trace = trace.tb_next
        return trace

    def described(error):
        """The exception in the words of the language, without our own frames: its name, its value, and lines."""
        name = getattr_(type_(error), '__name__', 'Exception')
        try:
            value = str_(error)
        except BaseException_:
            value = '<no text>'
        try:
            import traceback
            keep_lines()
            text = ''.join(traceback.format_exception(type_(error), error, own_trace(error)))
        except BaseException_:
            text = '%s: %s' % (name, value)
        lines = [text for text in text.rstrip('\n').split('\n') if not text.startswith(OWN_FRAME)]
        if len_(lines) > TRACEBACK_LINES_MAX:
            half = TRACEBACK_LINES_MAX // 2
            lines = lines[:half] + ['  [%d lines are left out]' % (len_(lines) - 2 * half)] + lines[-half:]
        room = TRACEBACK_CHARS_MAX
        for at, text in enumerate_(lines):
            lines[at] = text[:max_(room, 200)]
            room -= len_(lines[at])
        return name, value[:TRACEBACK_CHARS_MAX], lines

    def print_error(error):
        try:
            sys.stderr.write('\n'.join(described(error)[2]) + '\n')
        except Exception_:
            # There is nobody to read it.
            pass

    def tell_error(error):
        if getpid() != own_pid:
            # A child that the code has forked has no results, and says it as a program does.
            if not isinstance_(error, SystemExit_):
                print_error(error)
            return
        name, value, lines = described(error)
        emit('error', {'name': name, 'value': value, 'traceback': lines})

    def tell_failure(error):
        """The same for a program, which may have its own way to do that."""
        hook = getattr_(sys, 'excepthook', None)
        if hook is not usual_hook and callable_(hook):
            try:
                return hook(type_(error), error, own_trace(error))
            except Exception_ as failure:
                print_error(failure)
        tell_error(error)

    def exit_code(error):
        """What the process would have ended with."""
        code = error.code
        if code is None:
            return 0
        if isinstance_(code, int_):
            return int_.__and__(code, 0xff)
        try:
            sys.stderr.write('%s\n' % (code,))
        except Exception_:
            pass
        return 1

    # Running.

    module = type_(sys)('__main__')
    module.__builtins__ = builtins
    sys.modules['__main__'] = module
    names = module.__dict__
    builtins.display = display
    sys.argv = ['']
    sys.displayhook = displayhook

    class Pipe(File):
        """What it was made of is not what a run has: no place in a pipe can be sought."""

        def seekable(self):
            return False

    def writer(descriptor):
        raw = Pipe(descriptor, 'w', closefd=False)
        return Text(Writer(raw), encoding='utf-8', errors='backslashreplace', line_buffering=True)

    def printing(plain):
        """A print() after which nothing waits that a kill could take along. Streams that wrote every part of it at once would do
        that, too, and mix up the lines of threads and of other processes."""

        def print(*values, sep=' ', end='\n', file=None, flush=False):
            target = getattr_(sys, 'stdout', None) if file is None else file
            plain(*values, sep=sep, end=end, file=file, flush=flush or target is own_out or target is own_err)

        print.__doc__, print.__module__, print.__qualname__ = plain.__doc__, plain.__module__, 'print'
        return print

    plain_print = builtins.print
    print_at_once = printing(plain_print)

    def reader():
        raw = Pipe(0, 'r', closefd=False)
        return Text(Reader(raw), encoding='utf-8', errors='surrogateescape')

    # The first run's, made before there is one: a fork has it from its zygote.
    ahead = [reader()]
    sys.stdin = sys.__stdin__ = ahead[0]
    own_out, own_err = writer(1), writer(2)
    sys.stdout = sys.__stdout__ = own_out
    sys.stderr = sys.__stderr__ = own_err

    def the_loop():
        """The loop of this context, which is also the one that code finds if it asks for one."""
        import asyncio
        if State.loop is None or State.loop.is_closed():
            State.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(State.loop)
        return State.loop

    def wants_loop(words):
        """Whether code begins tasks at its top, as it can where a loop is always running. What runs a loop itself has to find none."""
        if 'asyncio' not in words:
            return False
        wants = [word for word in words if word in WANT_LOOP]
        has = [word for word in words if word in HAVE_LOOP]
        return wants and not has

    def as_if_inside(code):
        """Runs code while the loop seems to run. The tasks that it begins go on when something is awaited."""
        loop = the_loop()
        from asyncio import _set_running_loop as seem
        seem(loop)
        try:
            made = eval_(code, names)
        finally:
            seem(None)
        return completed(made, code) if code.co_flags & CO_COROUTINE and hasattr_(made, 'send') else made

    def completed(made, code):
        """What awaiting comes to. An error has the code's own frames, and not those of the loop around them."""
        loop = the_loop()
        task = loop.create_task(made)
        try:
            return loop.run_until_complete(task)
        except KeyboardInterrupt_ as error:
            trace = within(error.__traceback__, code)
            if task.done():
                # Nobody else asks for it, and then it would be told again when it is forgotten.
                task.cancelled() or task.exception()
            else:
                trace = trace or awaited(made, error.__traceback__)
                clear_up(loop, task)
            raise error.with_traceback(trace or error.__traceback__)
        except BaseException_ as error:
            raise error.with_traceback(within(error.__traceback__, code) or error.__traceback__)

    def clear_up(loop, task):
        """Lets what was interrupted end now, and not in a later run. One more interrupt ends that as well."""
        from asyncio import CancelledError
        task.cancel()
        try:
            loop.run_until_complete(task)
        except CancelledError:
            pass

    def within(trace, code):
        """The part of a traceback that begins with this code."""
        while trace is not None and trace.tb_frame.f_code is not code:
            trace = trace.tb_next
        return trace

    def awaited(made, trace):
        """A traceback of where a coroutine waits, if an interrupt came while nothing but the loop ran."""
        Trace, last = type_(trace), trace
        while last.tb_next is not None:
            last = last.tb_next
        frame = last.tb_frame
        module = str_(frame.f_globals.get('__name__')).split('.')[0]
        if module not in WAITING and frame.f_code.co_filename != OWN_CODE:
            return None
        frames = []
        while made is not None and len_(frames) < TRACEBACK_LINES_MAX:
            frame = getattr_(made, 'cr_frame', None) or getattr_(made, 'gi_frame', None)
            if frame is None:
                break
            frames.append(frame)
            made = getattr_(made, 'cr_await', None) or getattr_(made, 'gi_yieldfrom', None)
        trace = None
        for frame in frames[::-1]:
            trace = Trace(trace, frame, frame.f_lasti, frame.f_lineno)
        return trace

    def perform(code):
        """Runs code. Its value, if it is an expression."""
        # Before anybody follows the steps: those here are none of the code's.
        inside = not State.whole and wants_loop(code.co_names)
        if State.watch != (None, None):
            settrace(State.watch[0])
            setprofile(State.watch[1])
        try:
            if inside:
                return as_if_inside(code)
            made = eval_(code, names)
            if code.co_flags & CO_COROUTINE and hasattr_(made, 'send'):
                return completed(made, code)
            return made
        finally:
            State.watch = gettrace(), getprofile()
            setprofile(None)
            settrace(None)

    def outdented(source):
        """Code without the indent of its first line that says anything, where lines have it: as IPython does it."""
        for text in source.split('\n'):
            bare = text.lstrip(' \t')
            if bare.strip():
                indent = text[:len_(text) - len_(bare)]
                return '\n'.join([text[len_(indent):] if text.startswith(indent) else text
                                  for text in source.split('\n')])
        return source

    def parsed(source, name):
        """The tree of code, and the code itself as its lines are then."""
        try:
            return compile_(source, name, 'exec', TREE | AWAIT, True), source
        except SyntaxError_:
            # Only what makes no sense as it stands, so that nothing else changes its meaning.
            lesser = outdented(source)
            if lesser == source:
                raise
        State.cells[name] = lesser
        return compile_(lesser, name, 'exec', TREE | AWAIT, True), lesser

    def halves(source, name):
        """All but the last line of code, and that line, each compiled, if it is an expression for itself. What the tree of the
        whole says takes several times as long to learn, so it is asked where this leaves any doubt."""
        text = source.rstrip()
        at = text.rfind('\n') + 1
        head, last = source[:at], text[at:]
        if last[:1] in (' ', '\t', '\f', '#', '') or '\r' in source or head.endswith('\\\n'):
            return None
        try:
            # An expression, and nothing before or behind it. Lines above keep it where it stands.
            value = compile_('\n' * head.count('\n') + last, name, 'eval', AWAIT, True)
            # What is whole without it neither holds it in brackets or quotes nor goes on in it.
            return compile_(head, name, 'exec', AWAIT, True), value
        except Exception_:
            return None

    def is_held_back(last, source):
        """Whether a `;` follows on the last expression."""
        lines = source.replace('\r\n', '\n').replace('\r', '\n').split('\n')
        end = getattr_(last, 'end_lineno', None)
        if end is not None:
            # The place is counted in bytes.
            return lines[end - 1].encode('utf-8')[last.end_col_offset:].lstrip(b' \t\f').startswith(b';')
        # Before Python 3.8 nobody says where it ends. Remarks in lines of their own are none of it.
        while lines and (not lines[-1].strip() or lines[-1].strip().startswith('#')):
            lines.pop()
        return lines[-1].rstrip().endswith(';') if lines else False

    def execute(source, count):
        name = '<cell %d>' % count
        State.cells[name] = source
        both = halves(source, name)
        if both is None:
            tree, source = parsed(source, name)
        keep_lines()
        if len_(State.cells) > CELLS_MAX:
            oldest = '<cell %d>' % (count - CELLS_MAX)
            State.cells.pop(oldest, None)
            known = getattr_(sys.modules.get('linecache'), 'cache', None)
            if isinstance_(known, dict_):
                known.pop(oldest, None)
        if both is not None:
            perform(both[0])
            show(perform(both[1]))
            return
        last = None
        if tree.body and isinstance_(tree.body[-1], Expr) and not is_held_back(tree.body[-1], source):
            last = Expression(tree.body.pop().value)
        if tree.body:
            perform(compile_(tree, name, 'exec', AWAIT, True))
        if last is not None:
            show(perform(compile_(last, name, 'eval', AWAIT, True)))

    def show(value):
        """Tells the value that code came to. A program is not asked for one, so it cannot fail by it."""
        if not State.whole:
            sys.displayhook(value)
            return
        try:
            displayhook(value)
        except Exception_:
            pass

    def is_open(stream):
        try:
            return not getattr_(stream, 'closed', True)
        except Exception_:
            # One that was taken apart does not say.
            return False

    def flush():
        """Writes what is waiting, to what is still there to be written to."""
        for name in ('stdout', 'stderr'):
            stream = getattr_(sys, name, None)
            if hasattr_(stream, 'flush') and (is_open(stream) or not isinstance_(stream, Stream)):
                stream.flush()

    def fresh():
        """What a run finds, whatever the one before has done to it."""
        nonlocal own_out, own_err
        set_signal(SIGINT, interrupted)
        if peak >= 0:
            try:
                write(peak, b'5')
            except OSError_:
                pass
        if not hasattr_(sys, 'displayhook'):
            sys.displayhook = displayhook
        if not State.whole:
            # Whoever follows the steps of code is to see none of ours.
            wanted = print_at_once if State.watch == (None, None) else plain_print
            if getattr_(builtins, 'print', None) in (plain_print, print_at_once):
                builtins.print = wanted
            try:
                if 'asyncio' in sys.modules:
                    the_loop()
            except Exception_:
                # What the code has made of it is told where it is used.
                pass
        sys.stdin = sys.__stdin__ = ahead.pop() if ahead else reader()
        if not is_open(getattr_(sys, 'stdout', None)):
            own_out = own_out if is_open(own_out) else writer(1)
            sys.stdout = own_out
        if not is_open(getattr_(sys, 'stderr', None)):
            own_err = own_err if is_open(own_err) else writer(2)
            sys.stderr = own_err

    def show_what_can_be():
        """Figures of code that failed are its own, and not those of what runs next."""
        try:
            show_figures()
        except Exception_:
            pass

    def take_leave():
        """What Python does at the end of a program: it waits for its threads, calls what was left with it for that, and forgets
        all names, so that files are written that nobody has closed, and things end that want to know of it."""
        import atexit
        import gc
        threading = sys.modules.get('threading')
        if threading is not None:
            threading._shutdown()
        atexit._run_exitfuncs()
        builtins._ = None
        for name in list_(names):
            if name != '__builtins__':
                names[name] = None
        gc.collect()

    def attempt(source, count, begun, whole):
        try:
            State.running = True
            try:
                try:
                    line.sendall(begun)
                    execute(source, count)
                    show_figures()
                    status = 0
                except SystemExit_ as error:
                    show_what_can_be()
                    # To a program it is the way to its end, and to a context none.
                    if not whole:
                        tell_error(error)
                    status = exit_code(error)
                except BaseException_ as error:
                    if not isinstance_(error, KeyboardInterrupt_):
                        show_what_can_be()
                    tell_failure(error) if whole else tell_error(error)
                    status = 1
                if whole:
                    take_leave()
                return status
            finally:
                flush()
        except BaseException_ as error:
            # A second interrupt, or a stream that cannot be written.
            State.running = False
            try:
                tell_error(error)
            except BaseException_:
                pass
            return 1
        finally:
            State.running = False

    def silence():
        """What is between two runs is nobody's."""
        for target in (0, 1, 2):
            try:
                dup2(null, target)
            except OSError_:
                # The code has closed it. This is for each of the three, for nothing else is known to be there.
                opened = open_null[0](open_null[1], open_null[2])
                dup2(opened, target)
                if opened != target:
                    close(opened)

    def run(count, exec_id, descriptors, whole):
        stdin, stdout, stderr, results, code = descriptors
        size = fstat(code).st_size
        source = b''
        while len_(source) < size:
            source += read(code, size)
        if whole:
            # A program has a file, which its other processes can read as well: that is how some of them begin.
            names['__file__'] = '/proc/%d/fd/%d' % (own_pid, code)
        else:
            close(code)
        for target, descriptor in enumerate_((stdin, stdout, stderr)):
            dup2(descriptor, target)
            close(descriptor)
        State.results, State.exec_id, State.whole = results, exec_id, whole
        State.emitting = State.interrupted = False
        fresh()
        # Not by the codec that does both, which Python would have to load first.
        text = source[3:] if source[:3] == b'\xef\xbb\xbf' else source
        try:
            status = attempt(text.decode('utf-8', 'replace'), count, b'begun %d\n' % exec_id, whole)
        except KeyboardInterrupt_:
            # An interrupt that came as the run ended.
            status = 1
        if getpid() != own_pid:
            # A child that the code has forked and that came this far ends here, as a program would.
            exit_now(status)
        State.running = False
        State.results = -1
        silence()
        try:
            close(results)
        except OSError_:
            # The code has closed it.
            pass
        try:
            line.sendall(b'done %d %d\n' % (exec_id, status))
        except OSError_:
            # It has closed that, too. Nobody can be told anything any more, and we are killed for it, with that as the cause.
            sleep(KILLED_WITHIN_S)
            exit_now(1)

    # What a zygote has is kept: a fork that took it apart would copy all the pages that it lies in.
    kept = None if wait is None else wait()
    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, 3)
    os.set_inheritable(3, False)
    null = open_null[0](open_null[1], open_null[2])
    own_pid = getpid()
    try:
        # So that the peak of each run is its own.
        peak = os.open('/proc/self/clear_refs', os.O_WRONLY | getattr(os, 'O_CLOEXEC', 0))
    except OSError:
        peak = -1
    set_signal(SIGINT, interrupted)
    silence()
    line.sendall(('hello %d.%d.%d\n' % sys.version_info[:3]).encode())
    space, rights, unshared = _socket.CMSG_SPACE(5 * 4), _socket.SCM_RIGHTS, _socket.MSG_CMSG_CLOEXEC
    count = 0
    while True:
        message, control, flags, address = line.recvmsg(4096, space, unshared)
        if not message:
            exit_now(0)
        descriptors = []
        for level, kind, content in control:
            if kind == rights:
                descriptors += [int_.from_bytes(content[at:at + 4], byteorder)
                                for at in range_(0, len_(content) - 3, 4)]
        if len_(descriptors) != 5:
            line.sendall(b'broken its driver cannot take what it is handed: it has no descriptor left\n')
            continue
        count += 1
        words = message.split()
        run(count, int_(words[1]), descriptors, words[2:] == [b'whole'])

