//! The life of an approval: a call waits for a person; the first answer, time-out or stop settles it for good.

use quell_protocol::By;
use quell_protocol::approval::ApprovalState;
use serde::{Deserialize, Serialize};

/// Whether a tool's calls wait for a person; the later is the stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalPolicy {
    /// They run.
    #[default]
    Auto,
    /// Each waits.
    Ask,
    /// None runs.
    Deny,
}

/// What can happen to an approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApprovalInput {
    /// A person lets the call run.
    Allow(By),
    /// A person forbids it.
    Deny(By),
    /// Nobody answered in time: a denial that says so.
    TimedOut,
    /// The run was stopped.
    Cancel,
}

/// One transition; none when the approval was settled before and stays as it is.
#[must_use]
pub fn settle(state: &ApprovalState, input: ApprovalInput) -> Option<ApprovalState> {
    match state {
        ApprovalState::Pending => Some(match input {
            ApprovalInput::Allow(by) => ApprovalState::Allowed { by },
            ApprovalInput::Deny(by) => ApprovalState::Denied { by },
            ApprovalInput::TimedOut => ApprovalState::TimedOut,
            ApprovalInput::Cancel => ApprovalState::Cancelled,
        }),
        ApprovalState::Allowed { .. }
        | ApprovalState::Denied { .. }
        | ApprovalState::TimedOut
        | ApprovalState::Cancelled => None,
    }
}

#[cfg(test)]
mod tests {
    use quell_protocol::{Principal, Surface};

    use super::*;

    fn inputs() -> [ApprovalInput; 4] {
        let by = || By { principal: Principal::parse("ann").expect("a principal"), surface: Surface::Http };
        [ApprovalInput::Allow(by()), ApprovalInput::Deny(by()), ApprovalInput::TimedOut, ApprovalInput::Cancel]
    }

    #[test]
    fn the_first_word_stands_and_every_later_one_is_refused() {
        let mut words = Vec::new();
        for first in inputs() {
            let settled = settle(&ApprovalState::Pending, first).expect("it was pending");
            words.push(settled.word());
            for later in inputs() {
                assert_eq!(settle(&settled, later), None);
            }
        }
        assert_eq!(words, ["allow", "deny", "timeout", "cancelled"]);
    }
}
