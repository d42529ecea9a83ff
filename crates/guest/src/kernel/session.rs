//! The life of a kernel: it starts, answers, runs what the guest hands over, and ends. One task, one loop over one enum.
//!
//! What a kernel publishes is read at all times, also while nobody reads the output of the run: a kernel that is not listened
//! to throws away what it has to say, and its `idle` with it. So that this fills no memory, a kernel stands still
//! (SIGSTOP) while too much waits to be written, as a program does at a full pipe.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::channels::{self, Channel, Ears, Heard, Mouth};
use super::line::{Handed, Line, Word};
use super::process::{self, Kernel};
use super::run::{self, Due, Run, To};
use super::spec::{InterruptMode, Kernelspec, Places};

/// How long a kernel that answers may take to publish something, before it is asked again.
const PUBLISHES: Duration = Duration::from_millis(50);
/// How often it is asked.
const ASKED_MAX: u32 = 200;
/// How long a kernel whose connections have closed may take to end: that is then the cause.
const ENDING: Duration = Duration::from_millis(500);
/// What is told of the kernel: its name, what it is, and the version of that.
const VERSION_CHARS_MAX: usize = 40;
/// Bytes of what a kernel says before it is there, of which the end is told if it never is.
const LAST_WORDS_BYTES: usize = 4096;

/// Why a session is over.
#[derive(Debug)]
pub(crate) enum End {
    /// The kernel has ended.
    Kernel(ExitStatus),
    /// It can be used no more, for this reason.
    Broken(String),
    /// The guest wants no more of us.
    LineClosed,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Broken(format!("the kernel cannot be served: {error}"))
    }
}

impl From<String> for End {
    fn from(why: String) -> End {
        End::Broken(why)
    }
}

type Result<T> = std::result::Result<T, End>;

/// Finds a kernel, starts it, and serves it to the end.
pub(crate) async fn live(line: &mut Line, places: &Places, wanted: &str) -> End {
    let started = places.find(wanted).and_then(|spec| {
        let (kernel, info) = Kernel::start(places, &spec)?;
        Ok((spec, kernel, info))
    });
    let (spec, mut kernel, info) = match started {
        Ok(started) => started,
        Err(why) => return End::Broken(why),
    };
    let end = match arrive(line, &spec, &mut kernel, &info).await {
        Ok((mouth, ears)) => {
            let mode = spec.interrupt_mode();
            let mut session = Session { line, kernel: &mut kernel, mouth, ears, mode, run: None };
            session.serve().await
        }
        Err(end) => truest(end, &mut kernel).await,
    };
    // Whatever it is, it is over with us.
    drop(kernel);
    end
}

/// A kernel that ends closes its connections a little before, and is the cause.
async fn truest(end: End, kernel: &mut Kernel) -> End {
    if !matches!(end, End::Broken(_)) {
        return end;
    }
    let (child, _) = kernel.parts();
    match tokio::time::timeout(ENDING, Kernel::ended(child)).await {
        Ok(Ok(status)) => End::Kernel(status),
        _ => end,
    }
}

/// Waits until a kernel is there and says so to the guest.
async fn arrive(
    line: &mut Line,
    spec: &Kernelspec,
    kernel: &mut Kernel,
    info: &jupyter_protocol::ConnectionInfo,
) -> Result<(Mouth, Ears)> {
    let mut last_words = Vec::new();
    let (child, said) = kernel.parts();
    let greeted = async {
        let (mut mouth, mut ears) = channels::connect(info).await?;
        let version = greet(&mut mouth, &mut ears).await?;
        Ok::<_, String>((mouth, ears, version))
    };
    tokio::pin!(greeted);
    let (mouth, ears, version) = loop {
        tokio::select! {
            greeted = &mut greeted => break greeted?,
            status = Kernel::ended(child) => {
                let status = status?;
                last_words.extend(kernel.rest()[1].iter());
                tell_last_words(&last_words);
                return Err(End::Kernel(status));
            }
            (which, bytes) = process::next_said(said) => {
                if which == 1 {
                    last_words.extend(bytes);
                    last_words.drain(..last_words.len().saturating_sub(LAST_WORDS_BYTES));
                }
            }
            word = line.next() => return Err(match word? {
                None => End::LineClosed,
                Some(_) => End::Broken("the guest spoke out of turn".into()),
            }),
        }
    };
    kernel.is_there();
    line.say(&format!("hello {} {version}", spec.name)).await?;
    Ok((mouth, ears))
}

