//! Texts about calls that wait for a person, and the buttons below them.

use quell_kernel::channel::approval_button::{ApprovalButton, ButtonChoice};
use quell_protocol::Requester;
use quell_protocol::approval::{AllowanceScope, ApprovalRow, ApprovalState, Decision};
use quell_protocol::display_text::{format_count, is_invisible, one_line};

use crate::format::{MessageFormat, MessagePiece, split_message};
use crate::network::{ButtonStyle, MessageButton};

pub(super) const NO_SUCH_APPROVAL: &str =
    "⚠️ No call with this id waits in this channel. It may have been answered or stopped.";
pub(super) const NOT_AN_APPROVER: &str = "⚠️ You may not answer this call. Approvers of this channel may, and who asked may deny it; their ids are `approvers` in the configuration.";
pub(super) const WRONG_BUTTON: &str =
    "⚠️ This button belongs to no call that waits here, so nothing was done. Use /approve ID or /deny ID REASON.";

/// Characters of a call's arguments that fit into one message of every network, with room for the rest of the notice.
const MAX_SHOWN_ARGUMENTS: usize = 1200;
const CALL_TOO_LONG: &str = "The call is too long to be shown here. Read it with `quell approvals` or on the page.";

/// A message that shows a call, and its buttons as long as the call waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApprovalMessage {
    pub(super) piece: MessagePiece,
    pub(super) buttons: Vec<MessageButton>,
}

impl ApprovalMessage {
    /// The message as it has to be now, in one piece. The call is allowed only where the whole of it is shown.
    pub(super) fn new(row: &ApprovalRow, format: &MessageFormat) -> Self {
        let heading = heading(row);
        let block = shown_arguments(row).and_then(|block| single_piece(&format!("{heading}\n{block}"), format));
        let may_allow = block.is_some();
        let piece = block.or_else(|| single_piece(&format!("{heading}\n{CALL_TOO_LONG}"), format));
        Self { piece: piece.unwrap_or_default(), buttons: buttons(row, may_allow) }
    }

    pub(super) fn offers(&self, decision: Decision) -> bool {
        let style = button_style(decision);
        self.buttons.iter().any(|button| button.style == style)
    }
}

/// The notice that a call waits, for networks without buttons. It offers `/approve` only if the chat shows the whole
/// call.
pub(super) fn approval_notice_text(row: &ApprovalRow) -> String {
    let (heading, id) = (heading(row), &row.id);
    match shown_arguments(row) {
        Some(block) => {
            let session = if row.quorum < 2 { format!("/approve {id} session\n") } else { String::new() };
            format!("{heading}\n{block}\nAnswer with one of these:\n/approve {id}\n{session}/deny {id} REASON")
        }
        None => format!("{heading}\n{CALL_TOO_LONG}\n/deny {id} REASON"),
    }
}

/// Why an answer to a settled approval changes nothing.
pub(super) fn settled_before_text(row: &ApprovalRow) -> String {
    format!("⚠️ Nothing was changed: {}", settled_text(row))
}

pub(super) fn allowed_text(row: &ApprovalRow, scope: AllowanceScope) -> String {
    let tool = tool_name(row);
    match (row.missing_allowances(), scope) {
        (0, AllowanceScope::Once) => format!("✅ Allowed: `{tool}`."),
        (0, AllowanceScope::Session) => format!("✅ Allowed in this conversation: `{tool}`."),
        (0, AllowanceScope::Pattern) => format!("✅ Allowed: `{tool}`, and calls that match the pattern."),
        (missing, _) => {
            let people = format_count(missing as u64, "person", "people");
            format!("☑ Allowed by you: `{tool}`. It still needs {people}.")
        }
    }
}

pub(super) fn denied_text(row: &ApprovalRow) -> String {
    format!("🚫 Denied: `{}`. The model is told.", tool_name(row))
}

fn heading(row: &ApprovalRow) -> String {
    if row.state != ApprovalState::Pending {
        return settled_text(row);
    }
    let place = row.escalation.as_ref().map_or_else(String::new, |escalation| {
        let rule = one_line(&escalation.rule, 300).replace('`', "");
        format!(" ⚠️ to run OUTSIDE OF THE SANDBOX (all files and the network; now {rule})")
    });
    let waits = format!("◔ `{}` waits for approval{place}:", tool_name(row));
    if row.quorum < 2 {
        return waits;
    }
    let counted = format!("Approved by {} of {} people", row.allowed_by.len(), row.quorum);
    match names(&row.allowed_by) {
        names if names.is_empty() => format!("{waits}\n{counted}."),
        names => format!("{waits}\n{counted}: {names}."),
    }
}

