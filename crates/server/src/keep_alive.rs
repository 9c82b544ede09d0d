//! The pause after which a stream shows that it is alive.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// Pause after which a stream shows that it is alive.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Runs from the last thing that was written, whatever is read meanwhile. One timer serves a stream to its end.
#[derive(Debug)]
pub(crate) struct KeepAliveTimer(Pin<Box<Sleep>>);

impl KeepAliveTimer {
    pub(crate) fn start() -> Self {
        Self(Box::pin(sleep(KEEP_ALIVE_INTERVAL)))
    }

    /// Something was written.
    pub(crate) fn reset(&mut self) {
        self.0.as_mut().reset(Instant::now() + KEEP_ALIVE_INTERVAL);
    }

    /// # Cancel safety
    /// Safe: a dropped wait does not move the time.
    pub(crate) async fn wait(&mut self) {
        self.0.as_mut().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{interval, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn events_that_are_not_written_do_not_put_it_off() {
        let mut timer = KeepAliveTimer::start();
        let mut events = interval(Duration::from_secs(1));
        let mut read = 0;
        let read_events = async {
            loop {
                tokio::select! {
                    biased;
                    _ = events.tick() => read += 1,
                    () = timer.wait() => break,
                }
            }
        };
        timeout(Duration::from_secs(16), read_events).await.unwrap();
        assert!(read >= 15, "{read}");
        timer.reset();
        assert!(timeout(Duration::from_secs(14), timer.wait()).await.is_err());
    }
}
