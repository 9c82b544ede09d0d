//! Texts about calls that wait for a person, and the buttons below them, in every language of chats.

use quell_engine::engine::AnswerError;
use quell_kernel::approval::DecisionForbidden;
use quell_kernel::approval_rules::AllowanceProblem;
use quell_kernel::channel::approval_button::{ApprovalButton, ButtonChoice};
use quell_kernel::channel::chat_language::ChatLanguage;
use quell_kernel::channel::chat_text::ChatText;
use quell_protocol::Requester;
use quell_protocol::approval::{AllowanceScope, ApprovalRow, ApprovalState, Decision, MAX_REASON_CHARS};
use quell_protocol::display_text::{is_invisible, one_line};

use super::question_texts;
use crate::format::{MessageFormat, MessagePiece, split_message};
use crate::network::{ButtonStyle, MessageButton};

pub(super) const NO_SUCH_APPROVAL: ChatText = ChatText::new(
    "⚠️ No call with this id waits in this channel. It may have been answered or stopped.",
    "⚠️ 이 채널에는 이 id로 대기 중인 호출이 없습니다. 이미 응답했거나 중지되었을 수 있습니다.",
    "⚠️ 此频道中没有使用该 id 的等待中的调用。它可能已被答复或停止。",
);
pub(super) const NOT_AN_APPROVER: ChatText = ChatText::new(
    "⚠️ You may not answer this call. Approvers of this channel may, and who asked may deny it; their ids are `approvers` in the configuration.",
    "⚠️ 이 호출에 응답할 권한이 없습니다. 이 채널의 승인자가 응답할 수 있고, 요청한 사람은 거부할 수 있습니다. 승인자의 id는 설정의 `approvers`에 있습니다.",
    "⚠️ 您无权答复此调用。此频道的批准人可以答复，提出请求的人可以拒绝；批准人的 id 在配置的 `approvers` 中。",
);
pub(super) const WRONG_BUTTON: ChatText = ChatText::new(
    "⚠️ This button belongs to no call that waits here, so nothing was done. Use /approve ID or /deny ID REASON.",
    "⚠️ 이 버튼은 여기서 대기 중인 호출의 것이 아니므로 아무것도 하지 않았습니다. /approve ID 또는 /deny ID REASON을 사용하세요.",
    "⚠️ 此按钮不属于这里任何等待中的调用，因此没有执行任何操作。请使用 /approve ID 或 /deny ID REASON。",
);

/// Characters of a call's arguments that fit into one message of every network, with room for the rest of the notice.
const MAX_SHOWN_ARGUMENTS: usize = 1200;
const CALL_TOO_LONG: ChatText = ChatText::new(
    "The call is too long to be shown here. Read it with `quell approvals` or on the page.",
    "호출이 너무 길어 여기에 표시할 수 없습니다. `quell approvals` 또는 페이지에서 확인하세요.",
    "调用太长，无法在此显示。请用 `quell approvals` 或在页面上查看。",
);

const APPROVE: ChatText = ChatText::new("Approve", "승인", "批准");
const APPROVE_IN_CONVERSATION: ChatText =
    ChatText::new("Approve in this conversation", "이 대화에서 계속 승인", "在此对话中批准");
const DENY: ChatText = ChatText::new("Deny", "거부", "拒绝");

/// A message that shows a call, and its buttons as long as the call waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApprovalMessage {
    pub(super) piece: MessagePiece,
    pub(super) buttons: Vec<MessageButton>,
}

impl ApprovalMessage {
    /// The message as it has to be now, in one piece. The call is allowed only where the whole of it is shown.
    pub(super) fn new(row: &ApprovalRow, format: &MessageFormat, language: ChatLanguage) -> Self {
        let heading = heading(row, language);
        let block = shown_arguments(row, language);
        let hint = question_texts::answer_hint(row, language);
        let hint_line = hint.as_ref().map(|hint| format!("\n{hint}")).unwrap_or_default();
        let block = block.and_then(|block| single_piece(&format!("{heading}\n{block}{hint_line}"), format));
        // A button carries no values of fields.
        let may_allow = block.is_some() && hint.is_none();
        let too_long = || single_piece(&format!("{heading}\n{}", CALL_TOO_LONG.text(language)), format);
        let piece = block.or_else(too_long);
        Self { piece: piece.unwrap_or_default(), buttons: buttons(row, may_allow, language) }
    }

