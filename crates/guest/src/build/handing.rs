//! What goes from the builder to the box's first process, and from the host to both.

use glasshouse_protocol::frame::Decoder;
use glasshouse_protocol::plan::Rest;

use super::*;

/// How much of a frame is received at once.
const FRAME_PIECE_BYTES: usize = 16 * 1024;

/// Waits until the builder has given the box's users their numbers.
pub(super) fn await_maps(builder: BorrowedFd<'_>) -> io::Result<()> {
    let (n, _) = descriptor::receive_with_fds(builder, &mut [0])?;
    if n == 0 {
        // It failed, and has told the host.
        process::exit_now(1);
    }
    Ok(())
}

/// Waits until somebody wants the box. Whether anybody does.
pub(super) fn await_rest(start: &mut Startup, site: &mut Site) -> io::Result<bool> {
    start.report(&Report::Begun)?;
    let Some((body, fds)) = receive_frame(start.host.as_fd())? else { return Ok(false) };
    start.plan.complete(serde_json::from_slice(&body)?);
    site.rest = Some((body, fds));
    Ok(true)
}

/// Waits for the builder, and takes what it hands over.
pub(super) fn take_over(start: &mut Startup, site: &mut Site) -> StepResult {
    let Some(builder) = site.to_builder.take() else {
        return on("socket to the builder", Err(io::ErrorKind::NotConnected));
    };
    let Some((body, fds)) = on("mounts", receive_frame(builder.as_fd()))? else {
        // It failed, and has told the host; or nobody ever wanted the box.
        process::exit_now(1);
    };
    let mut fds = fds.into_iter();
    let outside = || {
        let planned = start.plan.steps.iter().filter(|planned| planned.side == Side::Builder);
        planned.map(|planned| &planned.step)
    };
    // In the order in which they are handed over.
    for step in outside() {
        if let Step::Overlay { top, .. } = step {
            site.root = fds.next();
            site.top = if matches!(top, Top::Memory { .. }) { fds.next() } else { None };
        }
    }
    for step in outside() {
        if let Step::HostTree { target, .. } = step {
            site.trees.extend(fds.next().map(|fd| (target.clone(), fd)));
        }
    }
    for step in outside() {
        if let Step::Volume { target, .. } = step {
            site.volumes.extend(fds.next().map(|fd| (target.clone(), fd)));
        }
    }
    if !body.is_empty() {
        let rest: Rest = on("rest of the plan", serde_json::from_slice(&body))?;
        start.fds.extend(rest.fds.iter().copied().zip(fds));
        start.plan.complete(rest);
    }
    Ok(())
}

/// Receives one frame, and the descriptors that come with it. `None`: the other side has closed.
pub(crate) fn receive_frame(from: BorrowedFd<'_>) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let (mut decoder, mut fds) = (Decoder::default(), Vec::new());
    let mut buffer = vec![0; FRAME_PIECE_BYTES];
    loop {
        let (n, mut received) = descriptor::receive_with_fds(from, &mut buffer)?;
        fds.append(&mut received);
        if n == 0 {
            return Ok(None);
        }
        decoder.feed(&buffer[..n]);
        if let Some(frame) = decoder.next_frame().map_err(io::Error::other)? {
            return Ok(Some((frame.body, fds)));
        }
    }
}
