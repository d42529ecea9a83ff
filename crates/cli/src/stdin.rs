//! Our stdin, for a command that is fed from it.
//!
//! Files cannot be waited for, and a terminal that is shared with others must not be made non-blocking: so
//! one thread reads. It is only started when stdin is asked for, and ends with the program. Lines that are typed between two
//! prompts are another matter ([`Typed`]): whoever reads them has to stop in time, and a terminal can be waited for.

use std::io::{self, Read as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use glasshouse_sandbox::ExecInput;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Bytes read at once.
const READ_BYTES: usize = 64 * 1024;
/// Reads that may wait for the command to take them.
const READS_WAITING_MAX: usize = 2;
/// What ends the input of a terminal.
const END_OF_TRANSMISSION: u8 = 4;
/// How often it is said again to a program that goes on, and after what time.
const ENDS_MAX: u32 = 20;
const END_AGAIN: Duration = Duration::from_millis(300);
/// The longest line that a terminal gives.
const LINE_BYTES: usize = 4096;

/// Feeds a command until our stdin or the command ends.
pub(crate) fn feed(input: ExecInput, terminal: bool) -> Result<()> {
    let (sender, mut reads) = mpsc::channel::<Vec<u8>>(READS_WAITING_MAX);
    std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || read(&sender))
        .context("cannot read stdin")?;
    tokio::spawn(async move {
        let mut last = b'\n';
        while let Some(bytes) = reads.recv().await {
            last = bytes.last().copied().unwrap_or(last);
            // A command that takes no more input is no error of ours.
            if input.write(&bytes).await.is_err() {
                return;
            }
        }
        // A terminal cannot be closed from outside; the key for it ends a line first if one is begun.
        let _ = match (terminal, last) {
            (false, _) => input.close().await,
            (true, b'\n' | END_OF_TRANSMISSION) => input.write(&[END_OF_TRANSMISSION]).await,
            (true, _) => input.write(&[END_OF_TRANSMISSION; 2]).await,
        };
        // One that was not yet listening has not heard it.
        for _ in 0..if terminal { ENDS_MAX } else { 0 } {
            tokio::time::sleep(END_AGAIN).await;
            if input.write(&[END_OF_TRANSMISSION]).await.is_err() {
                return;
            }
        }
    });
    Ok(())
}

fn read(sender: &mpsc::Sender<Vec<u8>>) {
    let mut stdin = io::stdin().lock();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match stdin.read(&mut buffer) {
            Ok(count) if count > 0 => {
                if sender.blocking_send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // An unreadable stdin is an empty one, as for any program.
            _ => return,
        }
    }
}

/// The lines that are typed at our terminal while a command runs, which is fed with them.
#[derive(Debug)]
pub(crate) struct Typed {
    task: JoinHandle<()>,
    /// A line was ended, and nobody has asked yet.
    entered: Arc<AtomicBool>,
}

impl Typed {
    /// Feeds a command until it ends, or the key for the end of input is pressed.
    pub(crate) fn feed(input: ExecInput) -> Result<Typed> {
        #[expect(
            deprecated,
            reason = "its danger is a descriptor that closes meanwhile; ours live as long as we do"
        )]
        let terminal = AsyncFd::with_interest(rustix::stdio::stdin(), Interest::READABLE)
            .context("cannot wait for the terminal")?;
        let entered: Arc<AtomicBool> = Arc::default();
        let task = tokio::spawn(feed_lines(terminal, input, entered.clone()));
        Ok(Typed { task, entered })
    }

    /// Whether a line was ended since this was last asked: then the terminal has begun the next one.
    pub(crate) fn has_entered(&self) -> bool {
        self.entered.swap(false, Ordering::Relaxed)
    }

    /// Leaves the terminal to whoever reads next; when this returns, nothing more is taken from it.
    pub(crate) async fn stop(&mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

async fn feed_lines(terminal: AsyncFd<BorrowedFd<'static>>, input: ExecInput, entered: Arc<AtomicBool>) {
    let mut buffer = [0; LINE_BYTES];
    loop {
        let Ok(mut guard) = terminal.readable().await else { return };
        // What the loop has seen may be old; only the kernel knows now.
        if !is_readable(*terminal.get_ref()) {
            guard.clear_ready();
            continue;
        }
        match rustix::io::read(*terminal.get_ref(), &mut buffer) {
            Ok(count) if count > 0 => {
                if buffer[count - 1] == b'\n' {
                    entered.store(true, Ordering::Relaxed);
                }
                // A command that takes no more input is no error of ours.
                if input.write(&buffer[..count]).await.is_err() {
                    return;
                }
            }
            Err(Errno::INTR) => {}
            // The end of this command's input is not the end of the terminal.
            _ => {
                let _ = input.close().await;
                return;
            }
        }
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
}
