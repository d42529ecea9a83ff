// The driver of a JavaScript or TypeScript context. It is told over descriptor 3 and lives in no file; see context.rs for
// the words. Code is evaluated by V8's own REPL mode: `await` at the top, and `let` and `const` that stay and can be said again.

(() => {
  const fs = require('fs');
  const net = require('net');
  const util = require('util');
  const vm = require('vm');
  const { Writable } = require('stream');
  const { Session } = require('inspector');
  const { closeSync, openSync, readFileSync, writeSync } = fs;
  const { inspect } = util;
  const stringify = JSON.stringify;
  const typescript = globalThis.__glasshouse_typescript === true;
  delete globalThis.__glasshouse_typescript;

  let strip = (code) => code;
  if (typescript) {
    const { stripTypeScriptTypes } = require('module');
    if (typeof stripTypeScriptTypes !== 'function') {
      process.stderr.write(`Node.js ${process.version} cannot strip types: TypeScript needs 22.13 or later\n`);
      process.reallyExit(1);
    }
    strip = (code) => stripTypeScriptTypes(code, { mode: 'transform', sourceMap: false });
    strip('let x: number');
  }

  const TRACEBACK_CHARS_MAX = 65536;
  const STALE_MS = 50;
  let run = null; // {id, count, results, done}
  let count = 0;

  const session = new Session();
  session.connect();

  // Descriptors. Node has no dup2, but the lowest free number is what open() gives.
  const put = (number, path, flags) => {
    const extra = [];
    try { closeSync(number); } catch { /* the code has closed it */ }
    for (let fd = openSync(path, flags); fd !== number; fd = openSync(path, flags)) {
      extra.push(fd);
      if (extra.length > 64) break;
    }
    extra.forEach((fd) => closeSync(fd));
  };

  const writeAll = (fd, bytes) => {
    for (let rest = bytes; rest.length > 0;) rest = rest.subarray(writeSync(fd, rest));
  };

  const emit = (kind, content) => {
    if (run) writeAll(run.results, Buffer.from(stringify({ [kind]: content }) + '\n'));
  };

  // They write at once, to whatever these numbers are. One in which code was interrupted takes itself to be writing for ever:
  // then it is replaced.
  const renewStreams = () => {
    for (const [name, fd] of [['stdout', 1], ['stderr', 2]]) {
      const stream = new Writable({
        write(chunk, encoding, done) {
          try { writeAll(fd, chunk); } catch { /* nobody reads it */ }
          done();
        },
      });
      stream.fd = fd;
      Object.defineProperty(process, name, { configurable: true, enumerable: true, writable: true, value: stream });
      console[`_${name}`] = stream;
    }
  };

  const asText = (value) => {
    if (typeof value === 'string') return value;
    if (value instanceof Uint8Array) return Buffer.from(value).toString('base64');
    return stringify(value) ?? String(value);
  };

  const shapes = (made) => Object.fromEntries(Object.entries(made).map(([mime, data]) => [mime, asText(data)]));

  const DISPLAY = Symbol.for('Jupyter.display');
  const bundle = (value) => {
    let data = {};
    if (value !== null && (typeof value === 'object' || typeof value === 'function')) {
      if (typeof value[DISPLAY] === 'function') data = shapes(value[DISPLAY]() ?? {});
    }
    if (!('text/plain' in data)) data['text/plain'] = inspect(value);
    return { data };
  };

  globalThis.display = (value, options) => {
    emit('display', options?.raw ? { data: shapes(value) } : bundle(value));
  };

  const tellError = (error) => {
    const isError = util.types.isNativeError(error);
    let name = 'Error';
    let value;
    let lines;
    try {
      name = isError ? String(error.name) : 'Thrown';
      value = isError ? String(error.message) : inspect(error);
      const text = isError && typeof error.stack === 'string' ? error.stack : `${name}: ${value}`;
      lines = text.slice(0, TRACEBACK_CHARS_MAX).split('\n');
      // Below the first frame that is ours there is nothing of the user's.
      const ours = lines.findIndex((line) => /^\s+at .*(node:inspector|node:vm|node:internal|\[eval\])/.test(line));
      if (ours > 0) lines = lines.slice(0, ours);
    } catch {
      value ??= '<no text>';
      lines = [name];
    }
    emit('error', { name, value: value.slice(0, TRACEBACK_CHARS_MAX), traceback: lines });
  };

  class ProcessExit extends Error {
    constructor(code) {
      super(String(code));
      this.name = 'ProcessExit';
      this.code = code;
    }
  }
  process.exit = (code = process.exitCode ?? 0) => { throw new ProcessExit(Number(code) & 0xff); };

  const finish = (code) => {
    const { id, results } = run;
    run = null;
    process.exitCode = undefined;
    put(0, '/dev/null', 'r');
    put(1, '/dev/null', 'w');
    put(2, '/dev/null', 'w');
    try { closeSync(results); } catch { /* the code has closed it */ }
    line.write(`done ${id} ${code}\n`);
  };

  const fail = (error) => {
    tellError(error);
    finish(error instanceof ProcessExit ? error.code : 1);
  };

  // What evaluate() answers with is a description; the value itself is handed over by one more call.
  let taken;
  const take = (object) => {
    globalThis.__glasshouse_take = (value) => { taken = value; };
    const argument = 'objectId' in object ? { objectId: object.objectId }
      : 'unserializableValue' in object ? { unserializableValue: object.unserializableValue }
      : { value: object.value };
    session.post('Runtime.evaluate', { expression: '(v) => __glasshouse_take(v)' }, (failed, answer) => {
      if (failed) return;
      session.post('Runtime.callFunctionOn', {
        functionDeclaration: '(v) => __glasshouse_take(v)', arguments: [argument], objectId: answer.result.objectId,
      });
    });
    delete globalThis.__glasshouse_take;
    const value = taken;
    taken = undefined;
    return value;
  };

  const answered = (mine) => (failed, answer) => {
    if (run !== mine) return;
    try {
      if (failed) throw failed;
      if (answer.exceptionDetails) {
        const { exception, text } = answer.exceptionDetails;
        return fail(exception ? take(exception) : new Error(text));
      }
      const value = answer.result.type === 'undefined' ? undefined : take(answer.result);
      if (value !== undefined) {
        emit('value', bundle(value));
        globalThis._ = value;
      }
      finish(typeof process.exitCode === 'number' ? process.exitCode & 0xff : 0);
    } catch (error) {
      fail(error);
    }
  };

  const evaluate = () => {
    const mine = run;
    session.post('Runtime.evaluate', {
      expression: `${mine.code}\n//# sourceURL=cell-${mine.count}.js`,
      replMode: true, awaitPromise: true, userGesture: false, objectGroup: 'run', silent: true,
    }, answered(mine));
  };

  globalThis.__glasshouse_evaluate = evaluate;
  // Only what runs within a script of vm's can be interrupted while it computes.
  const script = new vm.Script('__glasshouse_evaluate()', { filename: '[eval]' });
  const start = (id, fed, dir) => {
    count += 1;
    const code = readFileSync(`${dir}/code`, 'utf8');
    put(0, fed ? `${dir}/0` : '/dev/null', 'r');
    put(1, `${dir}/1`, 'w');
    put(2, `${dir}/2`, 'w');
    run = { id, count, results: openSync(`${dir}/3`, 'w'), code: '', began: Date.now() };
    stdin = null;
    line.write(`begun ${id}\n`);
    const mine = run;
    try {
      try { fs.writeFileSync('/proc/self/clear_refs', '5'); } catch { /* then the peak is the context's */ }
      mine.code = strip(code);
      globalThis.__glasshouse_evaluate = evaluate;
      script.runInThisContext({ breakOnSigint: true });
    } catch (error) {
      if (run !== mine) return;
      const interrupted = error?.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED';
      if (interrupted) renewStreams();
      fail(interrupted ? new Error('interrupted') : error);
    }
  };

  // One that was for the run before comes when the next has just begun. Who means this one says it again.
  process.on('SIGINT', () => { if (run && Date.now() - run.began > STALE_MS) fail(new Error('interrupted')); });
  for (const event of ['uncaughtException', 'unhandledRejection']) {
    process.on(event, (error) => { try { writeSync(2, `${inspect(error)}\n`); } catch { /* nobody reads it */ } });
  }

  put(0, '/dev/null', 'r');
  put(1, '/dev/null', 'w');
  put(2, '/dev/null', 'w');
  renewStreams();
  let stdin = null;
  Object.defineProperty(process, 'stdin', {
    configurable: true,
    get: () => (stdin ??= fs.createReadStream('', { fd: 0, autoClose: false })),
  });

  const line = new net.Socket({ fd: 3, readable: true, writable: true });
  let inbox = '';
  line.setEncoding('utf8');
  line.on('data', (text) => {
    inbox += text;
    for (let end = inbox.indexOf('\n'); end >= 0; end = inbox.indexOf('\n')) {
      const [, id, fed, dir] = inbox.slice(0, end).split(' ');
      inbox = inbox.slice(end + 1);
      start(Number(id), fed === '1', dir);
    }
  });
  line.on('close', () => process.reallyExit(0));
  line.write(`hello ${process.version.slice(1)}\n`);
})();
