//! The receipt of a run as one line, in the language of a chat. The words are those of the page, `web/texts.json`.

use quell_kernel::channel::chat_language::ChatLanguage;
use quell_kernel::channel::chat_text::ChatText;
use quell_protocol::display_text::format_millis;
use quell_protocol::receipt::summary_line::{ReceiptHistory, ReceiptPart, ReceiptVerdict, receipt_line, receipt_parts};
use quell_protocol::{Receipt, ResourceKind};

const STOPPED: ChatText = ChatText::new("stopped", "중지", "已停止");
const COMPLETED: ChatText = ChatText::new("completed", "완료", "已完成");
const FAILED: ChatText = ChatText::new("failed ({code})", "실패 ({code})", "失败（{code}）");
const WITHIN: ChatText = ChatText::new("{word} in {time}", "{word} {time}", "{word}，用时 {time}");

const MODEL: ChatText = ChatText::new("model", "모델", "模型");
const MODELS: ChatText = ChatText::new("{n} model requests", "모델 요청 {n}개", "{n} 个模型请求");
const CLOSED: ChatText = ChatText::new("{what} closed", "{what} 닫힘", "{what}已关闭");
const CLOSED_AFTER: ChatText =
    ChatText::new("{what} closed after {time}", "{time} 후 {what} 닫힘", "{what}在 {time} 后关闭");

const PROCESSES_ENDED: ChatText =
    ChatText::new("{what} ended ({hows})", "{what} 종료 ({hows})", "{what}已结束（{hows}）");
const LEFT_BEHIND_ONE: ChatText = ChatText::new("{n} left-behind process", "남겨진 프로세스 {n}개", "{n} 个遗留进程");
const LEFT_BEHIND_MANY: ChatText =
    ChatText::new("{n} left-behind processes", "남겨진 프로세스 {n}개", "{n} 个遗留进程");
const ENDED: ChatText = ChatText::new("{what} ended", "{what} 종료", "{what}已结束");
const CANCELLED: ChatText = ChatText::new("{what} cancelled", "{what} 취소", "{what}已取消");
const RUN_STOPPED: ChatText = ChatText::new("{what} stopped", "{what} 중지", "{what}已停止");
const WITHDRAWN: ChatText = ChatText::new("{what} withdrawn", "{what} 철회", "{what}已撤回");
const UNCONFIRMED: ChatText =
    ChatText::new("{what} told to cancel, not confirmed", "{what} 취소 요청됨, 확인 안 됨", "{what}已要求取消，未确认");

const STILL_OPEN: ChatText =
    ChatText::new("{what} still open: {names}", "{what} 아직 열려 있음: {names}", "{what}仍打开：{names}");
const STILL_ALIVE: ChatText =
    ChatText::new("{what} still alive: {names}", "{what} 아직 살아 있음: {names}", "{what}仍存活：{names}");
const STILL_ACTIVE: ChatText =
    ChatText::new("{what} still active: {names}", "{what} 아직 실행 중: {names}", "{what}仍在运行：{names}");
const STILL_ARMED: ChatText =
    ChatText::new("{what} still armed: {names}", "{what} 아직 대기 중: {names}", "{what}仍在计时：{names}");
const STILL_HELD: ChatText =
    ChatText::new("{what} still held: {names}", "{what} 아직 점유 중: {names}", "{what}仍被占用：{names}");
const STILL_AT_WORK: ChatText =
    ChatText::new("{what} still at work: {names}", "{what} 아직 작업 중: {names}", "{what}仍在工作：{names}");
const STILL_UNDER_WAY: ChatText =
    ChatText::new("{what} still under way: {names}", "{what} 아직 진행 중: {names}", "{what}仍在进行：{names}");

const RECORD_LOST: ChatText =
    ChatText::new("record lost with the daemon", "데몬과 함께 기록 유실", "记录随守护进程丢失");