    pub(super) fn offers(&self, decision: Decision) -> bool {
        let style = button_style(decision);
        self.buttons.iter().any(|button| button.style == style)
    }
}

const ANSWER_WITH: ChatText =
    ChatText::new("Answer with one of these:", "다음 중 하나로 응답하세요:", "请用以下之一答复：");

/// The notice that a call waits, for networks without buttons. It offers `/approve` only if the chat shows the whole
/// call.
pub(super) fn approval_notice_text(row: &ApprovalRow, language: ChatLanguage) -> String {
    let (heading, id) = (heading(row, language), &row.id);
    match (shown_arguments(row, language), &row.question) {
        (Some(block), Some(question)) => {
            let (answers, form) = (ANSWER_WITH.text(language), question.answer_form());
            format!("{heading}\n{block}\n{answers}\n/approve {id} {form}\n/deny {id}")
        }
        (Some(block), None) => {
            let session = if row.quorum < 2 { format!("/approve {id} session\n") } else { String::new() };
            let answers = ANSWER_WITH.text(language);
            format!("{heading}\n{block}\n{answers}\n/approve {id}\n{session}/deny {id} REASON")
        }
        (None, _) => format!("{heading}\n{}\n/deny {id} REASON", CALL_TOO_LONG.text(language)),
    }
}

const NOTHING_CHANGED: ChatText =
    ChatText::new("⚠️ Nothing was changed: {state}", "⚠️ 바뀐 것이 없습니다: {state}", "⚠️ 没有任何改变：{state}");

/// Why an answer to a settled approval changes nothing.
pub(super) fn settled_before_text(row: &ApprovalRow, language: ChatLanguage) -> String {
    NOTHING_CHANGED.format(language, &[("state", &settled_text(row, language))])
}

const ALLOWED: ChatText = ChatText::new("✅ Allowed: `{tool}`.", "✅ 허용했습니다: `{tool}`.", "✅ 已允许：`{tool}`。");
const ALLOWED_IN_CONVERSATION: ChatText = ChatText::new(
    "✅ Allowed in this conversation: `{tool}`.",
    "✅ 이 대화에서 허용했습니다: `{tool}`.",
    "✅ 已在此对话中允许：`{tool}`。",
);
const ALLOWED_BY_PATTERN: ChatText = ChatText::new(
    "✅ Allowed: `{tool}`, and calls that match the pattern.",
    "✅ 허용했습니다: `{tool}`, 패턴과 일치하는 호출도 허용합니다.",
    "✅ 已允许：`{tool}`，以及匹配该模式的调用。",
);
const NEEDS_PERSON: ChatText = ChatText::new(
    "☑ Allowed by you: `{tool}`. It still needs {n} person.",
    "☑ 허용하셨습니다: `{tool}`. 아직 {n}명이 더 필요합니다.",
    "☑ 您已允许：`{tool}`。还需要 {n} 人。",
);
const NEEDS_PEOPLE: ChatText = ChatText::new(
    "☑ Allowed by you: `{tool}`. It still needs {n} people.",
    "☑ 허용하셨습니다: `{tool}`. 아직 {n}명이 더 필요합니다.",
    "☑ 您已允许：`{tool}`。还需要 {n} 人。",
);

pub(super) fn allowed_text(row: &ApprovalRow, scope: AllowanceScope, language: ChatLanguage) -> String {
    let (tool, missing) = (tool_name(row), row.missing_allowances());
    let text = match (missing, scope) {
        (0, _) if row.question.is_some() => question_texts::ANSWERED,
        (0, AllowanceScope::Once) => ALLOWED,
        (0, AllowanceScope::Session) => ALLOWED_IN_CONVERSATION,
        (0, AllowanceScope::Pattern) => ALLOWED_BY_PATTERN,
        (1, _) => NEEDS_PERSON,
        (_, _) => NEEDS_PEOPLE,
    };
    text.format(language, &[("tool", &tool), ("n", &missing)])
}

const DENIED: ChatText = ChatText::new(
    "🚫 Denied: `{tool}`. The model is told.",
    "🚫 거부했습니다: `{tool}`. 모델에 알립니다.",
    "🚫 已拒绝：`{tool}`。模型会被告知。",
);

pub(super) fn denied_text(row: &ApprovalRow, language: ChatLanguage) -> String {
    let text = if row.question.is_some() { question_texts::DECLINED } else { DENIED };
    text.format(language, &[("tool", &tool_name(row))])
}