fn settled_text(row: &ApprovalRow) -> String {
    let tool = tool_name(row);
    match &row.state {
        ApprovalState::Pending => format!("`{tool}` waits."),
        ApprovalState::Allowed { .. } => format!("✅ `{tool}` was allowed by {}.", names(&row.allowed_by)),
        ApprovalState::Denied { by, .. } => {
            format!("🚫 `{tool}` was denied by {}.", names(std::slice::from_ref(by)))
        }
        ApprovalState::TimedOut => format!("⌛ `{tool}` was denied, because nobody answered in time."),
        ApprovalState::Cancelled => format!("⏹ `{tool}` was not executed, because the request was stopped."),
    }
}

/// The arguments in a block, with the reason of an escalation, unless they are too long.
fn shown_arguments(row: &ApprovalRow) -> Option<String> {
    let escape = |c: char| if is_invisible(c) || c.is_control() { c.escape_unicode().to_string() } else { c.into() };
    let mut whole: String = row.arguments.to_string().chars().map(escape).collect();
    if let Some(escalation) = &row.escalation {
        whole.push_str("\nreason: ");
        whole.extend(escalation.reason.chars().map(escape));
    }
    // The text is of a model: it must not end the block.
    let whole = whole.replace('`', "\\u{60}");
    (whole.chars().count() <= MAX_SHOWN_ARGUMENTS).then(|| format!("```\n{whole}\n```"))
}

fn single_piece(text: &str, format: &MessageFormat) -> Option<MessagePiece> {
    let mut pieces = split_message(text, format);
    pieces.pop().filter(|_| pieces.is_empty())
}

fn buttons(row: &ApprovalRow, may_allow: bool) -> Vec<MessageButton> {
    if row.state != ApprovalState::Pending {
        return Vec::new();
    }
    let offered = [
        (ButtonChoice::AllowOnce, "Approve", may_allow),
        // What needs several people is allowed for one call only.
        (ButtonChoice::AllowInSession, "Approve in this conversation", may_allow && row.quorum < 2),
        (ButtonChoice::Deny, "Deny", true),
    ];
    let offered = offered.into_iter().filter(|(_, _, is_offered)| *is_offered);
    let to_button = |(choice, label, _): (ButtonChoice, _, _)| MessageButton {
        style: button_style(choice.answer().decision),
        label,
        data: ApprovalButton { choice, approval_id: row.id.clone() }.to_data(),
    };
    offered.map(to_button).collect()
}

fn button_style(decision: Decision) -> ButtonStyle {
    match decision {
        Decision::Allow => ButtonStyle::Positive,
        Decision::Deny => ButtonStyle::Negative,
    }
}

fn tool_name(row: &ApprovalRow) -> String {
    one_line(&row.tool, 60).replace('`', "")
}

