//! Reads a command as it runs, and holds every piece of it against its number.

use glasshouse_sandbox::{Exec, ExecEvent, ExecSpec, ExitReport, OutputStream, Sandbox};

use crate::stage::WAIT_LIMIT;

/// A command that is being read.
pub(crate) struct Follow {
    pub(crate) exec: Exec,
    /// All of stdout so far.
    pub(crate) stdout: Vec<u8>,
    /// All of stderr so far.
    pub(crate) stderr: Vec<u8>,
    /// What is missing.
    pub(crate) gaps: Vec<(u64, u64)>,
    /// The place of the next byte.
    pub(crate) place: u64,
    /// Set by an end.
    pub(crate) report: Option<ExitReport>,
    /// Set when a reader that does not follow has all.
    pub(crate) up_to_date: Option<u64>,
    lines_taken: usize,
}

impl std::fmt::Debug for Follow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let last =
            |bytes: &[u8]| String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(300)..]).into_owned();
        write!(f, "command {} at {}, ", self.exec.id(), self.place)?;
        write!(f, "stdout …{:?}, stderr …{:?}", last(&self.stdout), last(&self.stderr))?;
        write!(f, ", gaps {:?}, ended {:?}", self.gaps, self.report)
    }
}

impl Follow {
    /// Starts a command.
    pub(crate) async fn start(sandbox: &Sandbox, spec: ExecSpec) -> Follow {
        Follow::new(sandbox.exec(spec).await.expect("the box takes commands"), 0)
    }

    /// Reads a command from a place on.
    pub(crate) async fn attach(sandbox: &Sandbox, exec: u64, from: u64, follow: bool) -> Follow {
        Follow::new(sandbox.attach(exec, from, follow).await.expect("the box knows the command"), from)
    }

    fn new(exec: Exec, place: u64) -> Follow {
        Follow {
            exec,
            stdout: Vec::new(),
            stderr: Vec::new(),
            gaps: Vec::new(),
            place,
            report: None,
            up_to_date: None,
            lines_taken: 0,
        }
    }

    /// Takes the next event. Whether there was one.
    pub(crate) async fn step(&mut self) -> bool {
        let Ok(event) = tokio::time::timeout(WAIT_LIMIT, self.exec.next()).await else {
            panic!("nothing more happens to a command after {WAIT_LIMIT:?}: {self:?}");
        };
        let Some(event) = event else { return false };
        match event {
            ExecEvent::Output(chunk) => {
                assert_eq!(chunk.offset, self.place, "output is numbered without a gap");
                assert!(!chunk.bytes.is_empty(), "a piece of nothing");
                self.place += chunk.bytes.len() as u64;
                match chunk.stream {
                    OutputStream::Stdout => self.stdout.extend(chunk.bytes),
                    OutputStream::Stderr => self.stderr.extend(chunk.bytes),
                    OutputStream::Results => panic!("results come as such"),
                }
            }
            ExecEvent::Gap { from, to } => {
                assert_eq!(from, self.place, "a gap begins where the output before it ended");
                assert!(to > from, "a gap of nothing");
                self.gaps.push((from, to));
                self.place = to;
            }
            ExecEvent::UpToDate { offset } => {
                assert_eq!(offset, self.place);
                self.up_to_date = Some(offset);
            }
            ExecEvent::Result(result) => panic!("a command told {result:?}"),
            ExecEvent::Ended(report) => self.report = Some(report),
        }
        true
    }

    /// The next whole line of stdout.
    pub(crate) async fn line(&mut self) -> String {
        loop {
            let rest = &self.stdout[self.lines_taken..];
            if let Some(at) = rest.iter().position(|&byte| byte == b'\n') {
                self.lines_taken += at + 1;
                return String::from_utf8(rest[..at].to_vec()).expect("the line is text");
            }
            assert!(self.step().await && self.report.is_none(), "it ended before a line was whole: {self:?}");
        }
    }

    /// Reads until stdout holds this, beyond what was taken as lines.
    pub(crate) async fn until(&mut self, words: &str) {
        let holds = |bytes: &[u8]| bytes.windows(words.len()).any(|window| window == words.as_bytes());
        while !holds(&self.stdout[self.lines_taken..]) {
            assert!(self.step().await && self.report.is_none(), "it ended without {words:?}: {self:?}");
        }
    }

    /// Reads to the end.
    pub(crate) async fn end(&mut self) -> ExitReport {
        while self.step().await {}
        let report = self.report.clone().expect("it has ended");
        assert_eq!(self.exec.next().await, None, "nothing comes after the end");
        report
    }
}