const OUTSIDE_OF_SANDBOX: ChatText = ChatText::new(
    " ⚠️ to run OUTSIDE OF THE SANDBOX (all files and the network; now {rule})",
    " ⚠️ 샌드박스 밖에서 실행 (모든 파일과 네트워크; 현재 {rule})",
    " ⚠️ 在沙箱之外运行（所有文件和网络；当前 {rule}）",
);
const CALL_WAITS: ChatText = ChatText::new(
    "◔ `{tool}` waits for approval{place}:",
    "◔ `{tool}` 호출이 승인을 기다립니다{place}:",
    "◔ `{tool}` 正在等待批准{place}：",
);
const APPROVED_BY_NUMBER: ChatText = ChatText::new(
    "Approved by {n} of {quorum} people.",
    "{quorum}명 중 {n}명이 승인했습니다.",
    "{quorum} 人中已有 {n} 人批准。",
);
const APPROVED_BY_PEOPLE: ChatText = ChatText::new(
    "Approved by {n} of {quorum} people: {names}.",
    "{quorum}명 중 {n}명이 승인했습니다: {names}.",
    "{quorum} 人中已有 {n} 人批准：{names}。",
);

fn heading(row: &ApprovalRow, language: ChatLanguage) -> String {
    if row.state != ApprovalState::Pending {
        return settled_text(row, language);
    }
    if let Some(question) = &row.question {
        return question_texts::heading(question, &tool_name(row), language);
    }
    let place = row.escalation.as_ref().map_or_else(String::new, |escalation| {
        let rule = one_line(&escalation.rule, 300).replace('`', "");
        OUTSIDE_OF_SANDBOX.format(language, &[("rule", &rule)])
    });
    let waits = CALL_WAITS.format(language, &[("tool", &tool_name(row)), ("place", &place)]);
    if row.quorum < 2 {
        return waits;
    }
    let names = names(&row.allowed_by);
    let counted = if names.is_empty() { APPROVED_BY_NUMBER } else { APPROVED_BY_PEOPLE };
    let counted = counted.format(language, &[("n", &row.allowed_by.len()), ("quorum", &row.quorum), ("names", &names)]);
    format!("{waits}\n{counted}")
}

const STATE_WAITING: ChatText = ChatText::new("`{tool}` waits.", "`{tool}` 호출이 기다립니다.", "`{tool}` 正在等待。");
const STATE_ALLOWED: ChatText = ChatText::new(
    "✅ `{tool}` was allowed by {names}.",
    "✅ `{tool}` 호출이 허용되었습니다 ({names}).",
    "✅ `{tool}` 已由 {names} 允许。",
);
const STATE_DENIED: ChatText = ChatText::new(
    "🚫 `{tool}` was denied by {names}.",
    "🚫 `{tool}` 호출이 거부되었습니다 ({names}).",
    "🚫 `{tool}` 已由 {names} 拒绝。",
);
const STATE_TIMED_OUT: ChatText = ChatText::new(
    "⌛ `{tool}` was denied, because nobody answered in time.",
    "⌛ 제시간에 응답한 사람이 없어 `{tool}` 호출이 거부되었습니다.",
    "⌛ 无人及时答复，`{tool}` 已被拒绝。",
);
const STATE_CANCELLED: ChatText = ChatText::new(
    "⏹ `{tool}` was not executed, because the request was stopped.",
    "⏹ 요청이 중지되어 `{tool}` 호출은 실행되지 않았습니다.",
    "⏹ 请求已停止，`{tool}` 未执行。",
);

fn settled_text(row: &ApprovalRow, language: ChatLanguage) -> String {
    let (text, people) = match &row.state {
        ApprovalState::Pending => (STATE_WAITING, String::new()),
        ApprovalState::Allowed { .. } => (STATE_ALLOWED, names(&row.allowed_by)),
        ApprovalState::Denied { by, .. } => (STATE_DENIED, names(std::slice::from_ref(by))),
        ApprovalState::TimedOut => (STATE_TIMED_OUT, String::new()),
        ApprovalState::Cancelled => (STATE_CANCELLED, String::new()),
    };
    let text = if row.question.is_some() { question_texts::state_text(&row.state) } else { text };
    text.format(language, &[("tool", &tool_name(row)), ("names", &people)])
}

const NOT_ANSWERED: ChatText =
    ChatText::new("⚠️ Not answered: {reason}.", "⚠️ 응답하지 못했습니다: {reason}.", "⚠️ 未能答复：{reason}。");
