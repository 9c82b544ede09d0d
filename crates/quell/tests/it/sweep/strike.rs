//! The stop itself, in every way in which people and programs do it.

use std::pin::pin;
use std::sync::Barrier;

use futures_util::poll;
use quell_engine::Engine;
use quell_engine::dispatch::{Caller, Stop};
use quell_kernel::Push;
use quell_kernel::registry::StopAsk;
use quell_protocol::{RunId, StopReason};

use crate::harness::{alice, of_run, root};

/// How a run is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Once.
    Gentle,
    /// Once, without grace.
    Forced,
    /// By its owner over HTTP and an admin over the WebSocket, on two threads, at once.
    TwoDoors,
    /// Once, while whoever sent the message and whoever waits for the stop have gone.
    CallerGone,
}

/// What the callers were told.
#[derive(Debug)]
pub(super) struct Struck(pub(super) Vec<(Caller, Stop)>);

impl Struck {
    /// Who was told that the run was stopped by this very call.
    pub(super) fn winners(&self, run: &RunId) -> Vec<&Caller> {
        self.0.iter().filter(|(_, stop)| stop.aborted.contains(run)).map(|(caller, _)| caller).collect()
    }
}

/// Stops the run. Synchronous, on whatever thread this is.
pub(super) fn strike(engine: &Engine, run: &RunId, mode: Mode) -> Struck {
    let stop = |caller: Caller, push| {
        let ask = StopAsk { push, reason: StopReason::User, surface: caller.surface };
        let stop = engine.stop(&caller, &of_run(run), &ask);
        (caller, stop)
    };
    match mode {
        Mode::Gentle | Mode::CallerGone => Struck(vec![stop(alice(), Push::Gentle)]),
        Mode::Forced => Struck(vec![stop(alice(), Push::Forced)]),
        Mode::TwoDoors => {
            let start = Barrier::new(2);
            let door = |caller| {
                start.wait();
                stop(caller, Push::Gentle)
            };
            std::thread::scope(|threads| {
                let doors = [alice(), root()].map(|caller| threads.spawn(|| door(caller)));
                Struck(doors.into_iter().map(|door| door.join().unwrap()).collect())
            })
        }
    }
}

/// Begins to wait for the end of the stopped runs, as a door does, and goes away.
pub(super) async fn wait_and_leave(struck: &Struck) {
    for ticket in struck.0.iter().flat_map(|(_, stop)| &stop.tickets) {
        let mut waiting = pin!(ticket.settled());
        // Whether it is settled already does not matter here.
        let _ = poll!(waiting.as_mut());
    }
}
