//! Fixed receipts, one per way a run can end.

use quell_protocol::receipt::ProcessFacts;
use quell_protocol::{
    By, Instant, Leftover, Principal, Receipt, Resource, ResourceKind, RunId, Rung, StopReason, Surface, TurnRecord,
    Usage, Verdict,
};

/// A time relative to the stop's request at noon.
pub(crate) fn instant(ms: f64) -> Instant {
    Instant { ms: Some(ms), ..plain(ms) }
}

/// The same time in a receipt without a stop.
fn plain(ms: f64) -> Instant {
    let noon: jiff::Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
    let at = noon + jiff::SignedDuration::from_micros((ms * 1000.0) as i64);
    Instant { at: format!("{at:.6}"), ms: None }
}

pub(crate) fn by_user() -> Verdict {
    let by = By { principal: Principal::parse("admin").unwrap(), surface: Surface::Cli };
    Verdict::Aborted { reason: StopReason::User, by: Some(by) }
}

fn row(kind: ResourceKind, id: u64, label: &str, how: &str) -> Resource {
    Resource {
        kind,
        id,
        label: label.into(),
        opened_at: instant(-1000.0),
        released_at: None,
        how: how.into(),
        process: None,
    }
}

/// A model call and a process tree of three, stopped while they ran.
pub(crate) fn stopped() -> Receipt {
    let facts = ProcessFacts {
        pid: 4242,
        command: "sleep 600".into(),
        swept: 2,
        exit_code: None,
        signal: Some(15),
        held_by: None,
    };
    Receipt {
        run_id: RunId::parse("r1").unwrap(),
        verdict: by_user(),
        requested_at: Some(instant(0.0)),
        delivered_at: Some(instant(0.2)),
        settled_at: instant(12.0),
        rung: Rung::Term,
        resources: vec![
            Resource {
                opened_at: instant(-1200.0),
                released_at: Some(instant(11.5)),
                ..row(ResourceKind::Permit, 1, "", "finished")
            },
            Resource { released_at: Some(instant(0.4)), ..row(ResourceKind::ModelRequest, 2, "demo/chat", "closed") },
            Resource {
                opened_at: instant(-600.0),
                released_at: Some(instant(11.0)),
                process: Some(facts),
                ..row(ResourceKind::Process, 3, "sleep 600", "term")
            },
        ],
        leftovers: Vec::new(),
        usage: Usage { input_tokens: 10, output_tokens: 4, estimated: true },
        turn: TurnRecord { recorded: true },
        amendments: Vec::new(),
        recovered: false,
    }
}

/// A process that could not be signalled.
pub(crate) fn leftover() -> Receipt {
    let facts = ProcessFacts { pid: 4242, command: "sudo sleep 600".into(), ..ProcessFacts::default() };
    Receipt {
        settled_at: instant(7000.0),
        rung: Rung::Abandoned,
        resources: vec![Resource { process: Some(facts), ..row(ResourceKind::Process, 1, "sudo sleep 600", "held") }],
        leftovers: vec![Leftover { kind: ResourceKind::Process, name: "pid 4242 (sudo), cannot be signalled".into() }],
        ..stopped()
    }
}

/// An answer without a stop.
pub(crate) fn completed() -> Receipt {
    let model = Resource {
        opened_at: plain(-2500.0),
        released_at: Some(plain(-10.0)),
        ..row(ResourceKind::ModelRequest, 1, "demo/chat", "finished")
    };
    Receipt {
        verdict: Verdict::Completed,
        requested_at: None,
        delivered_at: None,
        settled_at: plain(0.0),
        rung: Rung::None,
        resources: vec![model],
        ..stopped()
    }
}

/// A queued message that was withdrawn.
pub(crate) fn withdrawn() -> Receipt {
    Receipt {
        settled_at: instant(0.0),
        rung: Rung::None,
        resources: Vec::new(),
        usage: Usage::default(),
        turn: TurnRecord { recorded: false },
        recovered: false,
        ..stopped()
    }
}
