//! Those who read a box's output: terminals that obey escape sequences, and programs that read JSON. (6.5: 131, 134;
//! 6.1: 53.)

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use glasshouse_linux::rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

use crate::attacker::{Attacker, PROBE};

/// What a terminal would act on: clipboard, title, answers typed for the user, links, downloads, modes, resets.
const SEQUENCES: [&[u8]; 22] = [
    b"\x1b]52;c;ZXZpbA==\x07",
    b"\x1b]52;c;?\x1b\\",
    b"\x1b]0;title\x07",
    b"\x1b]2;title\x1b\\",
    b"\x1b]8;;file:///etc/passwd\x1b\\here\x1b]8;;\x1b\\",
    b"\x1b]1337;File=name=x:AAAA\x07",
    b"\x1b]777;notify;a;b\x07",
    b"\x1b[6n",
    b"\x1b[c",
    b"\x1b[>q",
    b"\x1b[21t",
    b"\x1b[2J\x1b[H",
    b"\x1b[?1049h",
    b"\x1b[?2004l",
    b"\x1b[>4;2m",
    b"\x1bP$qm\x1b\\",
    b"\x1b_Gi=1;AAAA\x1b\\",
    b"\x1b^privacy\x1b\\\x1bXstring\x1b\\",
    b"\x1bc\x1b#8\x1b(0",
    b"\x9b6n\x9d0;t\x9c\x90x\x9c",
    b"\xc2\x9b6n\xc2\x9d0;t\xc2\x9c",
    b"\x05\x07\x0e\x0f\x11\x13\x7f\x1b",
];

/// As a word for `printf` of the shell.
fn printf(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\{byte:03o}")).collect()
}

/// What of a command comes out on a terminal: stdout and stderr both.
fn on_terminal(mut command: Command) -> Vec<u8> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal is free");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("it is ours");
    let name = ptsname(&master, Vec::new()).expect("it has a name");
    let slave =
        File::options().read(true).write(true).open(name.to_str().expect("it is text")).expect("it is ours");
    let copy = slave.try_clone().expect("a descriptor is free");
    let mut child =
        command.stdin(Stdio::null()).stdout(slave).stderr(copy).spawn().expect("it can be started");
    // As long as we hold the other end, too, there is no end.
    drop(command);
    let (mut master, mut shown) = (File::from(master), Vec::new());
    // The end of a terminal is an error.
    let _ = master.read_to_end(&mut shown);
    child.wait().expect("it was started");
    shown
}

/// Text and colours, and nothing else that a terminal would act on.
fn assert_harmless(shown: &[u8], of: &str) {
    let text = std::str::from_utf8(shown).unwrap_or_else(|e| panic!("{of}: {e}: {}", shown.escape_ascii()));
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_control() && !"\n\r\t\u{8}".contains(c)) {
        let colour = rest[at..]
            .strip_prefix("\x1b[")
            .map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || ";:".contains(c)));
        let after = colour.and_then(|rest| rest.strip_prefix('m'));
        rest = after.unwrap_or_else(|| panic!("{of}: {:?}", &rest[at..]));
    }
}

#[test]
fn escape_sequences_do_not_reach_the_terminal() {
    for attacker in Attacker::each_mode(&[]) {
        let all: String = SEQUENCES.iter().map(|bytes| format!("A{}Z\\n", printf(bytes))).collect();
        for to in ["", " >&2"] {
            let line = format!("printf '{all}'{to}");
            let shown = on_terminal(attacker.house.glass(&["exec", &attacker.id, "--shell", "--", &line]));
            assert_harmless(&shown, &attacker.name());
            assert_eq!(
                shown.iter().filter(|&&byte| byte == b'A').count(),
                22 + 8 + 1,
                "{}",
                shown.escape_ascii()
            );
            let shown = on_terminal(attacker.house.glass(&["run", "--shell", "--", &line]));
            assert_harmless(&shown, &attacker.name());
        }
        // Later, and by others.
        let exec = attacker.exec(&["--background", "--shell"], &[&format!("printf '{all}'")]).text();
        let shown = on_terminal(attacker.house.glass(&["attach", &attacker.id, exec.trim()]));
        assert_harmless(&shown, "attach");
        assert!(shown.contains(&b'A'));
        for args in [
            &["log", &attacker.id][..],
            &["log", &attacker.id, "--json"],
            &["ps", &attacker.id],
            &["ps", &attacker.id, "--json"],
            &["trajectory", "export", &attacker.id],
            &["trajectory", "export", &attacker.id, "--format", "atif"],
        ] {
            assert_harmless(&on_terminal(attacker.house.glass(args)), args[0]);
        }
        // What answers from the record says it to whoever asks.
        let (_, trajectory, _) = attacker.house.run(&["trajectory", "export", &attacker.id]);
        let trajectory: Value = serde_json::from_str(&trajectory).expect("it is JSON");
        let step = &trajectory["steps"][0];
        let asked = attacker.house.path().join("asked");
        let request = serde_json::json!({ "tool": step["tool"], "params": step["params"] });
        std::fs::write(&asked, format!("{request}\n")).expect("the house is ours");
        let line = "\"$0\" replay --of \"$1\" --mode serve < \"$2\"";
        let glass = attacker.house.glass(&[]);
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", line]).arg(glass.get_program()).arg(&attacker.id).arg(&asked).env_clear();
        shell.env("GLASSHOUSE_HOME", attacker.house.home());
        let shown = on_terminal(shell);
        assert_harmless(&shown, "serve");
        assert!(shown.contains(&b'A'), "{}", shown.escape_ascii());
    }
}

