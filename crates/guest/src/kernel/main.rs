//! `glass-kernel`: what a context runs whose language is a kernel of Jupyter's.
//!
//! The host carries it in when it is first needed, and the guest starts it as it starts an interpreter: inside all walls, with the
//! *line* to the guest as descriptor 3. On the line it is a driver like those below `context/`, with the same words. Behind it
//! is a kernel that the image has: found by its kernelspec (`spec`), started as a child (`process`), asked over ZeroMQ on the
//! box's own loopback (`channels`), and what it tells becomes output, results and an end (`run`, `results`). `session` joins
//! the two.
//!
//! ```text
//!  guest ── line: run, interrupt ──▶ glass-kernel ── shell, stdin, control ──▶ kernel
//!        ◀── hello, begun, done ────              ◀── iopub, shell, stdin ────
//!        ◀── stdout, stderr, results ──
//! ```
//! Why in the box, and not on the host: a kernel is as hostile as the code that it runs, so whoever takes its bytes apart has
//! to be behind the walls; a context outlives the host's process that has made it; and a run stays an exec, with its number,
//! limits, record, readers, interrupt and deadline.
//!
//! Nothing is written to the box's files. The file that tells a kernel where to listen is in a directory of ours in `/dev/shm`,
//! until the kernel has answered.

mod channels;
mod line;
mod process;
mod results;
mod run;
mod session;
mod spec;

use std::ffi::OsString;
use std::process::ExitCode;

use glasshouse_linux::rustix;
use line::Line;
use session::End;
use spec::Places;

/// The code for what could not be done.
const REFUSED: u8 = 2;

fn main() -> ExitCode {
    // Executed from memory, it would be called by the number of a descriptor.
    let _ = rustix::thread::set_name(c"glass-kernel");
    // The last line that we say is what the guest tells.
    std::panic::set_hook(Box::new(|panic| eprintln!("{}", panic.to_string().replace('\n', " "))));
    let Some(wanted) = std::env::args().nth(1) else {
        eprintln!("glass-kernel is started by glass");
        return ExitCode::from(REFUSED);
    };
    let variable = |name: &str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
    let places = Places::new(variable);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.and_then(|runtime| {
        runtime.block_on(async {
            let mut line = Line::take()?;
            let end = session::live(&mut line, &places, &wanted).await;
            if let End::Broken(why) = &end {
                // A guest that does not listen any more is about to end us.
                let _ = line.say(&format!("broken {why}")).await;
            }
            Ok(end)
        })
    });
    match ended {
        Ok(End::Kernel(status)) => process::end_like(status),
        Ok(End::LineClosed) => ExitCode::SUCCESS,
        Ok(End::Broken(_)) => ExitCode::from(REFUSED),
        Err(error) => {
            eprintln!("glass-kernel: {error}");
            ExitCode::from(REFUSED)
        }
    }
}
