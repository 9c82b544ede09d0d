//! Texts that people read in a chat besides replies.

use std::collections::BTreeSet;

use quell_kernel::channel::sanitise::{EmptyReplyReason, NarrationPolicy, SanitiserRules, sanitise_reply};
use quell_protocol::api::UnreachedNode;
use quell_protocol::display_text::{format_count, format_millis, one_line};
use quell_protocol::receipt::summary_line::receipt_line;
use quell_protocol::{ErrorCode, Receipt, StopReason, Verdict};

pub(super) const TOO_MANY_WAITING: &str =
    "⚠️ Too many of your messages are waiting, so this one is not answered. Send /stop to clear them, or wait.";
pub(super) const STILL_STOPPING: &str = "Still stopping.";
pub(super) const NOTHING_TO_STOP: &str = "Nothing of yours is running here.";
pub(super) const ONLY_CONSOLIDATION_STOPPED: &str =
    "Nothing of yours is running here any more. What was still being noted behind an answer is dropped.";
pub(super) const STOP_ALL_NEEDS_OPERATOR: &str =
    "/stop all is for operators of this channel; /stop ends what you asked for.";
pub(super) const EMPTY_ANSWER: &str =
    "⚠️ The model ended without saying anything. Ask again, or put it in other words.";
pub(super) const TOOL_CALL_AS_TEXT: &str =
    "⚠️ The model wrote a tool call as text instead of an answer. Ask again, or use another model (/model).";

pub(super) const RESTARTED: &str = "⚠️ Quell was restarted before this was answered. Ask again.";
pub(super) const COMMAND_STOPPED: &str = "⏹ Stopped. The command has changed nothing.";
pub(super) const NEW_CONVERSATION_STOPPED: &str =
    "⏹ Stopped. The conversation was not emptied; what was at work in it has been ended.";
pub(super) const COMMAND_STILL_RUNNING: &str =
    "⚠️ Stopped, but something that the command had begun has not ended: it may still take effect.";
pub(super) const FILES_BELOW: &str = "(see below)";
pub(super) const ANSWER_WITHHELD: &str = "(This answer was kept back.)";

/// Up to this number, each receipt of a stop gets a message of its own.
const MAX_SINGLE_RECEIPTS: usize = 3;

pub(super) const TIMED_OUT: &str = "⚠️ Request timed out before it was finished. Ask again, or ask for less at once.";
const QUEUE_TIMED_OUT: &str = "⚠️ Request timed out while it waited for those before it. Ask again.";
const CONTEXT_OVERFLOW: &str = "⚠️ Context window exceeded: the conversation is too long for the model. Ask again, or begin a new one \
                       with /new.";

/// The immediate reply to a stop.
pub(super) fn stopping_text(runs: usize, commands: usize, background_commands: usize, withdrawn: usize) -> String {
    let parts = [
        (runs, "Stopping your request.", format!("Stopping {runs} requests.")),
        (commands, "Stopping your command.", format!("Stopping {commands} commands.")),
        (
            background_commands,
            "Ending 1 background command.",
            format!("Ending {background_commands} background commands."),
        ),
        (
            withdrawn,
            "1 waiting message will not be answered.",
            format!("{withdrawn} waiting messages will not be answered."),
        ),
    ];
    let parts = parts.iter().filter(|(count, ..)| *count > 0);
    parts.map(|(count, one, many)| if *count == 1 { one } else { many.as_str() }).collect::<Vec<_>>().join(" ")
}

/// The part of the reply to a stop for nodes of the cluster that do not answer.
pub(super) fn unreached_nodes_text(unreached: &[UnreachedNode]) -> Option<String> {
    let until = unreached.iter().map(|node| node.lease_ends_in_ms).max()?;
    let names: Vec<&str> = unreached.iter().map(|node| node.node.as_str()).collect();
    let (what, seconds) = (if names.len() == 1 { "A node does" } else { "Some nodes do" }, until.div_ceil(1000));
    Some(format!("⚠️ {what} not answer ({}). What runs there ends within {seconds} s.", names.join(", ")))
}

/// The result of a command that ended before the stop, and that nobody had read by then.
pub(super) fn finished_before_stop_text(outcome: &str) -> String {
    format!("⏹ It was over before the stop. {outcome}")
}

pub(super) fn stop_receipt_text(receipt: &Receipt) -> String {
    format!("⏹ {}", receipt_line(receipt))
}

/// The report of background commands that a stop ended; `left` has the ids of those that may still have live processes.
pub(super) fn commands_ended_text(commands: usize, left: &[&str]) -> Option<String> {
    let ended = || format!("⏹ {} ended", format_count(commands as u64, "background command", "background commands"));
    match left {
        [] => (commands > 0).then(ended),
        some => Some(format!(
            "⚠️ What these commands started may still be alive: {}. `quell processes` shows it.",
            some.join(", ")
        )),
    }
}