/// What a kernel has said before it ended is what the guest tells.
fn tell_last_words(words: &[u8]) {
    let _ = io::Write::write_all(&mut io::stderr(), words);
}

/// Asks a kernel what it is, until its answer and something that it publishes have come: then nothing of a run is lost.
async fn greet(mouth: &mut Mouth, ears: &mut Ears) -> std::result::Result<String, String> {
    let mut version = None;
    let mut publishes = false;
    mouth.ask_what_it_is().await?;
    let mut asked = 1;
    let mut again = None;
    loop {
        let heard = tokio::select! {
            heard = ears.next() => heard?,
            () = until(again) => {
                asked += 1;
                if asked > ASKED_MAX {
                    return Err("the kernel answers, but publishes nothing".into());
                }
                mouth.ask_what_it_is().await?;
                again = Some(Instant::now() + PUBLISHES);
                continue;
            }
        };
        match heard.channel {
            Channel::Iopub => publishes = true,
            Channel::Shell if heard.kind == "kernel_info_reply" => {
                version = version.or_else(|| Some(version_of(&heard.content)));
                again = again.or_else(|| Some(Instant::now() + PUBLISHES));
            }
            _ => {}
        }
        if let Some(version) = version.take_if(|_| publishes) {
            return Ok(version);
        }
    }
}

/// What a kernel says that it is.
fn version_of(content: &Value) -> String {
    let text = |name: &str| -> String {
        let text = content.get(name).and_then(Value::as_str).unwrap_or_default();
        text.chars().take(VERSION_CHARS_MAX).collect()
    };
    format!("{} {}", text("implementation"), text("implementation_version")).trim().to_owned()
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// A kernel that is there.
struct Session<'a> {
    line: &'a mut Line,
    kernel: &'a mut Kernel,
    mouth: Mouth,
    ears: Ears,
    mode: InterruptMode,
    run: Option<Run>,
}

/// What happens to it.
#[derive(Debug)]
enum Event {
    Word(Word),
    Heard(Heard),
    Ended(End),
    Said(usize, Vec<u8>),
    Written,
    Answer(Heard, String),
    Due(Due),
}