#[test]
fn sequences_that_come_in_pieces_are_held_back_too() {
    for attacker in Attacker::each_mode(&[]) {
        for sequence in [&b"\x1b]0;title\x07"[..], b"\x1b[6n", b"\xc2\x9b6n", b"\x1bP+q\x1b\\"] {
            let pieces: Vec<String> =
                sequence.iter().map(|&byte| format!("printf '{}'", printf(&[byte]))).collect();
            // A breath between them, so that they are read one by one; and each byte from the other stream.
            let slowly = pieces.join("; sleep 0.02; ");
            let both = pieces
                .iter()
                .enumerate()
                .map(|(n, piece)| format!("{piece} >&{}", n % 2 + 1))
                .collect::<Vec<_>>()
                .join("; sleep 0.02; ");
            for line in [slowly, both] {
                let shown =
                    on_terminal(attacker.house.glass(&["exec", &attacker.id, "--shell", "--", &line]));
                assert_harmless(&shown, &attacker.name());
            }
        }
    }
}

#[test]
fn words_of_ours_carry_no_sequences_of_theirs() {
    let evil = "\x1b]0;title\x07\u{9b}6n\nnew line";
    for attacker in Attacker::each_mode(&[]) {
        attacker.sh(&format!("mkdir -p \"$(printf '{}')/f\"", printf(evil.as_bytes()))).text();
        let inside = format!("{}:/tmp/{evil}", attacker.id);
        let missing = format!("{}:/tmp/{evil}/none", attacker.id);
        let label = format!("evil={evil}");
        for args in [
            &["exec", &attacker.id, "--", evil][..],
            &["exec", &attacker.id, "--cwd", evil, "--", "true"],
            &["exec", &attacker.id, "--user", evil, "--", "true"],
            &["exec", evil, "--", "true"],
            &["info", evil],
            &["attach", &attacker.id, evil],
            &["cp", &inside, "/proc/nowhere"],
            &["cp", &missing, "/tmp"],
            &["cp", evil, &inside],
            &["kill", evil],
            &["log", evil],
            &["create", "--name", evil],
            &["create", "--image", evil],
            &["create", "--label", &label],
            &["list"],
            &["list", "--json"],
            &["ps", &attacker.id],
            &["log", &attacker.id],
        ] {
            assert_harmless(&on_terminal(attacker.house.glass(args)), &format!("{args:?}"));
        }
    }
}

#[test]
fn with_raw_and_to_a_pipe_bytes_are_what_they_are() {
    for attacker in Attacker::each_mode(&[]) {
        for sequence in SEQUENCES {
            let line = format!("printf '{}'", printf(sequence));
            let output = attacker
                .house
                .glass(&["exec", &attacker.id, "--shell", "--", &line])
                .output()
                .expect("it runs");
            assert_eq!(output.stdout, sequence, "{}", attacker.name());
        }
        let sequence = SEQUENCES.concat();
        let line = format!("printf '{}'", printf(&sequence));
        let shown =
            on_terminal(attacker.house.glass(&["exec", &attacker.id, "--raw", "--shell", "--", &line]));
        assert_eq!(
            shown.escape_ascii().to_string(),
            sequence.escape_ascii().to_string(),
            "{}",
            attacker.name()
        );
    }
}