const ALREADY_COUNTED: ChatText = ChatText::new(
    "you have allowed the call already, and it needs {n} more; somebody else has to answer",
    "이미 이 호출을 허용하셨고 {n}명이 더 필요합니다. 다른 사람이 응답해야 합니다",
    "您已允许此调用，还需要 {n} 人；须由其他人答复",
);
const REASON_TOO_LONG: ChatText = ChatText::new(
    "the reason is too long; it may have {n} characters",
    "이유가 너무 깁니다. {n}자까지 쓸 수 있습니다",
    "理由太长；最多 {n} 个字符",
);
const OWN_MODEL_NEEDS_ADMIN: ChatText = ChatText::new(
    "the run uses a model or an MCP endpoint that its session configured; only an admin may allow its calls",
    "이 실행은 세션이 설정한 모델 또는 MCP 주소를 사용하므로 관리자만 호출을 허용할 수 있습니다",
    "此运行使用其会话配置的模型或 MCP 地址；只有管理员可以允许其调用",
);
const PATTERN_TOO_LONG: ChatText = ChatText::new("the pattern is too long", "패턴이 너무 깁니다", "模式太长");
const PATTERN_TOO_BROAD: ChatText = ChatText::new(
    "the pattern begins with `*`, so it would cover every program; begin it with the name of one, such as `git push *`",
    "패턴이 `*`로 시작하면 모든 프로그램에 해당합니다. `git push *`처럼 프로그램 이름으로 시작하세요",
    "模式以 `*` 开头会涵盖所有程序；请以程序名开头，例如 `git push *`",
);
const PATTERN_MATCHES_NOT: ChatText = ChatText::new(
    "the pattern does not match the call that waits, so it would not cover it",
    "패턴이 대기 중인 호출과 일치하지 않아 그 호출에 해당하지 않습니다",
    "模式与等待中的调用不匹配，因此不会涵盖它",
);
const NO_PATTERN_FOR_TOOL: ChatText = ChatText::new(
    "a call of {tool} has no command and no path that a pattern could match; allow it once or for the session",
    "{tool} 호출에는 패턴과 비교할 명령이나 경로가 없습니다. 한 번만 또는 이 대화에서 허용하세요",
    "{tool} 的调用没有可供模式匹配的命令或路径；请允许一次或在此对话中允许",
);
const NO_PATTERN_OUTSIDE: ChatText = ChatText::new(
    "a pattern for {tool} outside of the sandbox would not confine it; allow it once",
    "샌드박스 밖의 {tool} 호출은 패턴으로 제한할 수 없습니다. 한 번만 허용하세요",
    "沙箱之外的 {tool} 无法用模式限制；请允许一次",
);
const ESCALATED_ONCE: ChatText = ChatText::new(
    "a call outside of the sandbox is not allowed for a whole conversation; allow it once",
    "샌드박스 밖의 호출은 대화 전체에 대해 허용할 수 없습니다. 한 번만 허용하세요",
    "沙箱之外的调用不能在整个对话中允许；请允许一次",
);
const QUORUM_ONCE: ChatText = ChatText::new(
    "the call needs {n} people, so it is allowed once",
    "이 호출은 {n}명의 허용이 필요하므로 한 번만 허용됩니다",
    "此调用需要 {n} 人允许，因此只能允许一次",
);

/// Why an answer was not accepted. In English these are the words of every other surface.
pub(super) fn unanswered_text(error: &AnswerError, language: ChatLanguage) -> String {
    let reason = if language == ChatLanguage::English { error.to_string() } else { unanswered_reason(error, language) };
    NOT_ANSWERED.format(language, &[("reason", &reason)])
}

