//! A trace as one page that needs nothing else: no script, no font, no address.
//!
//! What a box wrote is hostile to whoever opens the page, too. So everything recorded is escaped, the page forbids
//! itself to load or run anything, and what folds away does so without a script. Of what code shows, PNG and JPEG are drawn.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::text::{plain, quoted};
use super::texts::Texts;
use super::words;
use crate::blobs::Blobs;
use crate::changes::FileChange;
use crate::error::Result;
use crate::event::{BoxCreated, ContextChange, Event, ExecStarted, Step, StepState};
use crate::limits::{PAGE_BYTES_MAX, PAGE_CHANGES_MAX, PAGE_PICTURES_BYTES_MAX};
use crate::line::Line;
use crate::payload::Payload;
use glasshouse_protocol::{Code, CodeResult, ExitReport, MimeBundle, Program};

const HEAD: &str = r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
"#;

const STYLE: &str = include_str!("page.css");
/// Pictures that a browser draws.
const PICTURES: [&str; 2] = ["image/png", "image/jpeg"];

/// Writes the page. A line that cannot be read is shown as that.
pub fn page(
    lines: &mut dyn Iterator<Item = Result<Line>>,
    blobs: &Blobs,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut page = Page { blobs, out, open: BTreeMap::new(), texts: Texts::default(), start_ms: None };
    for line in lines {
        match line {
            Ok(line) => page.line(&line)?,
            Err(e) => page.note("bad", "", &format!("cannot {}", e.with_source()))?,
        }
    }
    page.end()
}

/// A command that was started, and whose step or end is still to come.
struct Running {
    started: ExecStarted,
    ended: Option<(ExitReport, Payload, Payload)>,
    results: Option<Payload>,
}

struct Page<'a> {
    blobs: &'a Blobs,
    out: &'a mut dyn Write,
    open: BTreeMap<u64, Running>,
    texts: Texts,
    start_ms: Option<u64>,
}

