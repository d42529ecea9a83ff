//! The line to a box: one link for its life, or one after the other where another root is another first process.
//!
//! In a container, a reset ends the guest and starts another. Whoever holds the box goes on with that one: the next time
//! he has something to say, the line is drawn anew. What was under way on the old one has ended with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::Link;
use crate::error::Result;

/// Says how to reach the guest that a box has now, if it is another one than before.
type Another = dyn Fn() -> Option<std::os::unix::net::UnixStream> + Send + Sync;

/// The line to a box. Copies are the same line.
#[derive(Clone)]
pub(crate) struct Line {
    now: Arc<RwLock<Link>>,
    another: Arc<Another>,
    was_drawn_anew: Arc<AtomicBool>,
}

impl Line {
    pub(crate) fn new(
        link: Link,
        another: impl Fn() -> Option<std::os::unix::net::UnixStream> + Send + Sync + 'static,
    ) -> Line {
        Line { now: Arc::new(RwLock::new(link)), another: Arc::new(another), was_drawn_anew: Arc::default() }
    }

    /// Whether it is still the first link, and the guest was there when we last heard of it.
    pub(crate) fn is_unbroken(&self) -> bool {
        let link = self.now.read().unwrap_or_else(PoisonError::into_inner);
        !self.was_drawn_anew.load(Ordering::Relaxed) && !link.is_closed()
    }

    /// The link to the box's guest. If that one has ended and no other came, it is the closed one, which says why.
    pub(crate) async fn link(&self) -> Result<Link> {
        let link = self.now.read().unwrap_or_else(PoisonError::into_inner).clone();
        if link.closed().is_none() {
            return Ok(link);
        }
        let Some(stream) = (self.another)() else { return Ok(link) };
        let link = Link::start(stream).await?;
        self.was_drawn_anew.store(true, Ordering::Relaxed);
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = link.clone();
        Ok(link)
    }
}