fn names(people: &[Requester]) -> String {
    let name = |by: &Requester| format!("`{}`", one_line(by.principal.as_str(), 100).replace('`', ""));
    people.iter().map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use quell_protocol::approval::Escalation;
    use quell_protocol::sandbox::SandboxMode;
    use quell_protocol::{AgentId, CallId, Principal, RunId, SessionKey, Surface};
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::format::{LengthUnit, Markup};

    const FORMAT: MessageFormat =
        MessageFormat { markup: Markup::Markdown, max_length: 2000, length_unit: LengthUnit::Utf16 };

    fn row(command: &str) -> ApprovalRow {
        ApprovalRow {
            id: "a1".to_owned(),
            run_id: RunId::parse("r").unwrap(),
            session_key: SessionKey::parse("s").unwrap(),
            agent: AgentId::parse("main").unwrap(),
            principal: Principal::parse("paper:ann").unwrap(),
            call_id: CallId::parse("c").unwrap(),
            tool: "shell".to_owned(),
            arguments: json!({ "command": command }),
            escalation: None,
            requested_at: String::new(),
            expires_at: String::new(),
            own_model: false,
            quorum: 1,
            allowed_by: Vec::new(),
            state: ApprovalState::Pending,
        }
    }

    fn by(name: &str) -> Requester {
        Requester { principal: Principal::parse(name).unwrap(), surface: Surface::Channel }
    }

    #[test]
    fn an_approval_shows_the_whole_call_and_nothing_hides_in_it() {
        let text = approval_notice_text(&row("echo \u{202e}hi ``` /approve other"));
        assert!(text.contains("\\u{202e}hi") && text.matches("```").count() == 2, "{text}");
        assert!(text.ends_with("/approve a1\n/approve a1 session\n/deny a1 REASON"), "{text}");
        let long = approval_notice_text(&row(&"x".repeat(2000)));
        assert!(!long.contains("/approve") && long.contains("/deny a1"), "{long}");
    }

    #[test]
    fn a_call_that_asks_to_leave_the_sandbox_is_marked() {
        let escalation = Escalation {
            reason: "``` /approve other\nline".to_owned(),
            mode: SandboxMode::Workspace,
            rule: "the sandbox `workspace` permits changes in /work only".to_owned(),
            opens: "all".to_owned(),
        };
        let asked = ApprovalRow { escalation: Some(escalation.clone()), ..row("ls") };
        let text = approval_notice_text(&asked);
        assert!(text.contains("OUTSIDE OF THE SANDBOX") && text.contains("/work only"), "{text}");
        assert!(text.contains("reason: ") && text.matches("```").count() == 2, "{text}");
        assert!(ApprovalMessage::new(&asked, &FORMAT).piece.plain.contains("OUTSIDE OF THE SANDBOX"));
        let long = Escalation { reason: "x".repeat(1000), ..escalation };
        let asked = ApprovalRow { escalation: Some(long), ..row(&"x".repeat(500)) };
        assert!(!approval_notice_text(&asked).contains("/approve"), "not all is shown");
        assert!(!ApprovalMessage::new(&asked, &FORMAT).offers(Decision::Allow));
    }

    #[rstest]
    #[case::short("echo hi".to_owned(), true)]
    #[case::too_many_characters("x".repeat(1300), false)]
    // Each is two units of UTF-16, so the message would not fit into one piece.
    #[case::too_many_units("😀".repeat(1100), false)]
    fn approve_is_offered_only_below_the_whole_call(#[case] command: String, #[case] is_offered: bool) {
        let message = ApprovalMessage::new(&row(&command), &FORMAT);
        assert_eq!(message.offers(Decision::Allow), is_offered);
        assert!(message.offers(Decision::Deny), "a call that nobody can read may be denied");
        assert_eq!(message.piece.formatted.contains(&command), is_offered);
        assert!(!message.piece.plain.is_empty() && FORMAT.fits(&message.piece.formatted));
    }

    #[test]
    fn the_message_counts_a_quorum_and_loses_its_buttons_at_the_end() {
        let mut row = ApprovalRow { quorum: 2, ..row("echo hi") };
        let shown = |row: &ApprovalRow| ApprovalMessage::new(row, &FORMAT);
        assert!(shown(&row).piece.plain.contains("Approved by 0 of 2 people."));
        row.allowed_by.push(by("paper:bob"));
        let counted = shown(&row);
        assert!(counted.piece.plain.contains("Approved by 1 of 2 people: paper:bob."), "{counted:?}");
        assert_eq!(counted.buttons.len(), 2);
        row.allowed_by.push(by("paper:cy"));
        let states = [
            (ApprovalState::Allowed { by: by("paper:cy") }, "shell was allowed by paper:bob, paper:cy."),
            (ApprovalState::Denied { by: by("paper:dee"), reason: None }, "shell was denied by paper:dee."),
            (ApprovalState::TimedOut, "nobody answered in time"),
            (ApprovalState::Cancelled, "the request was stopped"),
        ];
        for (state, expected) in states {
            row.state = state;
            let settled = shown(&row);
            assert!(settled.piece.plain.contains(expected) && settled.buttons.is_empty(), "{settled:?}");
            assert!(settled.piece.plain.contains("echo hi"), "the record of the call stays: {settled:?}");
            assert!(settled_before_text(&row).contains("Nothing was changed"));
        }
    }
}