const HISTORY_VALID: ChatText = ChatText::new("history valid", "기록 유효", "历史有效");
const NO_TURN: ChatText = ChatText::new("no turn recorded", "기록된 턴 없음", "未记录任何轮次");
const NOT_RECORDED: ChatText = ChatText::new("history not recorded", "기록이 저장되지 않음", "历史未记录");
const REASON: ChatText = ChatText::new("reason: {reason}", "이유: {reason}", "原因：{reason}");

/// Words for a kind of resource.
struct KindTexts {
    one: ChatText,
    many: ChatText,
    /// The end released it.
    done: ChatText,
    /// It could not be released.
    left: ChatText,
}

/// Formats a receipt as one line. In English it is the line of every other surface.
pub(super) fn chat_receipt_line(receipt: &Receipt, language: ChatLanguage) -> String {
    match language {
        ChatLanguage::English => receipt_line(receipt),
        ChatLanguage::Korean | ChatLanguage::Chinese => translated_line(receipt, language),
    }
}

fn translated_line(receipt: &Receipt, language: ChatLanguage) -> String {
    receipt_parts(receipt).iter().map(|part| part_text(part, language)).collect::<Vec<_>>().join(" · ")
}

fn part_text(part: &ReceiptPart, language: ChatLanguage) -> String {
    match part {
        ReceiptPart::Ended { verdict, ms } => {
            let word = verdict_text(verdict, language);
            match ms {
                Some(ms) => WITHIN.format(language, &[("word", &word), ("time", &format_millis(*ms))]),
                None => word,
            }
        }
        ReceiptPart::ModelRequestsClosed { number, after_ms } => {
            let what = if *number == 1 { MODEL } else { MODELS }.format(language, &[("n", number)]);
            match after_ms {
                Some(ms) => CLOSED_AFTER.format(language, &[("what", &what), ("time", &format_millis(*ms))]),
                None => CLOSED.format(language, &[("what", &what)]),
            }
        }
        ReceiptPart::ProcessesEnded { number, hows } => {
            let what = counted_kind(ResourceKind::Process, *number, language);
            PROCESSES_ENDED.format(language, &[("what", &what), ("hows", &hows.join(", "))])
        }
        ReceiptPart::LeftBehindEnded { number } => {
            let what = if *number == 1 { LEFT_BEHIND_ONE } else { LEFT_BEHIND_MANY }.format(language, &[("n", number)]);
            ENDED.format(language, &[("what", &what)])
        }
        ReceiptPart::Released { kind, number } => {
            let what = counted_kind(*kind, *number as u64, language);
            texts_of(*kind).done.format(language, &[("what", &what)])
        }
        ReceiptPart::Unconfirmed { number } => {
            let what = counted_kind(ResourceKind::McpCall, *number as u64, language);
            UNCONFIRMED.format(language, &[("what", &what)])
        }
        ReceiptPart::Left { kind, names } => {
            let what = counted_kind(*kind, names.len() as u64, language);
            texts_of(*kind).left.format(language, &[("what", &what), ("names", &names.join("; "))])
        }
        ReceiptPart::RecordLost => RECORD_LOST.text(language).to_owned(),
        ReceiptPart::History(ReceiptHistory::Valid) => HISTORY_VALID.text(language).to_owned(),
        ReceiptPart::History(ReceiptHistory::NoTurn) => NO_TURN.text(language).to_owned(),
        ReceiptPart::History(ReceiptHistory::NotRecorded) => NOT_RECORDED.text(language).to_owned(),
        ReceiptPart::Reason(reason) => REASON.format(language, &[("reason", reason)]),
    }
}

fn verdict_text(verdict: &ReceiptVerdict, language: ChatLanguage) -> String {
    match verdict {
        ReceiptVerdict::Completed => COMPLETED.text(language).to_owned(),
        ReceiptVerdict::Failed { code } => FAILED.format(language, &[("code", code)]),
        ReceiptVerdict::Stopped => STOPPED.text(language).to_owned(),
    }
}