fn base64(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits: Vec<u32> = text
        .bytes()
        .filter(|&byte| byte != b'=')
        .map(|byte| ALPHABET.iter().position(|&letter| letter == byte).expect("base64") as u32)
        .collect();
    let quad = |four: &[u32]| {
        let bits = four.iter().enumerate().fold(0, |bits, (n, digit)| bits | digit << (18 - 6 * n));
        bits.to_be_bytes()[1..four.len()].to_vec()
    };
    digits.chunks(4).flat_map(quad).collect()
}

#[test]
fn base64_is_read_as_it_is_written() {
    assert_eq!(
        [base64("Zm9v"), base64("Zm8="), base64("/wA="), base64("")],
        [&b"foo"[..], b"fo", b"\xff\0", b""]
    );
}

#[test]
fn any_output_is_one_line_of_json_that_tells_it_all() {
    let outputs: [&[u8]; 12] = [
        b"line\nline\r\n\n",
        b"\"},\n{\"exit\":{\"kind\":\"code\",\"code\":0}}\n",
        "\u{2028}\u{2029}\u{85}\u{feff}\u{202e}\u{e0041}".as_bytes(),
        b"\xed\xa0\x80 lone, \xed\xb0\x80 low",
        b"nul\0nul\0",
        b"\xff\xfe\xc0\xaf\x80",
        b"\xe2\x82",
        b"cut \xf0\x9f\x98",
        b"\\u0000 \\n \\\" \\",
        b"</script><!-- ]]> \x1b]0;t\x07 \x9b6n",
        b"\xf4\x90\x80\x80\xf8\x88\x80\x80\x80",
        b"",
    ];
    for attacker in Attacker::each_mode(&[]) {
        for bytes in outputs {
            let line = format!("printf '{0}'; printf '{0}' >&2", printf(bytes));
            let output =
                attacker.house.glass(&["exec", &attacker.id, "--json", "--shell", "--", &line]).output();
            let output = output.expect("it runs");
            let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
            assert_eq!(text.lines().count(), 1, "{text}");
            assert!(
                text.ends_with('\n') && !text.contains(['\u{2028}', '\u{2029}', '\u{85}', '\x1b', '\0']),
                "{text:?}"
            );
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert_eq!((&value["exit"]["kind"], &value["exit"]["code"]), (&"code".into(), &0.into()));
            for stream in ["stdout", "stderr"] {
                let said = value[stream].as_str().expect("it is text");
                let told = match value[format!("{stream}_encoding")].as_str() {
                    Some("utf-8") => said.as_bytes().to_vec(),
                    Some("base64") => base64(said),
                    other => panic!("{other:?}: {text}"),
                };
                assert_eq!(told.escape_ascii().to_string(), bytes.escape_ascii().to_string(), "{text}");
            }
        }
        // The record has a line for each event, whatever was in it.
        let log = attacker.glass(&["log", &attacker.id, "--json"]).text();
        for line in log.lines() {
            serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        }
        assert!(log.lines().count() > outputs.len(), "{log}");
        attacker.glass(&["log", &attacker.id, "--verify"]).text();
    }
}

#[test]
fn names_and_labels_stay_inside_their_json() {
    for attacker in Attacker::each_mode(&[]) {
        let label = "k=\"}\n{\"id\":\"evil\"}\u{2028}";
        let made = attacker.glass(&["create", "--label", label]);
        for args in
            [&["list", "--json"][..], &["ps", &attacker.id, "--json"], &["info", made.out.trim(), "--json"]]
        {
            let ran = attacker.glass(args);
            assert_eq!(ran.out.lines().count(), usize::from(ran.code == 0), "{args:?}: {ran:?}");
        }
        attacker.glass(&["kill", made.out.trim()]);
    }
}

#[test]
fn cannot_type_into_ones_own_terminal() {
    for attacker in Attacker::everywhere() {
        let ran = attacker.exec(&["-t"], &[PROBE, "act", "type"]);
        assert_eq!(ran.out.trim(), "TIOCSTI: EPERM", "{}: {ran:?}", attacker.name());
        let ran = attacker.exec(&["-t"], &["tty"]);
        assert!(ran.out.starts_with("/dev/pts/"), "{}: {ran:?}", attacker.name());
    }
}
