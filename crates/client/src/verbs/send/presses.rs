//! The presses of Ctrl-C during `send`: the first stops, the second forces, the third leaves. The requests that carry them are
//! on their way while the run is still followed.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use quell_protocol::RunId;
use quell_protocol::api::StopRunRequest;

use crate::link::{Link, LinkError};

/// What a press means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Press {
    Stop,
    Force,
    Leave,
}

/// The presses so far and the stop requests on their way.
pub(super) struct Presses {
    link: Link,
    run: RunId,
    last: Option<Press>,
    asking: FuturesUnordered<BoxFuture<'static, Result<(), LinkError>>>,
}

impl Presses {
    /// No press yet; the stops will name this run.
    pub(super) fn new(link: &Link, run: RunId) -> Self {
        Self { link: link.clone(), run, last: None, asking: FuturesUnordered::new() }
    }

    /// The run that a press stops.
    pub(super) fn run(&self) -> &RunId {
        &self.run
    }

    /// Names the run as the daemon does. A stop that was asked for before is asked for again: it may have named another run
    /// (the message was handed to an active one), and repeating it changes nothing.
    pub(super) fn turn_to(&mut self, run: &RunId) {
        self.run = run.clone();
        self.asking.clear();
        if self.last.is_some() {
            self.ask();
        }
    }

    /// Counts a press and sends its stop.
    pub(super) fn press(&mut self) -> Press {
        let press = match self.last {
            None => Press::Stop,
            Some(Press::Stop) => Press::Force,
            Some(Press::Force | Press::Leave) => Press::Leave,
        };
        self.last = Some(press);
        if press != Press::Leave {
            self.ask();
        }
        press
    }

    fn ask(&self) {
        let (link, run) = (self.link.clone(), self.run.clone());
        let force = self.last != Some(Press::Stop);
        let asking = async move {
            let request = StopRunRequest { force, ..StopRunRequest::default() };
            link.stop_run(&run, &request).await.map(drop)
        };
        self.asking.push(asking.boxed());
    }

    /// Waits for the answer to the next stop request; for ever while none is on its way.
    ///
    /// # Cancel safety
    /// The requests go on with the next wait.
    pub(super) async fn answer(&mut self) -> Result<(), LinkError> {
        match self.asking.next().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}