fn unanswered_reason(error: &AnswerError, language: ChatLanguage) -> String {
    match error {
        AnswerError::AlreadyCounted(row) => ALREADY_COUNTED.format(language, &[("n", &row.missing_allowances())]),
        AnswerError::ReasonTooLong => REASON_TOO_LONG.format(language, &[("n", &MAX_REASON_CHARS)]),
        AnswerError::NotAllowed(_, DecisionForbidden::OwnModelNeedsAdmin) => {
            OWN_MODEL_NEEDS_ADMIN.text(language).to_owned()
        }
        AnswerError::WrongScope(problem) => match problem {
            AllowanceProblem::PatternTooLong => PATTERN_TOO_LONG.text(language).to_owned(),
            AllowanceProblem::PatternTooBroad => PATTERN_TOO_BROAD.text(language).to_owned(),
            AllowanceProblem::PatternMatchesNot => PATTERN_MATCHES_NOT.text(language).to_owned(),
            AllowanceProblem::NoPatternForTool(tool) => NO_PATTERN_FOR_TOOL.format(language, &[("tool", tool)]),
            AllowanceProblem::NoPatternForEscalatedFiles(tool) => {
                NO_PATTERN_OUTSIDE.format(language, &[("tool", tool)])
            }
            AllowanceProblem::EscalatedOnce(_) => ESCALATED_ONCE.text(language).to_owned(),
            AllowanceProblem::QuorumOnce(people) => QUORUM_ONCE.format(language, &[("n", people)]),
            // The commands and buttons of a chat make no such answers.
            AllowanceProblem::DenialWithScope | AllowanceProblem::PatternMissing | AllowanceProblem::PatternUnused => {
                error.to_string()
            }
        },
        AnswerError::WrongFields(problem) => question_texts::problem_text(problem, language),
        // The chat has texts of its own for these.
        AnswerError::Unknown(_) => NO_SUCH_APPROVAL.text(language).to_owned(),
        AnswerError::AlreadySettled(row) => settled_text(row, language),
        AnswerError::NotAllowed(_, DecisionForbidden::MissingApproveScope | DecisionForbidden::OwnCall) => {
            NOT_AN_APPROVER.text(language).to_owned()
        }
    }
}

const ESCALATION_REASON: ChatText = ChatText::new("reason:", "이유:", "理由：");

