//! Fixed receipts, one per way a run can end.

use quell_protocol::receipt::ProcessFacts;
use quell_protocol::{
    Instant, Leftover, Principal, Receipt, Requester, Resource, ResourceKind, RunId, Rung, StopReason, Surface,
    TurnRecord, Usage, Verdict,
};

/// Milliseconds relative to the stop's request, which is at noon.
pub fn instant_after_stop(ms: f64) -> Instant {
    Instant { ms: Some(ms), ..instant_without_stop(ms) }
}

/// The same time in a receipt without a stop.
fn instant_without_stop(ms: f64) -> Instant {
    let noon: jiff::Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
    let at = noon + jiff::SignedDuration::from_micros((ms * 1000.0) as i64);
    Instant { at: format!("{at:.6}"), ms: None }
}

pub fn aborted_by_user() -> Verdict {
    let by = Requester { principal: Principal::parse("admin").unwrap(), surface: Surface::Cli };
    Verdict::Aborted { reason: StopReason::User, by: Some(by) }
}

fn resource_row(kind: ResourceKind, id: u64, label: &str, how: &str) -> Resource {
    Resource {
        kind,
        id,
        label: label.into(),
        opened_at: instant_after_stop(-1000.0),
        released_at: None,
        how: how.into(),
        process: None,
    }
}

/// A model call and a process tree of three, stopped while running.
pub fn stopped_receipt() -> Receipt {
    let facts = ProcessFacts {
        pid: 4242,
        command: "sleep 600".into(),
        swept: 2,
        exit_code: None,
        signal: Some(15),
        held_by: None,
        sandbox: None,
    };
    Receipt {
        run_id: RunId::parse("r1").unwrap(),
        verdict: aborted_by_user(),
        requested_at: Some(instant_after_stop(0.0)),
        delivered_at: Some(instant_after_stop(0.2)),
        settled_at: instant_after_stop(12.0),
        rung: Rung::Term,
        resources: vec![
            Resource {
                opened_at: instant_after_stop(-1200.0),
                released_at: Some(instant_after_stop(11.5)),
                ..resource_row(ResourceKind::Permit, 1, "", "finished")
            },
            Resource {
                released_at: Some(instant_after_stop(0.4)),
                ..resource_row(ResourceKind::ModelRequest, 2, "demo/chat", "closed")
            },
            Resource {
                opened_at: instant_after_stop(-600.0),
                released_at: Some(instant_after_stop(11.0)),
                process: Some(facts),
                ..resource_row(ResourceKind::Process, 3, "sleep 600", "term")
            },
        ],
        leftovers: Vec::new(),
        usage: Usage { input_tokens: 10, output_tokens: 4, cached_tokens: 0, estimated: true },
        turn: TurnRecord { recorded: true },
        amendments: Vec::new(),
        recovered: false,
    }
}

pub fn leftover_receipt() -> Receipt {
    let facts = ProcessFacts { pid: 4242, command: "sudo sleep 600".into(), ..ProcessFacts::default() };
    Receipt {
        settled_at: instant_after_stop(7000.0),
        rung: Rung::Abandoned,
        resources: vec![Resource {
            process: Some(facts),
            ..resource_row(ResourceKind::Process, 1, "sudo sleep 600", "held")
        }],
        leftovers: vec![Leftover { kind: ResourceKind::Process, name: "pid 4242 (sudo), cannot be signalled".into() }],
        ..stopped_receipt()
    }
}

pub fn completed_receipt() -> Receipt {
    let model = Resource {
        opened_at: instant_without_stop(-2500.0),
        released_at: Some(instant_without_stop(-10.0)),
        ..resource_row(ResourceKind::ModelRequest, 1, "demo/chat", "finished")
    };
    Receipt {
        verdict: Verdict::Completed,
        requested_at: None,
        delivered_at: None,
        settled_at: instant_without_stop(0.0),
        rung: Rung::None,
        resources: vec![model],
        ..stopped_receipt()
    }
}

pub fn withdrawn_receipt() -> Receipt {
    Receipt {
        settled_at: instant_after_stop(0.0),
        rung: Rung::None,
        resources: Vec::new(),
        usage: Usage::default(),
        turn: TurnRecord { recorded: false },
        recovered: false,
        ..stopped_receipt()
    }
}