fn counted_kind(kind: ResourceKind, number: u64, language: ChatLanguage) -> String {
    let texts = texts_of(kind);
    if number == 1 { texts.one } else { texts.many }.format(language, &[("n", &number)])
}

const fn texts_of(kind: ResourceKind) -> KindTexts {
    match kind {
        ResourceKind::ModelRequest => KindTexts {
            one: ChatText::new("{n} model request", "모델 요청 {n}개", "{n} 个模型请求"),
            many: MODELS,
            done: CLOSED,
            left: STILL_OPEN,
        },
        ResourceKind::Process => KindTexts {
            one: ChatText::new("{n} process", "프로세스 {n}개", "{n} 个进程"),
            many: ChatText::new("{n} processes", "프로세스 {n}개", "{n} 个进程"),
            done: ENDED,
            left: STILL_ALIVE,
        },
        ResourceKind::McpCall => KindTexts {
            one: ChatText::new("{n} MCP call", "MCP 호출 {n}개", "{n} 个 MCP 调用"),
            many: ChatText::new("{n} MCP calls", "MCP 호출 {n}개", "{n} 个 MCP 调用"),
            done: CANCELLED,
            left: STILL_OPEN,
        },
        ResourceKind::Run => KindTexts {
            one: ChatText::new("{n} sub-run", "하위 실행 {n}개", "{n} 个子运行"),
            many: ChatText::new("{n} sub-runs", "하위 실행 {n}개", "{n} 个子运行"),
            done: RUN_STOPPED,
            left: STILL_ACTIVE,
        },
        ResourceKind::Approval => KindTexts {
            one: ChatText::new("{n} approval", "승인 {n}개", "{n} 个批准"),
            many: ChatText::new("{n} approvals", "승인 {n}개", "{n} 个批准"),
            done: WITHDRAWN,
            left: STILL_OPEN,
        },
        ResourceKind::Timer => KindTexts {
            one: ChatText::new("{n} timer", "타이머 {n}개", "{n} 个定时器"),
            many: ChatText::new("{n} timers", "타이머 {n}개", "{n} 个定时器"),
            done: ENDED,
            left: STILL_ARMED,
        },
        ResourceKind::Permit => KindTexts {
            one: ChatText::new("{n} permit", "허가 {n}개", "{n} 个许可"),
            many: ChatText::new("{n} permits", "허가 {n}개", "{n} 个许可"),
            done: ENDED,
            left: STILL_HELD,
        },
        ResourceKind::HttpRequest => KindTexts {
            one: ChatText::new("{n} HTTP request", "HTTP 요청 {n}개", "{n} 个 HTTP 请求"),
            many: ChatText::new("{n} HTTP requests", "HTTP 요청 {n}개", "{n} 个 HTTP 请求"),
            done: CLOSED,
            left: STILL_OPEN,
        },
        ResourceKind::Task => KindTexts {
            one: ChatText::new("{n} task", "작업 {n}개", "{n} 个任务"),
            many: ChatText::new("{n} tasks", "작업 {n}개", "{n} 个任务"),
            done: ENDED,
            left: STILL_AT_WORK,
        },
        ResourceKind::Hook => KindTexts {
            one: ChatText::new("{n} hook", "훅 {n}개", "{n} 个钩子"),
            many: ChatText::new("{n} hooks", "훅 {n}개", "{n} 个钩子"),
            done: ENDED,
            left: STILL_AT_WORK,
        },
        ResourceKind::Delivery => KindTexts {
            one: ChatText::new("{n} delivery", "전달 {n}건", "{n} 次送达"),
            many: ChatText::new("{n} deliveries", "전달 {n}건", "{n} 次送达"),
            done: CANCELLED,
            left: STILL_UNDER_WAY,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const LANGUAGES: [(ChatLanguage, &str); 3] =
        [(ChatLanguage::English, "en"), (ChatLanguage::Korean, "ko"), (ChatLanguage::Chinese, "zh")];

    #[derive(serde::Deserialize)]
    struct Sample {
        name: String,
        receipt: Receipt,
        line: String,
    }

    fn samples() -> Vec<Sample> {
        serde_json::from_str(include_str!("../../../../web/test/receipt-lines.json")).unwrap()
    }

    #[test]
    fn a_chat_in_english_says_what_every_surface_says() {
        for Sample { name, receipt, line } in samples() {
            assert_eq!(chat_receipt_line(&receipt, ChatLanguage::English), line, "{name}");
            // The table of this file, too.
            assert_eq!(translated_line(&receipt, ChatLanguage::English), line, "{name}");
        }
    }

    #[test]
    fn a_receipt_has_the_same_facts_in_each_language() {
        for Sample { name, receipt, line } in samples() {
            for language in [ChatLanguage::Korean, ChatLanguage::Chinese] {
                let translated = chat_receipt_line(&receipt, language);
                assert_eq!(translated.matches(" · ").count(), line.matches(" · ").count(), "{name}: {translated}");
                let digits = |text: &str| {
                    let mut digits: Vec<char> = text.chars().filter(char::is_ascii_digit).collect();
                    digits.sort_unstable();
                    digits
                };
                // One model request has no number in any language.
                assert_eq!(digits(&translated), digits(&line), "{name}: {translated}");
            }
        }
    }

    #[test]
    fn the_words_of_a_receipt_are_those_of_the_page() {
        let page: BTreeMap<String, BTreeMap<String, String>> =
            serde_json::from_str(include_str!("../../../../web/texts.json")).unwrap();
        let kinds = [
            (ResourceKind::ModelRequest, "model-request"),
            (ResourceKind::Process, "process"),
            (ResourceKind::McpCall, "mcp-call"),
            (ResourceKind::Run, "sub-run"),
            (ResourceKind::Approval, "approval"),
            (ResourceKind::Timer, "timer"),
            (ResourceKind::Permit, "permit"),
            (ResourceKind::HttpRequest, "http-request"),
            (ResourceKind::Task, "task"),
            (ResourceKind::Hook, "hook"),
            (ResourceKind::Delivery, "delivery"),
        ];
        let mut words = vec![
            ("stopped".to_owned(), STOPPED),
            ("completed".to_owned(), COMPLETED),
            ("failed".to_owned(), FAILED),
            ("within".to_owned(), WITHIN),
            ("model".to_owned(), MODEL),
            ("models".to_owned(), MODELS),
            ("closed".to_owned(), CLOSED),
            ("closed-after".to_owned(), CLOSED_AFTER),
            ("processes-ended".to_owned(), PROCESSES_ENDED),
            ("left-behind.one".to_owned(), LEFT_BEHIND_ONE),
            ("left-behind.many".to_owned(), LEFT_BEHIND_MANY),
            ("ended".to_owned(), ENDED),
            ("unconfirmed".to_owned(), UNCONFIRMED),
            ("recovered".to_owned(), RECORD_LOST),
            ("history-valid".to_owned(), HISTORY_VALID),
            ("no-turn".to_owned(), NO_TURN),
            ("not-recorded".to_owned(), NOT_RECORDED),
            ("reason".to_owned(), REASON),
        ];
        for (kind, name) in kinds {
            let texts = texts_of(kind);
            words.push((format!("{}.one", name), texts.one));
            words.push((format!("{}.many", name), texts.many));
            words.push((format!("left.{}", name), texts.left));
            // The page has none for the kinds that are never released one by one.
            if page.contains_key(&format!("receipt.done.{}", name)) {
                words.push((format!("done.{}", name), texts.done));
            }
        }
        for (key, text) in words {
            let row = page.get(&format!("receipt.{key}")).unwrap_or_else(|| panic!("the page has no receipt.{key}"));
            for (language, name) in LANGUAGES {
                assert_eq!(text.text(language), row[name], "receipt.{key} in {name}");
            }
        }
    }
}
