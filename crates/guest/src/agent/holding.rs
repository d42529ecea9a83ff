//! Holding still, while somebody outside copies what the box has written or gives it another root.
//!
//! ```text
//!            hold{kill}              nobody is left                release, or the holder is gone
//!  free ────────────────▶ clearing ────────────────▶ held ────────────────────────────────────▶ free
//!    ├──────────────── hold ─────────────────────────▲ │ others' requests wait in their sockets
//!    ├─ hold{settle} ─▶ settling ─ all wait for something, or SETTLE_MAX ─▲
//!    └─ pause: as a hold that ends at once, and leaves stopped what it has stopped (`pausing`)
//! ```
//! A box in which everybody waits, at one and the same moment, is at rest: nothing more comes of it but by the clock or from
//! outside. So what is seen of it then is the same in every run, however busy the machine is. What is still at work when the
//! time is up is told as such.

use super::*;

/// Processes whose names are told.
const NAMES_MAX: usize = 32;
/// How long the processes of a box may take to be gone or to stand still.
const CLEARING_MAX: Duration = Duration::from_secs(10);
/// How often those that are still there are looked for: nothing tells when the last one is gone.
const CLEARING_LOOK: Duration = Duration::from_millis(1);

/// How long those that were stopped may stand in the way of others, before they are let go and stopped anew.
const STUCK_MAX: Duration = Duration::from_millis(20);

/// How long what is at work in a box is waited for, until it ends or waits for something itself, and how often it is looked
/// at meanwhile at the least: on a machine that stood still all the while, nobody could do anything.
const SETTLE_MAX: Patience = Patience { time: Duration::from_millis(500), looks: 100 };
/// The same while a command runs that somebody waits for, and as long as somebody is there for whom it was not enough the
/// last time.
const SETTLE_AGAIN_MAX: Patience = Patience { time: Duration::from_millis(2), looks: 2 };

#[derive(Debug, Clone, Copy)]
struct Patience {
    time: Duration,
    looks: u32,
}

/// What whoever holds the box wants beside that.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    /// Everything in it killed.
    pub(super) kill: bool,
    /// Everything in it stopped.
    pub(super) stop: bool,
    /// The top, if that is in memory.
    pub(super) top: bool,
    /// Nothing at work in it, if that is soon so.
    pub(super) settle: bool,
    /// What was stopped left so, and the box let go at once.
    pub(super) pause: bool,
    /// When everything is killed: the root that follows is what the present one was at first.
    pub(super) same: bool,
}

/// What a box goes on with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    /// What it had.
    AsBefore,
    /// Another root, unless whoever was to give it one was killed before he did. He may have said which one it is.
    Restacked(Option<u64>),
    /// The root that it had, to which nothing was written, and nothing of what ran.
    Renewed,
}

impl After {
    /// As whoever lets the box go says it.
    pub(super) fn said(restacked: bool, renewed: bool, generation: Option<u64>) -> After {
        match (restacked, renewed) {
            (true, _) => After::Restacked(generation),
            (false, true) => After::Renewed,
            (false, false) => After::AsBefore,
        }
    }
}

/// A root that somebody may have given the box, and that nobody has looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewRoot {
    /// Which one it had before.
    before: u64,
    /// Everything in it was killed.
    cleared: bool,
}

/// Who holds the box.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) connection: usize,
    stream: u32,
    wish: Wish,
    /// Not yet held: processes have until then to be gone, or to stand still.
    until: Option<Instant>,
    /// Those that we have stopped, and let go again.
    stopped: Vec<i32>,
    /// Their cgroups are to be let go, which they do not notice.
    frozen: bool,
    /// When they are let go for a moment, if not all stand still by then.
    again: Instant,
    /// Those that are at work have until then to come to rest, and are looked at so often.
    settle_until: Option<(Instant, u32)>,
    /// They did not.
    at_work: bool,
    /// Which of its roots the box had when it stood still.
    generation: u64,
    /// Nothing was left beside files then, and everything was killed.
    clean: bool,
}