/// The arguments in a block, with the reason of an escalation, unless they are too long.
fn shown_arguments(row: &ApprovalRow, language: ChatLanguage) -> Option<String> {
    let escape = |c: char| if is_invisible(c) || c.is_control() { c.escape_unicode().to_string() } else { c.into() };
    let mut whole: String = row.arguments.to_string().chars().map(escape).collect();
    if let Some(escalation) = &row.escalation {
        whole.push_str(&format!("\n{} ", ESCALATION_REASON.text(language)));
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

fn buttons(row: &ApprovalRow, may_allow: bool, language: ChatLanguage) -> Vec<MessageButton> {
    if row.state != ApprovalState::Pending {
        return Vec::new();
    }
    let offered = [
        (ButtonChoice::AllowOnce, APPROVE, may_allow),
        (ButtonChoice::AllowInSession, APPROVE_IN_CONVERSATION, may_allow && row.may_be_allowed_for_session()),
        (ButtonChoice::Deny, DENY, true),
    ];
    let offered = offered.into_iter().filter(|(_, _, is_offered)| *is_offered);
    let to_button = |(choice, label, _): (ButtonChoice, ChatText, bool)| MessageButton {
        style: button_style(choice.answer().decision),
        label: label.text(language),
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
    use quell_protocol::question::{QuestionField, QuestionFieldKind, ServerQuestion};
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
            question: None,
            answer_fields: None,
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
        let text = approval_notice_text(&row("echo \u{202e}hi ``` /approve other"), ChatLanguage::English);
        assert!(text.contains("\\u{202e}hi") && text.matches("```").count() == 2, "{text}");
        assert!(text.ends_with("/approve a1\n/approve a1 session\n/deny a1 REASON"), "{text}");
        let long = approval_notice_text(&row(&"x".repeat(2000)), ChatLanguage::English);
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
        let text = approval_notice_text(&asked, ChatLanguage::English);
        assert!(text.contains("OUTSIDE OF THE SANDBOX") && text.contains("/work only"), "{text}");
        assert!(text.contains("reason: ") && text.matches("```").count() == 2, "{text}");
        assert!(
            ApprovalMessage::new(&asked, &FORMAT, ChatLanguage::English).piece.plain.contains("OUTSIDE OF THE SANDBOX")
        );
        let long = Escalation { reason: "x".repeat(1000), ..escalation };
        let asked = ApprovalRow { escalation: Some(long), ..row(&"x".repeat(500)) };
        assert!(!approval_notice_text(&asked, ChatLanguage::English).contains("/approve"), "not all is shown");
        assert!(!ApprovalMessage::new(&asked, &FORMAT, ChatLanguage::English).offers(Decision::Allow));
    }

    #[rstest]
    #[case::short("echo hi".to_owned(), true)]
    #[case::too_many_characters("x".repeat(1300), false)]
    // Each is two units of UTF-16, so the message would not fit into one piece.
    #[case::too_many_units("😀".repeat(1100), false)]
    fn approve_is_offered_only_below_the_whole_call(#[case] command: String, #[case] is_offered: bool) {
        let message = ApprovalMessage::new(&row(&command), &FORMAT, ChatLanguage::English);
        assert_eq!(message.offers(Decision::Allow), is_offered);
        assert!(message.offers(Decision::Deny), "a call that nobody can read may be denied");
        assert_eq!(message.piece.formatted.contains(&command), is_offered);
        assert!(!message.piece.plain.is_empty() && FORMAT.fits(&message.piece.formatted));
    }

    #[test]
    fn the_message_counts_a_quorum_and_loses_its_buttons_at_the_end() {
        let mut row = ApprovalRow { quorum: 2, ..row("echo hi") };
        let shown = |row: &ApprovalRow| ApprovalMessage::new(row, &FORMAT, ChatLanguage::English);
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
            assert!(settled_before_text(&row, ChatLanguage::English).contains("Nothing was changed"));
        }
    }

    #[rstest]
    #[case(ChatLanguage::English, "Approved by 0 of 2 people.", ["Approve", "Deny"])]
    #[case(ChatLanguage::Korean, "2명 중 0명이 승인했습니다.", ["승인", "거부"])]
    #[case(ChatLanguage::Chinese, "2 人中已有 0 人批准。", ["批准", "拒绝"])]
    fn a_call_is_shown_in_each_language(
        #[case] language: ChatLanguage,
        #[case] counted: &str,
        #[case] labels: [&str; 2],
    ) {
        let message = ApprovalMessage::new(&ApprovalRow { quorum: 2, ..row("echo hi") }, &FORMAT, language);
        assert!(message.piece.plain.contains(counted) && message.piece.plain.contains("echo hi"), "{message:?}");
        assert_eq!(message.buttons.iter().map(|button| button.label).collect::<Vec<_>>(), labels);
    }

    #[test]
    fn an_answer_that_is_not_accepted_has_a_reason_in_each_language() {
        let problem = AllowanceProblem::PatternTooBroad;
        let error = AnswerError::WrongScope(problem.clone());
        assert_eq!(unanswered_text(&error, ChatLanguage::English), format!("⚠️ Not answered: {problem}."));
        let korean = unanswered_text(&error, ChatLanguage::Korean);
        assert!(korean.starts_with("⚠️ 응답하지 못했습니다: 패턴이 `*`로 시작하면"), "{korean}");
        let chinese = unanswered_text(&error, ChatLanguage::Chinese);
        assert!(chinese.starts_with("⚠️ 未能答复：模式以 `*` 开头") && chinese.ends_with('。'), "{chinese}");
    }

    fn question_row(fields: Vec<QuestionField>) -> ApprovalRow {
        let (server, message) = ("files".to_owned(), "Who are you?".to_owned());
        let question = ServerQuestion { server, message, fields };
        let (arguments, tool) = (question.to_arguments(), "files__ask".to_owned());
        ApprovalRow { tool, arguments, question: Some(Box::new(question)), ..row("ls") }
    }

    #[test]
    fn a_question_is_asked_answered_and_declined_in_its_own_words() {
        let field = QuestionField {
            name: "name".to_owned(),
            title: None,
            description: None,
            kind: QuestionFieldKind::Text,
            options: Vec::new(),
            required: true,
            default: None,
        };
        let (row, english) = (question_row(vec![field]), ChatLanguage::English);
        let text = approval_notice_text(&row, english);
        assert!(text.starts_with("❓ The MCP server `files` asks, for `files__ask`:"), "{text}");
        assert!(text.contains("Who are you?") && text.contains(" name=TEXT\n/deny "), "{text}");
        // A button carries no values, so only the denial has one.
        let message = ApprovalMessage::new(&row, &FORMAT, english);
        assert!(!message.offers(Decision::Allow) && message.offers(Decision::Deny));
        assert!(ApprovalMessage::new(&question_row(Vec::new()), &FORMAT, english).offers(Decision::Allow));
        assert_eq!(denied_text(&row, english), "🚫 Declined: `files__ask` goes on without an answer.");
        let mut answered = row;
        answered.allowed_by.push(by("paper:bob"));
        assert_eq!(allowed_text(&answered, AllowanceScope::Once, ChatLanguage::Korean), "✅ 답했습니다: `files__ask`.");
    }
}
