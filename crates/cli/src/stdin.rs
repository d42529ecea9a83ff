//! Our stdin, for a command that is fed from it.
//!
//! Files cannot be waited for, and a terminal that is shared with others must not be made non-blocking: so
//! one thread reads. It is only started when stdin is asked for, and ends with the program.

use std::io::{self, Read as _};
use std::time::Duration;

use anyhow::{Context as _, Result};
use glasshouse_sandbox::ExecInput;
use tokio::sync::mpsc;

/// Bytes read at once.
const READ_BYTES: usize = 64 * 1024;
/// Reads that may wait for the command to take them.
const READS_WAITING_MAX: usize = 2;
/// What ends the input of a terminal.
const END_OF_TRANSMISSION: u8 = 4;
/// How often it is said again to a program that goes on, and after what time.
const ENDS_MAX: u32 = 20;
const END_AGAIN: Duration = Duration::from_millis(300);

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