impl Session<'_> {
    async fn serve(&mut self) -> End {
        loop {
            let done = match self.event().await {
                Err(end) | Ok(Event::Ended(end)) => Err(end),
                Ok(Event::Word(Word::Run(handed))) => self.begin(handed).await,
                Ok(Event::Word(Word::Interrupt(exec))) => self.interrupt(exec).await,
                Ok(Event::Heard(heard)) => self.heard(heard).await,
                Ok(Event::Said(which, bytes)) => self.said(which, bytes),
                Ok(Event::Written) => Ok(()),
                Ok(Event::Answer(question, line)) => self.answer(&question, line).await,
                Ok(Event::Due(due)) => self.due(due).await,
            };
            let gone_on = match done {
                Ok(()) => self.go_on().await,
                Err(end) => Err(end),
            };
            if let Err(end) = gone_on {
                return self.leave(end).await;
            }
        }
    }

    async fn event(&mut self) -> Result<Event> {
        let due = self.run.as_ref().and_then(Run::due);
        let is_full = self.run.as_ref().is_some_and(Run::is_full);
        let (outputs, input) = match &mut self.run {
            Some(run) => (Some(&mut run.outputs), Some(&mut run.input)),
            None => (None, None),
        };
        let (child, said) = self.kernel.parts();
        Ok(tokio::select! {
            biased;
            word = self.line.next() => match word? {
                Some(word) => Event::Word(word),
                None => Event::Ended(End::LineClosed),
            },
            heard = self.ears.next() => Event::Heard(heard?),
            (which, bytes) = process::next_said(said), if !is_full => Event::Said(which, bytes),
            () = run::write(outputs) => Event::Written,
            (question, line) = run::answer(input) => Event::Answer(question, line),
            status = Kernel::ended(child) => Event::Ended(End::Kernel(status?)),
            () = until(due.as_ref().map(|(moment, _)| *moment)) => match due {
                Some((_, due)) => Event::Due(due),
                None => Event::Written,
            },
        })
    }

    async fn begin(&mut self, handed: Handed) -> Result<()> {
        let code = run::read_code(&handed.code)?;
        // What it has said since the last one belongs to none.
        self.kernel.rest();
        self.kernel.forget_peak();
        let request = self.mouth.execute(code).await?;
        self.run = Some(Run::new(handed, request)?);
        Ok(())
    }

    /// Interrupts the run of this number. One that is not under way any more needs it no more.
    async fn interrupt(&mut self, exec: u64) -> Result<()> {
        let Some(run) = self.run.as_mut().filter(|run| run.exec == exec && !run.is_told()) else {
            return Ok(());
        };
        run.is_interrupted();
        // One that stands still could not hear it.
        self.kernel.hold(false);
        match self.mode {
            InterruptMode::Signal => {
                self.kernel.interrupt();
                self.wake().await
            }
            // It is woken when it has answered that.
            InterruptMode::Message => Ok(self.mouth.interrupt().await.map(drop)?),
        }
    }

    /// ipykernel notices an interrupt in an `await` when its loop wakes up next, and any request wakes that. The interrupt itself is
    /// not said again: it could hit the kernel while it tells of the first one.
    async fn wake(&mut self) -> Result<()> {
        self.mouth.ask_what_it_is().await?;
        Ok(())
    }

    async fn heard(&mut self, heard: Heard) -> Result<()> {
        let Some(run) = &mut self.run else { return Ok(()) };
        if heard.channel == Channel::Control && heard.kind == "interrupt_reply" {
            return self.wake().await;
        }
        let kind = heard.kind.clone();
        run.hear(heard);
        match run.begins(&kind) {
            true => self.tell_begun().await,
            false => Ok(()),
        }
    }

    async fn answer(&mut self, question: &Heard, line: String) -> Result<()> {
        self.mouth.answer(question, line).await?;
        Ok(())
    }

    async fn tell_begun(&mut self) -> Result<()> {
        let Some(run) = &mut self.run else { return Ok(()) };
        run.begun = true;
        Ok(self.line.say(&format!("begun {}", run.exec)).await?)
    }

    fn said(&mut self, which: usize, bytes: Vec<u8>) -> Result<()> {
        if let Some(run) = self.run.as_mut().filter(|_| self.kernel.is_heard(which)) {
            run.outputs.push(if which == 0 { To::Stdout } else { To::Stderr }, bytes);
        }
        Ok(())
    }

    async fn due(&mut self, due: Due) -> Result<()> {
        match due {
            Due::Begun => self.tell_begun().await?,
            Due::Wake => {
                if let Some(run) = &mut self.run {
                    run.was_woken();
                }
                self.wake().await?;
            }
            Due::Ask => {
                let request = self.mouth.ask_what_it_is().await?;
                if let Some(run) = &mut self.run {
                    run.asked_for_sign(request);
                }
            }
            Due::NoReply => {
                if let Some(run) = &mut self.run {
                    run.give_reply_up();
                }
            }
        }
        Ok(())
    }

    /// What follows from where the run stands: the kernel waits, or goes on, or the run is over.
    async fn go_on(&mut self) -> Result<()> {
        let Some(run) = &mut self.run else { return Ok(()) };
        self.kernel.hold(run.is_full());
        if run.is_told() && !run.drained {
            run.drained = true;
            let [stdout, stderr] = self.kernel.rest();
            run.outputs.push(To::Stdout, stdout);
            run.outputs.push(To::Stderr, stderr);
        }
        if !run.is_told() || !run.outputs.is_empty() {
            return Ok(());
        }
        let word = format!("done {} {}", run.exec, run.code());
        // Its pipes are closed before that is said.
        self.run = None;
        Ok(self.line.say(&word).await?)
    }

    /// It is over. What the kernel has said before comes first, and its own end is the truest cause.
    async fn leave(&mut self, end: End) -> End {
        if matches!(end, End::LineClosed) {
            return end;
        }
        let end = truest(end, self.kernel).await;
        // What is on the way of what it has published is there, or will never be.
        while let Some(Ok(heard)) = now(self.ears.next()).await {
            if let Some(run) = &mut self.run {
                run.hear(heard);
            }
        }
        let [stdout, stderr] = self.kernel.rest();
        let Some(run) = &mut self.run else { return end };
        run.outputs.push(To::Stdout, stdout);
        run.outputs.push(To::Stderr, stderr);
        while !run.outputs.is_empty() {
            tokio::select! {
                () = run::write(Some(&mut run.outputs)) => {}
                word = self.line.next() => if matches!(word, Ok(None) | Err(_)) { break },
            }
        }
        end
    }
}

/// What comes of something now, without waiting.
async fn now<T>(something: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = something => Some(done),
        () = tokio::task::yield_now() => None,
    }
}
