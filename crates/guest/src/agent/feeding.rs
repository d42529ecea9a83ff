//! Sending what readers wait for, as far as their credit and the room for it go.

use super::*;

impl Agent {
    /// Sends what readers are waiting for, as far as their credit and room go.
    pub(super) fn pump(&mut self) -> Result<()> {
        let ids: Vec<u64> =
            self.execs.values().filter(|exec| !exec.readers.is_empty()).map(|exec| exec.id).collect();
        for id in ids {
            let Some(exec) = self.execs.get_mut(&id) else { continue };
            let mut readers = std::mem::take(&mut exec.readers);
            readers.retain_mut(|reader| match self.connections[reader.connection].as_mut() {
                Some(connection) => feed(exec, reader, connection),
                None => false,
            });
            exec.readers = readers;
            self.watch_outputs(id)?;
            self.try_finish(id)?;
            // An end that has just been found is told in the same turn.
            if let Some(exec) = self.execs.get_mut(&id).filter(|exec| exec.report.is_some()) {
                let mut readers = std::mem::take(&mut exec.readers);
                readers.retain_mut(|reader| match self.connections[reader.connection].as_mut() {
                    Some(connection) => feed(exec, reader, connection),
                    None => false,
                });
                exec.readers = readers;
                self.forget();
            }
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        for connection in self.connections.iter_mut().flatten() {
            send_files(connection, &mut buffer);
        }
        self.buffer = buffer;
        self.watch_tunnels()
    }
}

/// Feeds one reader. Whether it stays.
fn feed(exec: &mut Exec, reader: &mut Reader, connection: &mut Connection) -> bool {
    while reader.credit > FRAME_COST && connection.has_room() {
        match exec.log.at(reader.place) {
            Found::Bytes(stream, bytes) => {
                let n = bytes.len().min(DATA_CHUNK_MAX).min((reader.credit - FRAME_COST) as usize);
                connection.output(reader.stream, stream_kind(stream), reader.place, &bytes[..n]);
                reader.place += n as u64;
                reader.credit -= n as u64 + FRAME_COST;
            }
            Found::Gap(to) => {
                connection.reply(reader.stream, &Reply::Gap { from: reader.place, to });
                reader.place = to;
            }
            Found::End => break,
        }
    }
    if reader.place < exec.log.end() {
        return true;
    }
    let last = match &exec.report {
        Some(report) => Reply::Ended { exec: exec.id, report: report.clone() },
        None if reader.follow => return true,
        None => Reply::UpToDate { offset: reader.place },
    };
    connection.reply(reader.stream, &last);
    connection.execs.remove(&reader.stream);
    false
}

fn send_files(connection: &mut Connection, buffer: &mut Vec<u8>) {
    let streams: Vec<u32> = connection.downloads.keys().copied().collect();
    for stream in streams {
        loop {
            if !connection.has_room() {
                return;
            }
            let Some(download) = connection.downloads.get_mut(&stream) else { break };
            let reply = match download.next(buffer) {
                Ok(Some(0)) => break,
                Ok(Some(n)) => {
                    connection.data(stream, &buffer[..n]);
                    continue;
                }
                Ok(None) => Reply::File(FileResult::Done { bytes: download.sent() }),
                Err(failure) => Reply::Failed(failure),
            };
            connection.downloads.remove(&stream);
            connection.reply(stream, &reply);
        }
    }
}