impl Agent {
    /// Whether a client has to wait until somebody else lets go.
    pub(super) fn must_wait(&self, n: usize) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.connection != n)
    }

    pub(super) fn pause(&mut self, n: usize) -> Result<()> {
        let Some(connection) = self.connections[n].as_mut() else { return Ok(()) };
        if connection.paused {
            // Nothing that it says is listened to, so what woke us is that it is gone.
            return self.disconnect(n);
        }
        connection.paused = true;
        listen(&self.epoll, connection, n, connection.watches_out)
    }

    pub(super) fn hold(&mut self, n: usize, stream: u32, wish: Wish) -> Result<()> {
        // Whoever has no walls has no state to be looked at, but can be stopped.
        if !wish.pause && (!self.config.contained || self.namespaces.is_empty()) {
            self.fail(n, stream, FailureKind::Unsupported, "what has no walls has no state of its own");
            return Ok(());
        }
        if self.hold.is_some() {
            self.fail(n, stream, FailureKind::Limit, "the box is being held already");
            return Ok(());
        }
        let now = Instant::now();
        let (until, again) = (Some(now + CLEARING_MAX), now + STUCK_MAX);
        // What somebody waits for is at work by his will, and is nothing that was left behind.
        let awaited = self.execs.values().any(|exec| exec.main.is_none() && !exec.background);
        let is_known = |(pid, _): &(i32, bool)| self.at_work.contains(pid);
        let known = !self.at_work.is_empty() && self.tracker.others().iter().any(is_known);
        let patience = match awaited || known {
            true => SETTLE_AGAIN_MAX,
            false => SETTLE_MAX,
        };
        let settle_until = wish.settle.then(|| (now + patience.time, patience.looks));
        self.hold = Some(Hold {
            connection: n,
            stream,
            wish,
            until,
            stopped: Vec::new(),
            frozen: false,
            again,
            settle_until,
            at_work: false,
            generation: 0,
            clean: false,
        });
        if wish.kill {
            self.end_contexts(&Exit::Killed { by: Killer::Reset }, "its box was put back")?;
            self.end_zygotes(wish.same)?;
            let running: Vec<u64> = self.running().collect();
            for id in running {
                self.kill(id, Exit::Killed { by: Killer::Reset })?;
            }
        }
        // Whether they are gone, or stand still, is looked at when this turn's events are dealt with.
        Ok(())
    }

    /// Goes on with a hold that waits for processes.
    pub(super) fn settle_hold(&mut self) -> Result<()> {
        if self.is_bearing() {
            return Ok(());
        }
        let Some(hold) = self.hold.as_mut() else { return Ok(()) };
        let Some(until) = hold.until else { return Ok(()) };
        // Whoever kills looks for himself: to list processes takes the kernel longer than all the rest.
        let mut others = if hold.wish.kill { Vec::new() } else { self.tracker.others() };
        if let Some((settle_until, looks)) = hold.settle_until {
            hold.at_work = !others.is_empty() && !self.tracker.is_at_rest();
            let now = Instant::now();
            if hold.at_work && (now < settle_until || looks > 0) {
                hold.settle_until = Some((settle_until, looks.saturating_sub(1)));
                return Ok(());
            }
            hold.settle_until = None;
            hold.again = now + STUCK_MAX;
            if !others.is_empty() {
                others = self.tracker.others();
            }
            self.at_work = match hold.at_work {
                true => others.iter().map(|&(pid, _)| pid).collect(),
                false => Vec::new(),
            };
        }
        let signal = |pid: i32, signal: rustix::process::Signal| {
            // Gone by itself in this moment.
            let _ = process::signal_pid(pid, signal.as_raw());
        };
        // Where nothing runs there is nothing to stop: nobody but us could start anything.
        let mut frozen = None;
        if hold.wish.stop && !others.is_empty() {
            // Also if it fails halfway: then that half is let go.
            hold.frozen = true;
            frozen = self.tracker.freeze(true);
        }
        let mut ready = true;
        if hold.wish.kill {
            let zygotes = self.zygotes.values().flat_map(|z| [Some(&z.process), z.spare.as_ref()]).flatten();
            ready = self.tracker.clear_out(zygotes.map(|process| &process.mark))?;
        } else if let Some(still) = frozen {
            ready = still;
            // Those that came and went until all stood still.
            others = self.tracker.others();
        } else if hold.wish.stop && Instant::now() >= hold.again && !others.iter().all(|&(_, still)| still) {
            // Who has a child between vfork and exec waits for that one and for nothing else, stopped or not.
            hold.stopped.drain(..).for_each(|pid| signal(pid, rustix::process::Signal::CONT));
            hold.again = Instant::now() + STUCK_MAX;
            ready = false;
        } else if hold.wish.stop {
            for &(pid, still) in &others {
                if !still && !hold.stopped.contains(&pid) {
                    hold.stopped.push(pid);
                    signal(pid, rustix::process::Signal::STOP);
                }
            }
            ready = others.iter().all(|&(_, still)| still);
        }
        if ready && hold.wish.pause {
            return self.stay_paused();
        } else if ready {
            return self.is_held(&others);
        } else if Instant::now() >= until {
            let (n, stream) = (hold.connection, hold.stream);
            self.release(After::AsBefore)?;
            self.fail(n, stream, FailureKind::Io, "processes of the box do not end or stand still");
        }
        Ok(())
    }

    /// Tells whoever holds the box that it stands still.
    fn is_held(&mut self, others: &[(i32, bool)]) -> Result<()> {
        let Some(hold) = self.hold.as_mut() else { return Ok(()) };
        hold.until = None;
        let (n, stream) = (hold.connection, hold.stream);
        let (processes, generation) = (others.len() as u64, self.tracker.generation());
        hold.generation = generation;
        hold.clean = hold.wish.kill && hold.wish.same && self.scratch.is_as_it_was();
        let names = others.iter().take(NAMES_MAX).map(|&(pid, _)| self.tracker.command_line(pid)).collect();
        let tops = self.tops.iter().filter(|(of, _)| hold.wish.top && *of == generation).map(|(_, top)| top);
        let fds: Vec<BorrowedFd<'_>> = self.namespaces.iter().chain(tops).map(AsFd::as_fd).collect();
        let reply = Reply::Held { processes, generation, names, at_work: hold.at_work, clean: hold.clean };
        let Some(connection) = self.connections[n].as_mut() else { return Ok(()) };
        match connection.reply_with(stream, &reply, &fds) {
            Ok(()) => Ok(()),
            Err(_) => self.disconnect(n),
        }
    }

    /// What was stopped stays so when whoever asked for that has gone.
    fn stay_paused(&mut self) -> Result<()> {
        let Some(hold) = self.hold.take() else { return Ok(()) };
        self.paused(hold.stopped, hold.frozen);
        self.reply(hold.connection, hold.stream, &Reply::Ok);
        self.listen_to_all()
    }

    /// When to look again for those that a hold waits for.
    pub(super) fn hold_moment(&self) -> Option<Instant> {
        self.hold.as_ref()?.until.map(|_| Instant::now() + CLEARING_LOOK)
    }

    pub(super) fn released_by(&mut self, n: usize, stream: u32, after: After) -> Result<()> {
        let Some(hold) = self.hold.as_ref().filter(|hold| hold.connection == n) else {
            self.fail(n, stream, FailureKind::Invalid, "it is not you who holds the box");
            return Ok(());
        };
        if after == After::Renewed && !hold.clean {
            self.fail(n, stream, FailureKind::Invalid, "the box is not as it was when it began");
            return Ok(());
        }
        self.release(after)?;
        self.reply(n, stream, &Reply::Ok);
        Ok(())
    }

    /// Keeps a top of a root that is about to be ours.
    pub(super) fn keep_top(&mut self, n: usize, generation: u64) {
        let holds = self.hold.as_ref().is_some_and(|hold| hold.connection == n);
        let came = self.connections[n].as_mut().and_then(|connection| connection.came.take());
        if let Some(top) = came.filter(|_| holds) {
            // Not more than one beside the present one: an older attempt came to nothing.
            self.tops.truncate(1);
            self.tops.push((generation, top));
        }
    }

    /// Lets the box go on.
    pub(super) fn release(&mut self, after: After) -> Result<()> {
        let Some(hold) = self.hold.take() else { return Ok(()) };
        let restacked = matches!(after, After::Restacked(_));
        let begins_again = after != After::AsBefore && hold.wish.kill;
        if restacked && !self.tracker.root_is_whole() {
            // Whoever changed it was killed halfway. A box that ends is better than one that is neither this nor that.
            return Err(io::Error::other("the box's root was left half changed"));
        }
        if let After::Restacked(Some(generation)) = after {
            self.tracker.was_given(generation);
        }
        if self.tops.len() > 1 {
            // What was written to another root is gone with that.
            let generation = self.tracker.generation();
            self.tops.retain(|(of, _)| *of == generation);
        }
        self.new_root = restacked.then_some(NewRoot { before: hold.generation, cleared: hold.wish.kill });
        if restacked && self.config.landlock {
            // The walls stand on the root that was.
            self.landlock = Some(walls()?);
        }
        if restacked {
            self.scratch = std::mem::take(&mut self.scratch).renewed();
        }
        if after == After::Renewed {
            self.check_zygotes(true)?;
        } else if !self.zygotes.is_empty() {
            // Before they are used again.
            self.look_at_root()?;
        }
        if begins_again {
            // A box that has nothing left of what ran begins again, with its numbers and its clock; nor of what was paused.
            self.turns = 0;
            self.resume_all();
        }
        if self.pause.is_none() {
            self.let_go(hold.stopped, hold.frozen);
        }
        self.bear_all()?;
        self.listen_to_all()
    }

    /// Sees which root the box was given, if it was given one: whoever was to give it another may have been killed before he
    /// did. It takes the kernel a while to say, so it is done when nobody waits for us, if it can wait.
    pub(super) fn look_at_root(&mut self) -> Result<()> {
        let Some(NewRoot { before, cleared }) = self.new_root.take() else { return Ok(()) };
        if before != self.tracker.generation() {
            self.check_zygotes(cleared)?;
        }
        Ok(())
    }

    /// Takes the requests of those who had to wait.
    fn listen_to_all(&mut self) -> Result<()> {
        for n in 0..self.connections.len() {
            if let Some(connection) = self.connections[n].as_mut()
                && std::mem::take(&mut connection.paused)
            {
                listen(&self.epoll, connection, n, connection.watches_out)?;
            }
        }
        Ok(())
    }
}
