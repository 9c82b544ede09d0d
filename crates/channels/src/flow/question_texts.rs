//! Texts about a question that an MCP server asks during a call, in every language of chats.

use quell_kernel::channel::chat_language::ChatLanguage;
use quell_kernel::channel::chat_text::ChatText;
use quell_kernel::server_question::QuestionProblem;
use quell_protocol::approval::{ApprovalRow, ApprovalState};
use quell_protocol::display_text::one_line;
use quell_protocol::question::ServerQuestion;

const ASKS: ChatText = ChatText::new(
    "❓ The MCP server `{server}` asks, for `{tool}`:",
    "❓ MCP 서버 `{server}`의 질문 (`{tool}`):",
    "❓ MCP 服务器 `{server}` 提问（`{tool}`）：",
);
const ANSWER_WITH: ChatText = ChatText::new(
    "Answer with: /approve {id} {form}",
    "다음으로 답하세요: /approve {id} {form}",
    "请这样作答：/approve {id} {form}",
);
pub(super) const ANSWERED: ChatText =
    ChatText::new("✅ Answered: `{tool}`.", "✅ 답했습니다: `{tool}`.", "✅ 已回答：`{tool}`。");
pub(super) const DECLINED: ChatText = ChatText::new(
    "🚫 Declined: `{tool}` goes on without an answer.",
    "🚫 거절했습니다: `{tool}` 호출은 답 없이 계속됩니다.",
    "🚫 已谢绝：`{tool}` 将在没有回答的情况下继续。",
);
const STATE_ASKING: ChatText = ChatText::new("`{tool}` asks.", "`{tool}` 호출이 질문합니다.", "`{tool}` 在提问。");
const STATE_ANSWERED: ChatText = ChatText::new(
    "✅ `{tool}` was answered by {names}.",
    "✅ `{tool}` 호출의 질문에 {names} 님이 답했습니다.",
    "✅ {names} 已回答 `{tool}` 的提问。",
);
const STATE_DECLINED: ChatText = ChatText::new(
    "🚫 `{tool}` got no answer: declined by {names}.",
    "🚫 `{tool}` 호출의 질문을 {names} 님이 거절했습니다.",
    "🚫 {names} 谢绝回答 `{tool}` 的提问。",
);
const STATE_TIMED_OUT: ChatText = ChatText::new(
    "⌛ `{tool}` got no answer in time.",
    "⌛ `{tool}` 호출이 제시간에 답을 받지 못했습니다.",
    "⌛ `{tool}` 未及时得到回答。",
);
const STATE_CANCELLED: ChatText = ChatText::new(
    "⏹ `{tool}` needs no answer any more.",
    "⏹ `{tool}` 호출에는 더 이상 답이 필요 없습니다.",
    "⏹ `{tool}` 不再需要回答。",
);

/// The first line of a question that waits.
pub(super) fn heading(question: &ServerQuestion, tool: &str, language: ChatLanguage) -> String {
    let server = one_line(&question.server, 60).replace('`', "");
    ASKS.format(language, &[("server", &server), ("tool", &tool)])
}

/// How a waiting question with fields is answered; `None` for anything else.
pub(super) fn answer_hint(row: &ApprovalRow, language: ChatLanguage) -> Option<String> {
    let form = row.question.as_ref()?.answer_form();
    let is_needed = row.state == ApprovalState::Pending && !form.is_empty();
    is_needed.then(|| ANSWER_WITH.format(language, &[("id", &row.id), ("form", &form)]))
}

/// What has become of a question.
pub(super) fn state_text(state: &ApprovalState) -> ChatText {
    match state {
        ApprovalState::Pending => STATE_ASKING,
        ApprovalState::Allowed { .. } => STATE_ANSWERED,
        ApprovalState::Denied { .. } => STATE_DECLINED,
        ApprovalState::TimedOut => STATE_TIMED_OUT,
        ApprovalState::Cancelled => STATE_CANCELLED,
    }
}

const UNKNOWN_FIELD: ChatText = ChatText::new(
    "the question has no field {name}; it has: {known}",
    "이 질문에는 {name} 항목이 없습니다. 있는 항목: {known}",
    "此问题没有字段 {name}；有：{known}",
);
const MISSING_FIELD: ChatText = ChatText::new(
    "the answer needs the field {name} ({kind}); write {form}",
    "답에 {name} 항목이 필요합니다 ({kind}). 다음과 같이 쓰세요: {form}",
    "回答需要字段 {name}（{kind}）；请写 {form}",
);
const WRONG_VALUE: ChatText = ChatText::new(
    "the field {name} must be: {kind}",
    "{name} 항목의 값은 다음과 같아야 합니다: {kind}",
    "字段 {name} 必须为：{kind}",
);
const NO_QUESTION: ChatText = ChatText::new(
    "the call asks no question; leave the fields out",
    "이 호출은 질문이 아닙니다. 항목을 빼고 쓰세요",
    "此调用没有提问；请不要写字段",
);
const WITH_SCOPE: ChatText = ChatText::new(
    "an answer is for this question alone; leave `session` and `pattern` out",
    "답은 이 질문에만 해당합니다. `session`과 `pattern`을 빼고 쓰세요",
    "回答只针对这个问题；请不要写 `session` 和 `pattern`",
);

/// Why the fields of an answer were not accepted.
pub(super) fn problem_text(problem: &QuestionProblem, language: ChatLanguage) -> String {
    match problem {
        QuestionProblem::UnknownField { name, known } => {
            UNKNOWN_FIELD.format(language, &[("name", name), ("known", known)])
        }
        QuestionProblem::Missing { name, kind, form } => {
            MISSING_FIELD.format(language, &[("name", name), ("kind", kind), ("form", form)])
        }
        QuestionProblem::WrongValue { name, kind } => WRONG_VALUE.format(language, &[("name", name), ("kind", kind)]),
        // The commands of a chat decline without fields.
        QuestionProblem::NoQuestion | QuestionProblem::DeclinedWithFields => NO_QUESTION.text(language).to_owned(),
        QuestionProblem::WithScope => WITH_SCOPE.text(language).to_owned(),
    }
}