/// Tells the sender why a message or a command was refused. The details may be private, and are in the log only.
pub(super) fn rejection_text(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::Held => "⚠️ Quell is on hold, so this is not answered. Ask again when it goes on.",
        ErrorCode::ShuttingDown => "⚠️ Quell is shutting down, so this is not answered. Ask again when it is back.",
        ErrorCode::Busy => {
            "⚠️ Your last request is still at work, so this one is not answered. Wait for it, or send /stop and ask again."
        }
        ErrorCode::QueueFull => TOO_MANY_WAITING,
        ErrorCode::SpendLimit => {
            "⚠️ What may be spent in a day is used up, so this is not answered. Ask again tomorrow."
        }
        ErrorCode::AgentNotFound => {
            "⚠️ The agent of this channel is gone, so this is not answered. Whoever runs Quell finds more in its log."
        }
        ErrorCode::Conflict => {
            "⚠️ This came together with a message from before a restart, and is not answered. Send it again."
        }
        ErrorCode::SessionRefused => "⚠️ This was refused. Whoever runs Quell finds the reason in its log.",
        _ => "⚠️ This could not be done. Ask again; whoever runs Quell finds the reason in its log.",
    }
}

pub(super) fn file_error_text(source: &str, why: &str) -> String {
    format!("⚠️ {} could not be sent: {why}", quell_protocol::display_text::one_line(source, 200))
}

/// The reports of all runs that one stop ended: one text each, or a summary if there are more than a few.
pub(super) fn stop_receipt_texts(receipts: &[Receipt]) -> Vec<String> {
    if receipts.len() <= MAX_SINGLE_RECEIPTS {
        return receipts.iter().map(stop_receipt_text).collect();
    }
    let slowest = receipts.iter().filter_map(|receipt| receipt.settled_at.ms).reduce(f64::max);
    let slowest = slowest.map(|ms| format!(", the slowest in {}", format_millis(ms)));
    let mut parts = vec![format!("⏹ {} requests stopped{}", receipts.len(), slowest.unwrap_or_default())];
    let left = run_ids_where(receipts, |receipt| !receipt.leftovers.is_empty());
    parts.push(match left.len() {
        0 => "all processes dead, nothing left open".to_owned(),
        some => format!("⚠️ {some} left something behind: {}", left.join(", ")),
    });
    let lost = run_ids_where(receipts, |receipt| !receipt.turn.recorded);
    parts.push(match lost.len() {
        0 => "all histories valid".to_owned(),
        some => format!("⚠️ {} not recorded: {}", format_count(some as u64, "history", "histories"), lost.join(", ")),
    });
    if !(left.is_empty() && lost.is_empty()) {
        parts.push("`quell runs show ID` has the details".to_owned());
    }
    vec![parts.join(" · ")]
}

fn run_ids_where(receipts: &[Receipt], is_so: impl Fn(&Receipt) -> bool) -> Vec<&str> {
    receipts.iter().filter(|receipt| is_so(receipt)).map(|receipt| receipt.run_id.as_str()).collect()
}

/// The text at the end of a run without a reply; `None` if its stop is reported elsewhere, or the sender knows of it.
pub(super) fn no_answer_text(verdict: &Verdict, receipt: &Receipt) -> Option<String> {
    match verdict {
        Verdict::Completed => None,
        Verdict::Failed { code, .. } if code == "withheld" => None,
        Verdict::Failed { code, .. } if code == "context_overflow" => Some(CONTEXT_OVERFLOW.to_owned()),
        Verdict::Failed { code, .. } => Some(format!("⚠️ {} ({code}).", failure_text(code))),
        Verdict::Aborted { reason, .. } => match reason {
            StopReason::Command | StopReason::Superseded => None,
            // The run held nothing: it was still queued.
            StopReason::Timeout if receipt.resources.is_empty() => Some(QUEUE_TIMED_OUT.to_owned()),
            StopReason::Timeout => Some(TIMED_OUT.to_owned()),
            StopReason::Steps => Some("⚠️ Stopped: the steps of this request are used up.".to_owned()),
            StopReason::Tokens => Some("⚠️ Stopped: the tokens of this request are used up.".to_owned()),
            StopReason::DailyLimit => Some("⚠️ Stopped: what may be spent in a day is used up.".to_owned()),
            StopReason::Shutdown | StopReason::DaemonStopped => {
                Some("⚠️ Stopped: Quell is shutting down. Ask again when it is back.".to_owned())
            }
            StopReason::User | StopReason::Disconnect | StopReason::Other(_) => Some(stop_receipt_text(receipt)),
        },
    }
}

