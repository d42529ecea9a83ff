// The driver of a JavaScript or TypeScript context. It is told over descriptor 3 and lives in no file; see context.rs for
// the words. Code is evaluated by V8's own REPL mode: `await` at the top, and `let` and `const` that stay and can be said again.
//
// Code runs in the main thread. A second thread listens on the line, hands runs over, and ends code that computes, as a
// debugger would. Node.js itself does not survive that, so it must hit code only, and of the run that it is for:
//
//   main     RUNNING = serial ─▶ code ─▶ RUNNING = 0 ─▶ waits until THROUGH == ENDINGS, or is hit
//   listener ENDINGS += 1 ─▶ RUNNING == serial? ──yes──▶ ends it, sees that it has ended ─▶ THROUGH = ENDINGS, `ended`
//                                     └──no─────────────────────────────────────────────────▶
//
// Each says what it does before it looks at what the other does, so one of them always sees the other. Code that waits has left
// the computing part, and hears of `ended`; what it computes after it has waited cannot be interrupted.
//
// Code that is a whole program is done when Node.js would end: when nothing is left in its loop but the listener, which is
// not counted as long as that is waited for.

(() => {
  const fs = require('fs');
  const util = require('util');
  const { Writable } = require('stream');
  const { Worker, SHARE_ENV } = require('worker_threads');
  const { Session } = require('inspector');
  const { Script } = require('vm');
  const { closeSync, createReadStream, openSync, readFileSync, writeFileSync, writeSync } = fs;
  const { inspect } = util;
  const { isNativeError, isPromise } = util.types;
  // Code may replace whatever it likes of the globals, and add to what all objects have; the driver keeps what it needs, asks objects
  // for what is their own, and what it cannot do without is done by nothing that can be replaced.
  const {
    process, console, AggregateError, Array: { isArray }, Error, Number: Whole, String: Text, Uint8Array: Bytes,
  } = globalThis;
  const { queueMicrotask: soon, setImmediate: later } = globalThis;
  const tick = process.nextTick.bind(process);
  const stringify = JSON.stringify;
  const bytesOf = Buffer.from.bind(Buffer);
  const { defineProperty, entries, getOwnPropertyDescriptor, prototype: everything, setPrototypeOf } = Object;
  const uncurried = Function.prototype.bind.bind(Function.prototype.call);
  const has = uncurried(everything.hasOwnProperty);
  const cut = uncurried(Text.prototype.slice);
  const placeOf = uncurried(Text.prototype.indexOf);
  const trimmed = uncurried(Text.prototype.trimEnd);
  const replaced = uncurried(Text.prototype.replace);
  const isFound = uncurried(RegExp.prototype.test);
  const nextOf = uncurried(RegExp.prototype.exec);
  const typescript = globalThis.__glasshouse_typescript === true;
  delete globalThis.__glasshouse_typescript;

  const CELLS_MAX = 1000;
  const maps = new Map(); // of cells whose lines are not where the user wrote them
  let plain = (code) => code;
  if (typescript) {
    const { SourceMap, stripTypeScriptTypes } = require('module');
    if (typeof stripTypeScriptTypes !== 'function') {
      process.stderr.write(`Node.js ${process.version} cannot strip types: TypeScript needs 22.13 or later\n`);
      process.reallyExit(1);
    }
    const MAP = '\n//# sourceMappingURL=data:application/json;base64,';
    const written = (code, name) => {
      const made = stripTypeScriptTypes(code, { mode: 'transform', sourceMap: true });
      const end = made.lastIndexOf(MAP);
      maps.set(name, new SourceMap(JSON.parse(bytesOf(made.slice(end + MAP.length), 'base64'))));
      if (maps.size > CELLS_MAX) maps.delete(maps.keys().next().value);
      return made.slice(0, end);
    };
    // Blanks in place of types leave every line where it is. What is more than types, like an enum, has to be written anew, which
    // Node.js 26 does not do any more.
    plain = (code, name) => {
      try {
        return stripTypeScriptTypes(code, { mode: 'strip', sourceUrl: name });
      } catch (error) {
        try { return written(code, name); } catch { throw error; }
      }
    };
    plain('let x: number', 'cell-0.js');
  }

  // A text that names places, with those that the user knows.
  const placed = (text) => text.replace(/(cell-\d+\.js):(\d+):(\d+)/g, (same, name, line, column) => {
    const from = maps.get(name)?.findEntry(line - 1, column - 1);
    if (from?.isOurs) return '[eval]';
    return from?.originalLine === undefined ? same : `${name}:${from.originalLine + 1}:${from.originalColumn + 1}`;
  });

  const TRACEBACK_CHARS_MAX = 65536;
  const [RUNNING, ENDINGS, THROUGH] = [0, 1, 2];
  const shared = new Int32Array(new SharedArrayBuffer(12));
  const { load, store, wait } = Atomics;
  let heard = 0; // of the endings
  let run = null; // {serial, id, results, end, whole}

  const session = new Session();
  session.connect();

  // Descriptors. Node has no dup2, but the lowest free number is what open() gives.
  const open = (number, path, flags, room) => {
    const fd = openSync(path, flags);
    if (fd === number) return;
    if (room > 0) open(number, path, flags, room - 1);
    closeSync(fd);
  };
  const put = (number, path, flags) => {
    try { closeSync(number); } catch { /* the code has closed it */ }
    open(number, path, flags, 64);
  };

  const writeAll = (fd, bytes) => {
    for (let done = 0; done < bytes.length;) done += writeSync(fd, bytes, done, bytes.length - done);
  };

  // JSON of texts, lists and objects, without what code may have added to these. Half a letter, which no other side can read, is
  // written as it would be in code.
  const HALF = /(?<=(?:^|[^\\])(?:\\\\)*)\\(?=ud[89a-f][0-9a-f]{2})/g;
  const quoted = (text) => {
    const made = stringify(text);
    return placeOf(made, '\\ud') >= 0 ? replaced(made, HALF, '\\\\') : made;
  };
  const encoded = (value) => {
    let made = '';
    if (isArray(value)) {
      for (let at = 0; at < value.length; at += 1) made += (at ? ',' : '') + encoded(value[at]);
      return `[${made}]`;
    }
    if (typeof value !== 'object' || value === null) return quoted(Text(value));
    const all = entries(value);
    for (let at = 0; at < all.length; at += 1) made += `${at ? ',' : ''}${quoted(all[at][0])}:${encoded(all[at][1])}`;
    return `{${made}}`;
  };

  const emit = (kind, content) => {
    if (run) writeAll(run.results, bytesOf(`{"${kind}":${encoded(content)}}\n`));
  };

  // They write at once, to whatever these numbers are. One in which code was interrupted takes itself to be writing for ever, and
  // one that was ended takes nothing more: then it is replaced.
  const renewStream = (name, fd) => {
    const stream = new Writable({
      write(chunk, encoding, done) {
        try { writeAll(fd, chunk); } catch { /* nobody reads it */ }
        done();
      },
    });
    stream.fd = fd;
    defineProperty(process, name, { configurable: true, enumerable: true, writable: true, value: stream });
    console[`_${name}`] = stream;
    stream.once('finish', () => { if (process[name] === stream) renewStream(name, fd); });
    stream.once('close', () => { if (process[name] === stream) renewStream(name, fd); });
  };
  const renewStreams = () => {
    renewStream('stdout', 1);
    renewStream('stderr', 2);
  };

  // Frames of ours and of what is around us say nothing to whoever wrote the code.
  const OURS = /^\s+(at .*(node:inspector|node:vm|node:internal|node:diagnostics_channel|\[eval\]|Worker\.emit )|\.\.\. \d+ lines matching)/;
  const linesOf = (text) => {
    const lines = setPrototypeOf([], null);
    for (let from = 0, to = 0; to < text.length; from = to + 1) {
      to = placeOf(text, '\n', from);
      if (to < 0) to = text.length;
      const line = cut(text, from, to);
      if (!isFound(OURS, line)) lines[lines.length] = line;
      else if (cut(line, -2) === ' {' && lines.length > 0) lines[lines.length - 1] += ' {';
    }
    return lines;
  };
  const withoutOurs = (text) => {
    const lines = linesOf(text);
    let all = '';
    for (let at = 0; at < lines.length; at += 1) all += (at ? '\n' : '') + lines[at];
    return all;
  };
  const shown = (value) => {
    const text = inspect(value);
    // Also in what holds an error, as a promise does that was rejected.
    return typeof value === 'object' ? withoutOurs(text) : text;
  };

  const asText = (value) => {
    if (typeof value === 'string') return value;
    if (value instanceof Bytes) return bytesOf(value).toString('base64');
    return stringify(value) ?? Text(value);
  };

  const shapes = (made) => {
    const all = entries(made);
    const data = { __proto__: null };
    for (let at = 0; at < all.length; at += 1) data[all[at][0]] = asText(all[at][1]);
    return data;
  };

  const DISPLAY = Symbol.for('Jupyter.display');
  const bundle = (value) => {
    let data = { __proto__: null };
    if (value !== null && (typeof value === 'object' || typeof value === 'function')) {
      if (typeof value[DISPLAY] === 'function') data = shapes(value[DISPLAY]() ?? {});
    }
    if (!('text/plain' in data)) data['text/plain'] = shown(value);
    return { data };
  };

  globalThis.display = (value, options) => {
    emit('display', options?.raw ? { data: shapes(value) } : bundle(value));
  };

  const tellError = (error, place) => {
    const isError = isNativeError(error);
    let name = 'Error';
    let value;
    let lines;
    try {
      name = isError ? Text(error.name) : 'Thrown';
      value = isError ? Text(error.message) : withoutOurs(inspect(error));
      // What it came of, and what it is made of, are told with it.
      const isMore = isError && ('cause' in error || error instanceof AggregateError);
      const text = isMore ? inspect(error)
        : isError && typeof error.stack === 'string' ? error.stack : `${name}: ${value}`;
      lines = linesOf(placed(cut(text, 0, TRACEBACK_CHARS_MAX)));
      // Code that is none has no frames.
      if (place && !text.includes(place.split(':')[0])) lines[lines.length] = `    at ${placed(place)}`;
    } catch {
      value ??= '<no text>';
      lines = [name];
    }
    emit('error', { name, value: cut(value, 0, TRACEBACK_CHARS_MAX), traceback: lines });
  };

  class ProcessExit extends Error {
    constructor(code) {
      super(Text(code));
      this.name = 'ProcessExit';
      this.code = code;
    }
  }
  process.exit = (code = process.exitCode ?? 0) => {
    const end = Whole(code) & 0xff;
    if (run?.whole) leave(end);
    if (run) run.exit = end; // Also if somebody catches what is thrown.
    throw new ProcessExit(end);
  };

  const say = (words) => writeAll(3, bytesOf(`${words}\n`));

  // Nothing can be run here any more, as when the code has used up all descriptors.
  const giveUp = (error) => say(`broken its driver cannot go on: ${cut(replaced(Text(error), /\s+/g, ' '), 0, 200)}`);

  const conclude = () => {
    const { id, results, end } = run;
    run = null;
    hold();
    try { process.exitCode = undefined; } catch { /* the code has its own */ }
    try {
      put(0, '/dev/null', 'r');
      put(1, '/dev/null', 'w');
      put(2, '/dev/null', 'w');
    } catch (error) {
      return giveUp(error);
    }
    try { closeSync(results); } catch { /* the code has closed it */ }
    say(`done ${id} ${end}`);
  };

  // From here on, nothing is hit. Returns whether nothing was to be.
  const settled = () => {
    store(shared, RUNNING, 0);
    while (load(shared, THROUGH) !== load(shared, ENDINGS)) { /* we are hit, or it comes through */ }
    return load(shared, ENDINGS) === heard;
  };

  const finish = (code) => {
    const mine = run;
    mine.end = code;
    if (settled()) {
      if (mine.whole) return conclude();
      // Node.js looks for rejections that nobody has caught when this turn is over, and they are told to whoever reads this run.
      return void later(() => { if (run === mine) conclude(); });
    }
    // An empty loop does not end us before we hear of the ending.
    hold();
  };

  const exitCode = () => run.exit ?? ((Whole(process.exitCode ?? 0) | 0) & 0xff);

  // What a program has left to be done at its end is done, once. It may think better of its code.
  const takeLeave = (code) => {
    if (!run.whole || run.left) return code;
    run.left = true;
    process.exitCode = code;
    try { process.emit('exit', code); } catch (error) {
      try { tellError(error); } catch { /* then its code says that it failed */ }
      return 1;
    }
    return exitCode();
  };

  // The code has come to its end, but perhaps not what it has begun.
  const linger = (mine) => {
    mine.isThrough = true;
    if (!mine.whole) return finish(exitCode());
    letGo();
    process.once('beforeExit', () => { if (run === mine) finish(takeLeave(exitCode())); });
    // Its loop may have been found empty before, which is not told twice unless something was in it.
    later(() => {});
  };

  // A program may wait at its top for what nothing in its loop can bring any more. Then Node.js ends it, with a code for that. What
  // others do when they hear of the empty loop, and what comes of that at once, is done before it is judged.
  const UNSETTLED = 13;
  const endIfUnsettled = (mine) => {
    letGo();
    process.once('beforeExit', () => soon(() => tick(() => {
      if (run !== mine || mine.isThrough) return;
      if (load(shared, ENDINGS) !== heard) return hold();
      const end = takeLeave(run.exit ?? process.exitCode ?? UNSETTLED);
      if (end === UNSETTLED) {
        try { writeAll(2, bytesOf('Warning: Detected unsettled top-level await\n')); } catch { /* nobody reads it */ }
      }
      finish(end);
    })));
  };

  const fail = (error, place) => {
    // What is being ended fails in all ways. It is told of when it is over.
    if (load(shared, ENDINGS) !== heard) return;
    try { tellError(error, place); } catch { /* then its code says that it failed */ }
    finish(takeLeave(error instanceof ProcessExit ? error.code : 1));
  };

  // A program ends here. It is not asked for anything more, and does nothing any more.
  const leave = (code) => {
    finish(takeLeave(code));
    for (;;) wait(shared, THROUGH, load(shared, THROUGH));
  };

  const ended = (serial, ending) => {
    heard = ending;
    if (run?.serial !== serial || !settled()) return;
    if (run.end === null) {
      renewStreams();
      tellError(new Error('interrupted'));
      run.end = 1;
    }
    conclude();
  };

  // What we ask becomes JSON, in which what code has given all objects for that is to have no say; while the code runs, it is there.
  const post = session.post.bind(session);
  const ask = (method, params, answered) => {
    const own = getOwnPropertyDescriptor(everything, 'toJSON');
    if (own && !own.configurable) throw new Error('what Object.prototype.toJSON has become lets nobody be asked for anything');
    let isAway = own ? delete everything.toJSON : false;
    const putBack = () => {
      if (isAway) defineProperty(everything, 'toJSON', own);
      isAway = false;
    };
    try {
      post(method, { __proto__: null, toJSON() { putBack(); return params; } }, answered);
    } finally {
      putBack();
    }
  };

  // What evaluate() answers with is a description; the value itself is handed over by one more call, to a function that was made
  // known before there was any code.
  let taken;
  let taker;
  globalThis.__glasshouse_take = (value) => { taken = value; };
  post('Runtime.evaluate', { expression: '__glasshouse_take' }, (failed, answer) => { taker = answer.result.objectId; });
  delete globalThis.__glasshouse_take;
  const take = (object) => {
    const argument = has(object, 'objectId') ? { __proto__: null, objectId: object.objectId }
      : has(object, 'unserializableValue') ? { __proto__: null, unserializableValue: object.unserializableValue }
      : { __proto__: null, value: object.value };
    const list = setPrototypeOf([argument], null);
    ask('Runtime.callFunctionOn', {
      __proto__: null, functionDeclaration: 'function (v) { this(v) }', arguments: list, objectId: taker,
    });
    const value = taken;
    taken = undefined;
    return value;
  };

  // Where code that is none goes wrong. What it lacks at its end is looked for in lines of ours that are behind it.
  const placeIn = (written, lineNumber, columnNumber) => {
    const text = trimmed(written);
    let last = 1;
    let from = 0;
    for (let at = placeOf(text, '\n'); at >= 0; at = placeOf(text, '\n', from)) {
      last += 1;
      from = at + 1;
    }
    return lineNumber < last ? `${lineNumber + 1}:${columnNumber + 1}` : `${last}:${text.length - from + 1}`;
  };

  // Whether somebody listens whom a program has for what it does not catch, and is told.
  const isCaught = (mine, error) => {
    if (!mine.whole || error instanceof ProcessExit || process.listenerCount('uncaughtException') < 2) return false;
    process.emit('uncaughtException', error, 'uncaughtException');
    return true;
  };

  const answered = (mine, written) => (failed, answer) => {
    if (run !== mine) return;
    try {
      if (failed) throw failed;
      if (has(answer, 'exceptionDetails')) {
        const { exception, text, lineNumber, columnNumber } = answer.exceptionDetails;
        const isNone = exception?.className === 'SyntaxError';
        const place = isNone ? `cell-${mine.serial}.js:${placeIn(written, lineNumber, columnNumber)}` : undefined;
        const error = exception ? take(exception) : new Error(text);
        return isCaught(mine, error) ? linger(mine) : fail(error, place);
      }
      const value = answer.result.type === 'undefined' ? undefined : take(answer.result);
      // A program is not asked for a value that it does not have yet.
      if (value !== undefined && !(mine.whole && isPromise(value))) {
        try { emit('value', bundle(value)); } catch (error) {
          // Nor does it fail by one that cannot be shown.
          if (!mine.whole) throw error;
        }
        try { globalThis._ = value; } catch { /* the code has its own */ }
      }
      linger(mine);
    } catch (error) {
      fail(error);
    }
  };

  const isCode = (text) => {
    try { return new Script(text) instanceof Script; } catch { return false; }
  };
  const BODY = '(async () => {';
  const asBody = (text) => `${BODY}${text}\n})()`;

  // V8 cannot `import()` from what is evaluated so, but we can: where the word is code, one as long takes its place, which is a
  // function of ours. It is code where V8 minds what is no word at all, which it does in no text and in no comment.
  const IMPORT = /\bimport(?=\s*\()/g;
  const IMPORTS_MAX = 100;
  const OUR_IMPORT = 'im$$rt';
  const NO_WORD = '@@@@@@';
  let importing = (specifier) => import(specifier);
  try { importing = eval('(specifier, options) => import(specifier, options)'); } catch { /* here it has no options */ }
  defineProperty(globalThis, OUR_IMPORT, { configurable: true, enumerable: false, writable: true, value: importing });
  const withImports = (text) => {
    let made = text;
    IMPORT.lastIndex = 0;
    for (let left = IMPORTS_MAX; left > 0; left -= 1) {
      const found = nextOf(IMPORT, text);
      if (!found || (left === IMPORTS_MAX && !isCode(asBody(text)))) break;
      const before = cut(text, 0, found.index);
      const behind = cut(text, IMPORT.lastIndex);
      if (!isCode(asBody(before + NO_WORD + behind))) made = cut(made, 0, found.index) + OUR_IMPORT + behind;
    }
    return made;
  };

  // A program in a file may return from it, and is then what it is to Node.js: the body of a function.
  const withReturn = (text, name) => {
    try {
      new Script(text);
      return text;
    } catch (error) {
      if (error.message !== 'Illegal return statement' || !isCode(asBody(text))) return text;
    }
    const map = maps.get(name);
    const lines = text.split('\n').length;
    const findEntry = (originalLine, at) => {
      if (originalLine >= lines) return { isOurs: true };
      const originalColumn = originalLine === 0 ? at - BODY.length : at;
      return map ? map.findEntry(originalLine, originalColumn) : { originalLine, originalColumn };
    };
    maps.set(name, { findEntry });
    return asBody(text);
  };

  const evaluate = (mine, code) => {
    const name = `cell-${mine.serial}.js`;
    let written = plain(code, name);
    // Which program it is for is said to those who start it, and is a remark in the body of a function.
    if (cut(written, 0, 2) === '#!') written = `//${cut(written, 2)}`;
    written = withImports(written);
    if (mine.whole) written = withReturn(written, name);
    ask('Runtime.evaluate', {
      __proto__: null,
      expression: `${written}\n//# sourceURL=${name}`,
      replMode: true, awaitPromise: true, userGesture: false, objectGroup: 'run', silent: true,
    }, answered(mine, written));
  };

  // A program is asked whether it is one, and is to say yes.
  const beMain = () => {
    const Module = require('module');
    const main = new Module('.', null);
    main.paths = Module._nodeModulePaths(process.cwd());
    for (const [name, value] of [['module', main], ['exports', main.exports]]) {
      defineProperty(globalThis, name, { configurable: true, enumerable: false, writable: true, value });
    }
    defineProperty(globalThis.require, 'main', { configurable: true, enumerable: true, writable: true, value: main });
  };

  const takeOver = ({ serial, id, fed, dir, whole }) => {
    const code = readFileSync(codePath, 'utf8');
    put(0, fed ? `${dir}/0` : '/dev/null', 'r');
    put(1, `${dir}/1`, 'w');
    put(2, `${dir}/2`, 'w');
    const results = openSync(`${dir}/3`, 'w');
    run = { __proto__: null, serial, id, results, end: null, exit: null, isThrough: false, left: false, whole };
    stdin = null;
    if (whole) beMain();
    try { writeFileSync('/proc/self/clear_refs', '5'); } catch { /* then the peak is the context's */ }
    return code;
  };

  const start = (handed) => {
    let code;
    try { code = takeOver(handed); } catch (error) { return giveUp(error); }
    const mine = run;
    say(`begun ${mine.id}`);
    store(shared, RUNNING, mine.serial);
    try {
      if (load(shared, ENDINGS) === heard) evaluate(mine, code);
      if (settled() && mine.whole && run === mine) endIfUnsettled(mine);
    } catch (error) {
      if (run === mine) fail(error);
    }
  };

  process.on('SIGINT', () => {}); // Who means us tells the listener.
  for (const event of ['uncaughtException', 'unhandledRejection']) {
    process.on(event, (error) => {
      // What it has somebody for is his.
      if (run?.whole && process.listenerCount(event) > 1) return;
      if (run?.whole && process.listenerCount('uncaughtException') > 1) return void process.emit('uncaughtException', error, event);
      // A program ends by what it does not catch, and a context outlives it.
      if ((run?.whole || error instanceof ProcessExit) && run?.end === null) return fail(error);
      try { writeSync(2, `${shown(error)}\n`); } catch { /* nobody reads it */ }
    });
  }

  // What we begin with as stdin is where the code of each run is written, so that it needs no room in any file.
  const codePath = `/proc/self/fd/${openSync('/proc/self/fd/0', 'r')}`;
  put(0, '/dev/null', 'r');
  put(1, '/dev/null', 'w');
  put(2, '/dev/null', 'w');
  renewStreams();
  let stdin = null;
  defineProperty(process, 'stdin', {
    configurable: true,
    get: () => (stdin ??= createReadStream('', { fd: 0, autoClose: false })),
  });

  const listen = () => {
    const { Socket } = require('net');
    const { Session } = require('inspector');
    const { parentPort, workerData: { shared, RUNNING, ENDINGS, THROUGH } } = require('worker_threads');
    // Node.js waits for whoever is connected before it ends, and says so on stderr: nobody is for longer than he is needed.
    const ask = (method) => new Promise((answered) => {
      const session = new Session();
      session.connectToMainThread();
      session.post(method, () => { session.disconnect(); answered(); });
    });
    let serial = 0;
    let latest;
    let busy = false;
    const interrupt = async (mine) => {
      busy = true;
      const ending = Atomics.add(shared, ENDINGS, 1) + 1;
      if (Atomics.load(shared, RUNNING) === mine) {
        // The answer comes when it has ended, without having said so.
        await ask('Runtime.terminateExecution');
        Atomics.store(shared, RUNNING, 0);
      }
      busy = false;
      Atomics.store(shared, THROUGH, ending);
      parentPort.postMessage({ ended: mine, ending });
    };
    const words = {
      run: (id, fed, dir, whole) => {
        serial += 1;
        latest = id;
        parentPort.postMessage({ serial, id, fed: fed === '1', dir, whole: whole === 'whole' });
      },
      interrupt: (id) => { if (id === latest && !busy) interrupt(serial); },
    };
    const line = new Socket({ fd: 3, readable: true, writable: false });
    let inbox = '';
    line.setEncoding('utf8');
    line.on('data', (text) => {
      inbox += text;
      for (let end = inbox.indexOf('\n'); end >= 0; end = inbox.indexOf('\n')) {
        const [word, ...rest] = inbox.slice(0, end).split(' ');
        inbox = inbox.slice(end + 1);
        words[word](...rest);
      }
    });
    line.on('close', () => process.kill(process.pid, 'SIGKILL'));
    parentPort.postMessage({ hello: true });
  };

  const listener = new Worker(`(${listen})()`, {
    eval: true, env: SHARE_ENV, execArgv: [], workerData: { shared, RUNNING, ENDINGS, THROUGH },
  });
  const [hold, letGo] = [listener.ref.bind(listener), listener.unref.bind(listener)];
  const version = process.version.slice(1);
  // Not by a way that code can replace for all who listen to anything.
  const pass = listener.emit.bind(listener);
  defineProperty(listener, 'emit', {
    value: (event, message) => {
      if (event !== 'message') return pass(event, message);
      if (has(message, 'hello')) say(`hello ${version}`);
      else if (has(message, 'ended')) ended(message.ended, message.ending);
      else start(message);
      return true;
    },
  });
})();
