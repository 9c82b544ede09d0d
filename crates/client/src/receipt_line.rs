//! Re-export of the one-line receipt format of the protocol crate, with its examples as tests.

pub(crate) use quell_protocol::receipt::summary_line::unix_millis;
pub use quell_protocol::receipt::summary_line::{amendment_lines, awaits_amendment, receipt_line};

#[cfg(test)]
mod tests {
    use quell_protocol::{Receipt, Resource, ResourceKind, StopReason, TurnRecord, Verdict};

    use super::*;
    use crate::test_support::receipts;

    #[test]
    fn a_stop_says_what_it_closed_and_ended() {
        assert_eq!(
            receipt_line(&receipts::stopped_receipt()),
            "stopped in 12 ms · model closed after 0.4 ms · 3 processes ended (term) · history valid"
        );
    }

    #[test]
    fn a_leftover_is_named() {
        assert_eq!(
            receipt_line(&receipts::leftover_receipt()),
            "stopped in 7 s · 1 process still alive: pid 4242 (sudo), cannot be signalled · history valid"
        );
    }

    #[test]
    fn resources_released_before_the_stop_are_not_counted() {
        let mut receipt = receipts::stopped_receipt();
        for resource in &mut receipt.resources {
            resource.released_at = Some(receipts::instant_after_stop(-100.0));
        }
        assert_eq!(receipt_line(&receipt), "stopped in 12 ms · history valid");
    }

    #[test]
    fn several_models_and_other_kinds_are_counted() {
        let mut receipt = receipts::stopped_receipt();
        let model = receipt.resources.iter().find(|row| row.kind == ResourceKind::ModelRequest).cloned().unwrap();
        receipt.resources.push(Resource { released_at: Some(receipts::instant_after_stop(3.2)), ..model.clone() });
        receipt.resources.push(Resource { kind: ResourceKind::Run, how: "cancelled".into(), ..model.clone() });
        receipt.resources.push(Resource { kind: ResourceKind::McpCall, how: "cancelled".into(), ..model.clone() });
        receipt.resources.push(Resource { kind: ResourceKind::McpCall, how: "cancelled".into(), ..model });
        assert_eq!(
            receipt_line(&receipt),
            "stopped in 12 ms · 2 model requests closed after 3.2 ms · 3 processes ended (term) · 1 sub-run stopped · \
             2 MCP calls cancelled · history valid"
        );
    }

    #[test]
    fn the_other_ends_have_their_words() {
        assert_eq!(receipt_line(&receipts::completed_receipt()), "completed in 2.5 s · history valid");
        assert_eq!(receipt_line(&receipts::withdrawn_receipt()), "stopped in 0 ms · no turn recorded");
        let verdict = Verdict::Failed { code: "model_error".into(), message: "no".into() };
        let failed = Receipt { verdict, turn: TurnRecord { recorded: false }, ..receipts::completed_receipt() };
        assert_eq!(receipt_line(&failed), "failed (model_error) in 2.5 s · history not recorded");
        let verdict = Verdict::Aborted { reason: StopReason::Timeout, by: None };
        let late = Receipt { verdict, ..receipts::stopped_receipt() };
        assert!(receipt_line(&late).ends_with("history valid · reason: timeout"));
    }

    #[test]
    fn children_left_behind_by_a_finished_command_are_told() {
        let mut receipt = receipts::completed_receipt();
        let mut process = receipts::stopped_receipt().resources.pop().unwrap();
        process.how = "exited".into();
        process.released_at = receipt.resources[0].released_at.clone();
        receipt.resources.push(process);
        assert!(receipt_line(&receipt).contains(" · 2 left-behind processes ended · "));
    }

    #[test]
    fn foreign_names_stay_in_the_line() {
        let mut receipt = receipts::leftover_receipt();
        receipt.leftovers[0].name = "pid 1\n(x)\u{1b}[2J".into();
        assert!(receipt_line(&receipt).contains("pid 1 (x) [2J"));
    }
}