/// Sanitises a complete answer. The result is never blank.
pub(super) fn sanitise_answer(answer: &str, tools: &BTreeSet<String>, narration: NarrationPolicy) -> String {
    let cleaned = sanitise_reply(answer, &SanitiserRules { tools, narration_policy: narration });
    match cleaned.empty_reason {
        None => cleaned.text,
        Some(EmptyReplyReason::Blank) => EMPTY_ANSWER.to_owned(),
        Some(EmptyReplyReason::OnlyProtocol) => TOOL_CALL_AS_TEXT.to_owned(),
    }
}

/// Tells the sender what failed. The details may be private: they are in the log and in the record of the run only.
fn failure_text(code: &str) -> &'static str {
    match code {
        "empty_answer" => "The model ended without an answer. Ask again, or use another model (/model)",
        "vision" => "The model cannot see pictures. Ask without them, or use another model (/model)",
        "refused" => "The model refuses to answer this",
        "rate_limit" | "overloaded" => "The model has too much to do. Ask again in a moment",
        "store" => "What is done could not be written down, so it was not done. Ask again later",
        _ => "This failed. Ask again; whoever runs Quell finds the reason in its log",
    }
}

/// The reply could not be delivered completely.
pub(super) const ANSWER_UNDELIVERED: &str =
    "⚠️ The answer could not be shown here as a whole; it stands in the history. Ask for it again.";

pub(super) const DELIVERY_UNKNOWN: &str =
    "⚠️ It is not known whether all of the answer is shown here; the whole of it stands in the history.";

/// The end of a draft that was cut off.
pub(super) fn draft_ending_text(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Aborted { reason: StopReason::Timeout, .. } => TIMED_OUT,
        Verdict::Aborted { reason: StopReason::Superseded, .. } => "⏹ Stopped: you wrote again.",
        Verdict::Aborted { .. } => "⏹ Stopped.",
        Verdict::Failed { .. } | Verdict::Completed => "⚠️ This was not finished.",
    }
}

pub(super) fn tool_notice_text(tool: &str, arguments: &serde_json::Value) -> String {
    let shown = ["command", "query", "path", "url"].iter().find_map(|key| arguments.get(key)?.as_str());
    let shown = shown.map_or_else(|| arguments.to_string(), str::to_owned);
    format!("🔧 `{tool}`: {}", one_line(&shown, 200))
}

#[cfg(test)]
mod tests {
    use quell_protocol::receipt::{Instant, Rung, TurnRecord, Usage};
    use quell_protocol::{Leftover, ResourceKind, RunId};

    use super::*;

    /// The receipt of a run that was stopped within `ms` milliseconds.
    fn receipt(number: u32, ms: f64) -> Receipt {
        Receipt {
            run_id: RunId::parse(format!("paper:{number}")).unwrap(),
            verdict: Verdict::Aborted { reason: StopReason::Command, by: None },
            requested_at: None,
            delivered_at: None,
            settled_at: Instant { at: "2026-01-02T03:04:05.000000Z".to_owned(), ms: Some(ms) },
            rung: Rung::Cancel,
            resources: Vec::new(),
            leftovers: Vec::new(),
            usage: Usage::default(),
            turn: TurnRecord { recorded: true },
            amendments: Vec::new(),
            recovered: false,
        }
    }

    #[test]
    fn few_receipts_are_told_one_by_one_and_many_are_summed_up() {
        let receipts: Vec<Receipt> =
            [12.0, 1_400.0, 7.0, 30.0].into_iter().zip(1..).map(|(ms, n)| receipt(n, ms)).collect();
        assert_eq!(stop_receipt_texts(&[]), Vec::<String>::new());
        let few = stop_receipt_texts(&receipts[..3]);
        assert!(few.len() == 3 && few[1].starts_with("⏹ stopped in 1.4 s"), "{few:?}");
        let all =
            "⏹ 4 requests stopped, the slowest in 1.4 s · all processes dead, nothing left open · all histories valid";
        assert_eq!(stop_receipt_texts(&receipts), [all]);
    }

    #[test]
    fn incomplete_stops_are_named_among_many() {
        let mut receipts: Vec<Receipt> = (1..=5).map(|number| receipt(number, 5_000.0)).collect();
        for number in [1, 3] {
            receipts[number].leftovers =
                vec![Leftover { kind: ResourceKind::Process, name: "pid 4242 (sudo)".to_owned() }];
        }
        receipts[0].turn.recorded = false;
        let expected = "⏹ 5 requests stopped, the slowest in 5 s · ⚠️ 2 left something behind: paper:2, paper:4 · \
                    ⚠️ 1 history not recorded: paper:1 · `quell runs show ID` has the details";
        assert_eq!(stop_receipt_texts(&receipts), [expected]);
    }
}
