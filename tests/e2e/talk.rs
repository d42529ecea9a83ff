//! `glass repl` as people use it: at a terminal, with its keys.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use glasshouse_tests::{House, Mode};

use crate::create;

/// Runs a program at a terminal of its own, which our pipes are the other end of.
const AT_TERMINAL: &str = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";
/// Longer than anything that a terminal shows takes to appear.
const SHOWN_MAX: Duration = Duration::from_secs(60);

/// What the editor tells the terminal when it begins and ends: how pasted text is marked.
const EDITOR_BEGINS: &str = "\x1b[?2004h";
const EDITOR_ENDS: &str = "\x1b[?2004l";

const UP: &str = "\x1b[A";
const ENTER: &str = "\r";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

/// A program at a terminal.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    shown: Receiver<Vec<u8>>,
    /// What was shown since what was last waited for.
    rest: String,
}

impl Terminal {
    fn new(command: &Command) -> Terminal {
        let mut child = Command::new("/usr/bin/python3");
        child.args(["-c", AT_TERMINAL]).arg(command.get_program()).args(command.get_args()).env_clear();
        child.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("TERM", "xterm");
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("there is Python");
        let (keys, mut screen) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let (sender, shown) = channel();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut piece) {
                if sender.send(piece[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { child, keys, shown, rest: String::new() }
    }

    fn type_keys(&mut self, keys: &[&str]) {
        self.keys.write_all(keys.concat().as_bytes()).expect("it listens");
    }

    /// Types what the editor then takes for a whole piece, when it waits for one: what is typed earlier is not its own.
    fn say(&mut self, keys: &[&str]) {
        self.wait_for(EDITOR_BEGINS);
        self.wait_for(">>> ");
        self.type_keys(keys);
        self.wait_for(EDITOR_ENDS);
    }

    /// Waits until this is shown.
    fn wait_for(&mut self, text: &str) {
        loop {
            if let Some(at) = self.rest.find(text) {
                self.rest.drain(..at + text.len());
                return;
            }
            match self.shown.recv_timeout(SHOWN_MAX) {
                Ok(piece) => self.rest += &String::from_utf8_lossy(&piece),
                Err(e) => panic!("{text:?} is not shown ({e}): {:?}", self.rest),
            }
        }
    }

    fn end(mut self) {
        self.say(&[CTRL_D]);
        assert!(self.child.wait().expect("it was started").success(), "{:?}", self.rest);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A test that failed must not leave it behind. What it runs ends with its terminal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_person_talks_with_a_context_at_a_terminal() {
    let house = House::new(Mode::all()[0]);
    let id = create(&house, &[]);
    let mut terminal = Terminal::new(&house.glass(&["repl", &id]));
    terminal.wait_for("Ctrl-D ends");
    // Several lines are one piece, which an empty line ends.
    terminal.say(&["def f(n):", ENTER, "    return n * 2", ENTER, ENTER]);
    terminal.say(&["f(21)", ENTER]);
    terminal.wait_for("\n42\r\n");
    // What was said is recalled and changed.
    terminal.say(&[UP, " + 1", ENTER]);
    terminal.wait_for("\n43\r\n");
    // Lines that are not finished can be given up.
    terminal.say(&["[1,", ENTER, CTRL_C]);
    terminal.say(&["f(5)", ENTER]);
    terminal.wait_for("\n10\r\n");
    // What runs is interrupted, and all that was said before is remembered.
    terminal.say(&["def g():", ENTER, "    print('o' + 'n')", ENTER, "    while True: pass", ENTER, ENTER]);
    terminal.say(&["g()", ENTER]);
    terminal.wait_for("\non\r\n");
    terminal.type_keys(&[CTRL_C]);
    terminal.wait_for("KeyboardInterrupt");
    terminal.say(&["f(50)", ENTER]);
    terminal.wait_for("\n100\r\n");
    terminal.end();

    // A later session has another context, and the same history.
    let mut terminal = Terminal::new(&house.glass(&["repl", &id]));
    terminal.say(&[UP, ENTER]);
    terminal.wait_for("NameError: name 'f' is not defined");
    terminal.end();
}

/// Between the end of what code wrote and the prompt is the end of a line, one and no more.
#[test]
fn a_prompt_begins_a_line_of_its_own() {
    let house = House::new(Mode::all()[0]);
    let id = create(&house, &[]);
    for (lang, prompt, half, whole) in [
        ("python", ">>> ", "print('ha' + 'lf', end='')", "print('who' + 'le')"),
        ("js", "js> ", "process.stdout.write('ha' + 'lf'); void 0", "console.log('who' + 'le')"),
        ("bash", "$ ", "printf ha; printf lf", "echo 'who''le'"),
    ] {
        let mut terminal = Terminal::new(&house.glass(&["repl", &id, "--lang", lang]));
        terminal.wait_for(EDITOR_BEGINS);
        for (said, shown) in [(half, "half"), (whole, "whole")] {
            terminal.wait_for(prompt);
            terminal.type_keys(&[said, ENTER]);
            terminal.wait_for(EDITOR_ENDS);
            terminal.wait_for(&format!("{shown}\r\n{EDITOR_BEGINS}"));
        }
        terminal.wait_for(prompt);
        terminal.type_keys(&[CTRL_D]);
        assert!(terminal.child.wait().expect("it was started").success(), "{:?}", terminal.rest);
    }
}

#[test]
fn code_asks_whoever_sits_at_the_terminal() {
    let house = House::new(Mode::all()[0]);
    let id = create(&house, &[]);
    let mut terminal = Terminal::new(&house.glass(&["repl", &id]));
    terminal.say(&["name = input('na' + 'me? ')", ENTER]);
    terminal.wait_for("name? ");
    terminal.type_keys(&["Bob", ENTER]);
    // The answer has ended the line, so that nobody else has to.
    terminal.wait_for(&format!("Bob\r\n{EDITOR_BEGINS}"));
    terminal.wait_for(">>> ");
    terminal.type_keys(&["[input(), input(), name]", ENTER]);
    terminal.wait_for(EDITOR_ENDS);
    terminal.type_keys(&["one", ENTER, "two", ENTER]);
    terminal.wait_for("['one', 'two', 'Bob']\r\n");
    // The end of its input is not the end of the talk.
    terminal.say(&["input('mo' + 're? ')", ENTER]);
    terminal.wait_for("more? ");
    terminal.type_keys(&[CTRL_D]);
    terminal.wait_for("EOFError");
    // Nor is an interrupt.
    terminal.say(&["input('la' + 'st? ')", ENTER]);
    terminal.wait_for("last? ");
    terminal.type_keys(&[CTRL_C]);
    terminal.wait_for("KeyboardInterrupt");
    terminal.say(&["name", ENTER]);
    terminal.wait_for("\n'Bob'\r\n");
    terminal.end();
}
