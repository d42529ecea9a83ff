//! Work that goes on though nobody waits for it any more.
//!
//! A caller who hangs up takes his request with him, wherever it waits in that moment. A task of its own would not notice; but a task is one
//! more station on the way to the caller and back, and most callers wait. So the work is done where it is asked for, and becomes a
//! task only when it is left.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Work, done by whoever waits for it, and by nobody else as long as he does.
pub(crate) struct GoingOn<F: Future<Output: Send> + Send + 'static>(Option<Pin<Box<F>>>);

/// Does this to its end, in whatever way.
pub(crate) fn going_on<F: Future<Output: Send> + Send + 'static>(work: F) -> GoingOn<F> {
    GoingOn(Some(Box::pin(work)))
}

impl<F: Future<Output: Send> + Send + 'static> Future for GoingOn<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let work = self.0.as_mut().expect("nobody waits for it again when it is done");
        let polled = work.as_mut().poll(context);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for GoingOn<F> {
    fn drop(&mut self) {
        let left = self.0.take().filter(|_| !std::thread::panicking());
        // Without anybody to go on, it ends here: the server does, too.
        if let (Some(work), Ok(runtime)) = (left, tokio::runtime::Handle::try_current()) {
            runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn what_is_waited_for_is_answered() {
        assert_eq!(going_on(async { 6 * 7 }).await, 42);
    }

    #[tokio::test]
    async fn what_is_left_in_the_middle_goes_on() {
        let (go, wait) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        let work = going_on(async move {
            wait.await.unwrap();
            tell.send("done").unwrap();
        });
        tokio::select! {
            biased;
            () = work => panic!("it waits"),
            () = async {} => {}
        }
        go.send(()).unwrap();
        assert_eq!(told.await, Ok("done"));
    }

    #[tokio::test]
    async fn what_nobody_ever_waited_for_is_done() {
        let (tell, told) = oneshot::channel();
        drop(going_on(async move { tell.send("done").unwrap() }));
        assert_eq!(told.await, Ok("done"));
    }
}