impl Page<'_> {
    fn line(&mut self, line: &Line) -> io::Result<()> {
        let first = self.start_ms.is_none();
        let start_ms = *self.start_ms.get_or_insert(line.time_ms);
        if first {
            self.begin(line)?;
        }
        let time = words::since(line.time_ms.saturating_sub(start_ms));
        match &line.event {
            Event::BoxCreated(created) if first => self.created(created),
            Event::BoxCreated(created) => self.note("", &time, &format!("box {}", created.id)),
            Event::ExecStarted(started) => {
                let running = Running { started: started.clone(), ended: None, results: None };
                self.open.insert(started.exec, running);
                Ok(())
            }
            Event::ExecEnded { exec, report, stdout, stderr } => match self.open.get_mut(exec) {
                Some(running) => {
                    running.ended = Some((report.clone(), stdout.clone(), stderr.clone()));
                    Ok(())
                }
                None => self.note("", &time, &format!("command {exec}: {}", words::end(report))),
            },
            Event::Step(step) => self.step(&time, step),
            Event::Stdin { exec, payload } => {
                self.flush(Some(*exec), &time)?;
                let text = format!("command {exec} was fed {}", words::bytes(payload.bytes_total));
                self.note("", &time, &text)
            }
            Event::Results { exec, payload } => {
                self.results(*exec, payload);
                Ok(())
            }
            Event::Context(change) => self.context(&time, change),
            Event::Signal { exec, signal } => {
                self.note("", &time, &format!("command {exec} was sent {}", words::signal(*signal)))
            }
            Event::File(file) => {
                self.flush(None, &time)?;
                let size = file.bytes.map(|n| format!(", {}", words::bytes(n))).unwrap_or_default();
                let error = file.error.as_ref().map(|e| format!(": {e}")).unwrap_or_default();
                let class = if file.error.is_some() { "bad" } else { "" };
                self.note(class, &time, &format!("file {} {}{size}{error}", file.op, file.path))
            }
            Event::State { what, snapshot, method, step } => {
                self.flush(None, &time)?;
                self.texts.state(what);
                let step = step.map(|step| format!("step {step}"));
                let words = [Some(what), snapshot.as_ref(), method.as_ref(), step.as_ref()];
                let text: Vec<&str> = words.into_iter().flatten().map(String::as_str).collect();
                self.note("state", &time, &text.join(" "))
            }
            Event::Base(base) => self.note("", &time, &format!("begins with {}", base.digest)),
            Event::BoxEnded { why } => {
                self.flush(None, &time)?;
                self.note("state", &time, &format!("box ended: {why}"))
            }
            Event::Lost { events: 0, why, .. } => self.note("bad", &time, &format!("WITHHELD {why}")),
            Event::Lost { events, bytes, why } => {
                let text =
                    format!("LOST {} events with {}: {why}", words::grouped(*events), words::bytes(*bytes));
                self.note("bad", &time, &text)
            }
            Event::Repaired { dropped_bytes } => {
                let text =
                    format!("repaired: {} of an unfinished record dropped", words::bytes(*dropped_bytes));
                self.note("bad", &time, &text)
            }
            Event::Unknown(event) => {
                self.note("", &time, &format!("not known to this version: {}", event.kind))
            }
        }
    }

    fn results(&mut self, exec: u64, payload: &Payload) {
        if let Some(running) = self.open.get_mut(&exec) {
            running.results = Some(payload.clone());
        }
    }

    fn context(&mut self, time: &str, change: &ContextChange) -> io::Result<()> {
        self.note("", time, &format!("context {}: {}", change.context, change.what))
    }

    fn begin(&mut self, line: &Line) -> io::Result<()> {
        let id = match &line.event {
            Event::BoxCreated(created) => created.id.as_str(),
            _ => "a box",
        };
        let title = escaped(&plain(id.as_bytes()));
        self.out.write_all(HEAD.as_bytes())?;
        writeln!(
            self.out,
            "<title>{title} · Glasshouse</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>"
        )
    }

    fn created(&mut self, created: &BoxCreated) -> io::Result<()> {
        let BoxCreated { id, name, runtime, level, image, limits, labels, env_names, .. } = created;
        let BoxCreated { user, cwd, read_only, uncontrolled, .. } = created;
        let name = name.as_ref().map(|name| format!(" <small>{}</small>", text(name))).unwrap_or_default();
        writeln!(self.out, "<header><h1>{}{name}</h1>", text(id))?;
        writeln!(
            self.out,
            "<p><b>{}</b> · isolation <b>{}</b> · image <b>{}</b></p><dl>",
            text(runtime),
            text(level),
            text(image)
        )?;
        for (name, limit) in limits {
            let value = match name.strip_suffix("_bytes") {
                Some(_) => words::size(limit.value),
                None => words::grouped(limit.value),
            };
            let mechanism = text(&limit.mechanism);
            writeln!(self.out, "<dt>{}</dt><dd>{value} <small>{mechanism}</small></dd>", text(name))?;
        }
        let root = read_only.then(|| "read-only".to_owned());
        for (name, value) in [("user", user), ("directory", cwd), ("root", &root)] {
            if let Some(value) = value {
                writeln!(self.out, "<dt>{name}</dt><dd>{}</dd>", text(value))?;
            }
        }
        for (name, value) in labels {
            writeln!(self.out, "<dt>{}</dt><dd>{}</dd>", text(name), text(value))?;
        }
        if !env_names.is_empty() {
            writeln!(self.out, "<dt>variables</dt><dd>{}</dd>", text(&env_names.join(" ")))?;
        }
        for what in uncontrolled {
            writeln!(self.out, "<dt>not controlled</dt><dd>{}</dd>", text(what))?;
        }
        writeln!(self.out, "</dl></header>\n<ol>")
    }

    /// Shows commands that ended without a step of their own, but not this one.
    fn flush(&mut self, but: Option<u64>, time: &str) -> io::Result<()> {
        let ready = |(exec, running): (&u64, &Running)| {
            (running.ended.is_some() && Some(*exec) != but).then_some(*exec)
        };
        let ready: Vec<u64> = self.open.iter().filter_map(ready).collect();
        for exec in ready {
            if let Some(running) = self.open.remove(&exec) {
                self.item(time, None, Some(running))?;
            }
        }
        Ok(())
    }

    fn step(&mut self, time: &str, step: &Step) -> io::Result<()> {
        self.flush(step.exec, time)?;
        let running = step.exec.and_then(|exec| self.open.remove(&exec));
        self.item(time, Some(step), running)
    }

    /// One step, or one command that was none.
    fn item(&mut self, time: &str, step: Option<&Step>, running: Option<Running>) -> io::Result<()> {
        let report = running.as_ref().and_then(|running| running.ended.as_ref().map(|(report, ..)| report));
        let tool = step.and_then(|step| step.tool.as_deref());
        let failed = match (step.and_then(|step| step.exit_code), report) {
            (Some(code), _) => code != 0,
            (None, Some(report)) => !report.exit.success(),
            (None, None) => false,
        };
        let class = if failed { "failed" } else { "fine" };
        let number = step.map(|step| format!("<b>{}</b>", step.step)).unwrap_or_default();
        writeln!(
            self.out,
            "<li class=\"{class}\"><div class=\"head\">{number}<time>{}</time>",
            escaped(time)
        )?;
        if let Some(tool) = tool {
            write!(self.out, "<span class=\"tool\">{}</span>", text(tool))?;
        }
        if let Some(running) = &running {
            write!(self.out, "<code>{}</code>", command(&running.started))?;
        }
        let how = match (report, step) {
            (Some(report), _) => words::end(report),
            (None, Some(step)) => match step.exit_code {
                Some(code) => format!("exit {code}, {}", words::duration(step.wall_us)),
                None => words::duration(step.wall_us),
            },
            (None, None) => "runs on".to_owned(),
        };
        writeln!(self.out, "<span class=\"end\">{}</span></div>", text(&how))?;
        if let Some(step) = step {
            self.payload("params", "asked for", step.params.as_ref())?;
            if let Some(error) = &step.error {
                writeln!(self.out, "<p class=\"error\">{}</p>", text(error))?;
            }
        }
        let shown = running.as_ref().and_then(|running| running.ended.as_ref());
        match (step.and_then(|step| step.output.as_ref()), shown) {
            (Some(output), _) => self.payload("out", "output", Some(output))?,
            (None, Some((_, stdout, stderr))) => {
                self.payload("out", "stdout", Some(stdout))?;
                self.payload("err", "stderr", Some(stderr))?;
                let results = running.as_ref().and_then(|running| running.results.as_ref());
                if let Some(results) = results {
                    self.told(results)?;
                }
            }
            (None, None) => {}
        }
        if let Some(state) = step.and_then(|step| step.state.as_ref()) {
            self.state(state)?;
        } else if let Some(why) = step.and_then(|step| step.no_state.as_ref()) {
            writeln!(self.out, "<p class=\"faint\">files not looked at: {}</p>", text(why))?;
        }
        writeln!(self.out, "</li>")
    }

    fn state(&mut self, state: &StepState) -> io::Result<()> {
        let summary = text(&words::state(state));
        if state.changed == 0 {
            return writeln!(self.out, "<p class=\"faint\">{summary}</p>");
        }
        writeln!(self.out, "<details class=\"files\"><summary>{summary}</summary><ul>")?;
        let changes = state.changes.as_ref().map(|list| FileChange::read(list, self.blobs)).transpose();
        let changes = match changes {
            Ok(changes) => changes.unwrap_or_default(),
            Err(e) => {
                writeln!(self.out, "<li class=\"bad\">cannot {}</li>", text(&e.with_source()))?;
                Vec::new()
            }
        };
        for change in changes.iter().take(PAGE_CHANGES_MAX) {
            self.change(change)?;
        }
        let hidden = state.changed.saturating_sub(changes.len().min(PAGE_CHANGES_MAX) as u64);
        if hidden > 0 {
            writeln!(self.out, "<li class=\"faint\">… {} more paths</li>", words::grouped(hidden))?;
        }
        writeln!(self.out, "</ul></details>")
    }

    fn change(&mut self, change: &FileChange) -> io::Result<()> {
        let letter = change.change.letter();
        let facts = change.now.as_ref().map(|now| {
            let size =
                if now.kind == "file" { format!(", {}", words::bytes(now.bytes)) } else { String::new() };
            format!("{} {} {}:{}{size}", now.kind, now.mode, now.uid, now.gid)
        });
        let facts = text(&facts.unwrap_or_default());
        let path = text(&change.path);
        let now = change.now.as_ref().and_then(|now| now.text.as_deref());
        let line = format!("<i class=\"{letter}\">{letter}</i> {path} <small>{facts}</small>");
        match (now, self.texts.turn(change)) {
            (Some(_), Some((before, now))) => {
                writeln!(self.out, "<li><details><summary>{line}</summary><pre>")?;
                self.differences(&before, &now)?;
                writeln!(self.out, "</pre></details></li>")?;
            }
            (Some(now), None) => {
                writeln!(self.out, "<li><details><summary>{line}</summary><pre>")?;
                for line in clipped(now).lines() {
                    writeln!(self.out, "{}", text(line))?;
                }
                writeln!(self.out, "</pre></details></li>")?;
            }
            (None, _) => writeln!(self.out, "<li>{line}</li>")?,
        }
        Ok(())
    }

    fn differences(&mut self, before: &str, now: &str) -> io::Result<()> {
        for line in crate::lines::unified(before, now).lines() {
            let class = match line.as_bytes().first() {
                Some(b'+') => "plus",
                Some(b'-') => "minus",
                Some(b'@') => "at",
                _ => "",
            };
            writeln!(self.out, "<span class=\"{class}\">{}</span>", text(line))?;
        }
        Ok(())
    }

    fn payload(&mut self, class: &str, what: &str, payload: Option<&Payload>) -> io::Result<()> {
        let Some(payload) = payload.filter(|payload| payload.bytes_total > 0) else { return Ok(()) };
        let size = words::bytes(payload.bytes_total);
        writeln!(self.out, "<details class=\"{class}\" open><summary>{what}, {size}</summary><pre>")?;
        let mut room = PAGE_BYTES_MAX;
        let mut hidden = payload.bytes_cut;
        for part in [&payload.head, &payload.tail].into_iter().flatten() {
            match self.blobs.read(part) {
                Ok(bytes) => {
                    let shown = &bytes[..bytes.len().min(room)];
                    room -= shown.len();
                    hidden += (bytes.len() - shown.len()) as u64;
                    for line in shown.split_inclusive(|&byte| byte == b'\n') {
                        let line = line.strip_suffix(b"\n").unwrap_or(line);
                        let line = line.strip_suffix(b"\r").unwrap_or(line);
                        writeln!(self.out, "{}", escaped(&plain(line)))?;
                    }
                }
                Err(e) => writeln!(self.out, "cannot {}", text(&e.with_source()))?,
            }
        }
        if hidden > 0 {
            writeln!(self.out, "… {} not shown", words::bytes(hidden))?;
        }
        writeln!(self.out, "</pre></details>")
    }

    /// What code told beside its output: pictures as pictures, all else in words.
    fn told(&mut self, payload: &Payload) -> io::Result<()> {
        let size = words::bytes(payload.bytes_total);
        writeln!(self.out, "<details class=\"out\" open><summary>results, {size}</summary>")?;
        let read = |part: &Option<_>| part.as_ref().and_then(|part| self.blobs.read(part).ok());
        let parts: Vec<Vec<u8>> = [&payload.head, &payload.tail].into_iter().filter_map(read).collect();
        let mut room = PAGE_PICTURES_BYTES_MAX;
        for line in parts.iter().flat_map(|part| part.split(|&byte| byte == b'\n')) {
            let words = match serde_json::from_slice(line) {
                Ok(CodeResult::Value(bundle) | CodeResult::Display(bundle)) => {
                    if let Some((mime, data)) = picture(&bundle).filter(|(_, data)| data.len() <= room) {
                        room -= data.len();
                        writeln!(self.out, "<p><img alt=\"\" src=\"data:{mime};base64,{data}\"></p>")?;
                    }
                    bundle.data.get("text/plain").cloned()
                }
                Ok(CodeResult::Error(error)) => Some(error.traceback.join("\n")),
                // Something was cut out here.
                Err(_) => None,
            };
            if let Some(words) = words {
                let lines: String = clipped(&words).lines().map(|line| text(line) + "\n").collect();
                writeln!(self.out, "<pre>{lines}</pre>")?;
            }
        }
        if payload.bytes_cut > 0 {
            writeln!(self.out, "<p class=\"faint\">… {} not shown</p>", words::bytes(payload.bytes_cut))?;
        }
        writeln!(self.out, "</details>")
    }

    fn note(&mut self, class: &str, time: &str, words: &str) -> io::Result<()> {
        let time = escaped(time);
        writeln!(self.out, "<li class=\"note {class}\"><time>{time}</time> {}</li>", text(words))
    }

    fn end(&mut self) -> io::Result<()> {
        self.flush(None, "")?;
        let left: Vec<u64> = self.open.keys().copied().collect();
        for exec in left {
            if let Some(running) = self.open.remove(&exec) {
                self.item("", None, Some(running))?;
            }
        }
        writeln!(self.out, "</ol></main></body></html>")
    }
}

/// A picture that holds nothing to run, if it is one: its kind, and base64 and nothing else.
fn picture(bundle: &MimeBundle) -> Option<(&'static str, &str)> {
    let is_base64 = |data: &str| {
        let bare = data.trim_end_matches('=');
        data.len().is_multiple_of(4)
            && bare.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(&byte))
    };
    let found = PICTURES.iter().find_map(|mime| Some((*mime, bundle.data.get(*mime)?.trim_end())));
    found.filter(|(_, data)| is_base64(data))
}

fn command(started: &ExecStarted) -> String {
    match &started.program {
        Program::Argv(argv) => {
            let words: Vec<String> = argv.iter().map(|word| quoted(word)).collect();
            escaped(&words.join(" "))
        }
        Program::Shell(script) | Program::Code(Code { code: script, .. }) => {
            script.lines().map(|line| text(line) + "\n").collect::<String>().trim_end().into()
        }
    }
}

/// As much of a text as a page shows.
fn clipped(text: &str) -> &str {
    let mut end = text.len().min(PAGE_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Recorded text, fit for a page.
fn text(words: &str) -> String {
    escaped(&plain(words.as_bytes()))
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            char => out.push(char),
        }
    }
    out
}
