//! Texts that people read in a chat besides replies, in every language of chats.

use std::collections::BTreeSet;

use quell_kernel::channel::chat_language::ChatLanguage;
use quell_kernel::channel::chat_text::ChatText;
use quell_kernel::channel::sanitise::{EmptyReplyReason, NarrationPolicy, SanitiserRules, sanitise_reply};
use quell_protocol::api::{StopAnswer, UnreachedNode};
use quell_protocol::display_text::{format_millis, one_line};
use quell_protocol::{ErrorCode, Receipt, StopReason, Verdict};

use super::receipt_texts::chat_receipt_line;

pub(super) const TOO_MANY_WAITING: ChatText = ChatText::new(
    "⚠️ Too many of your messages are waiting, so this one is not answered. Send /stop to clear them, or wait.",
    "⚠️ 대기 중인 메시지가 너무 많아 이 메시지에는 답하지 않습니다. /stop을 보내 비우거나 기다려 주세요.",
    "⚠️ 您等待中的消息太多，这一条不会得到答复。请发送 /stop 清除，或稍等。",
);
pub(super) const STILL_STOPPING: ChatText = ChatText::new("Still stopping.", "아직 중지하는 중입니다.", "仍在停止。");
pub(super) const NOTHING_TO_STOP: ChatText = ChatText::new(
    "Nothing of yours is running here.",
    "여기서 실행 중인 요청이 없습니다.",
    "这里没有您正在运行的任务。",
);
pub(super) const ONLY_CONSOLIDATION_STOPPED: ChatText = ChatText::new(
    "Nothing of yours is running here any more. What was still being noted behind an answer is dropped.",
    "여기서 실행 중인 요청은 더 이상 없습니다. 답변 뒤에 기록 중이던 내용은 버렸습니다.",
    "这里已没有您正在运行的任务。答复之后仍在记录的内容已丢弃。",
);
pub(super) const STOP_ALL_NEEDS_OPERATOR: ChatText = ChatText::new(
    "/stop all is for operators of this channel; /stop ends what you asked for.",
    "/stop all은 이 채널의 운영자만 쓸 수 있습니다. /stop은 본인이 요청한 작업을 중지합니다.",
    "/stop all 仅供此频道的操作员使用；/stop 会停止您请求的任务。",
);
pub(super) const EMPTY_ANSWER: ChatText = ChatText::new(
    "⚠️ The model ended without saying anything. Ask again, or put it in other words.",
    "⚠️ 모델이 아무 말 없이 끝났습니다. 다시 요청하거나 다르게 표현해 주세요.",
    "⚠️ 模型没有任何回答就结束了。请重新提问，或换一种说法。",
);
pub(super) const TOOL_CALL_AS_TEXT: ChatText = ChatText::new(
    "⚠️ The model wrote a tool call as text instead of an answer. Ask again, or use another model (/model).",
    "⚠️ 모델이 답변 대신 도구 호출을 글로 썼습니다. 다시 요청하거나 다른 모델을 사용하세요 (/model).",
    "⚠️ 模型把工具调用写成了文字，而没有回答。请重新提问，或使用其他模型（/model）。",
);

pub(super) const RESTARTED: ChatText = ChatText::new(
    "⚠️ Quell was restarted before this was answered. Ask again.",
    "⚠️ 답하기 전에 Quell이 다시 시작되었습니다. 다시 요청해 주세요.",
    "⚠️ 在答复之前 Quell 重新启动了。请重新提问。",
);
pub(super) const FILES_BELOW: ChatText = ChatText::new("(see below)", "(아래 참조)", "（见下方）");
pub(super) const ANSWER_WITHHELD: ChatText =
    ChatText::new("(This answer was kept back.)", "(이 답변은 보류되었습니다.)", "（此答复已被保留，不予显示。）");

/// Up to this number, each receipt of a stop gets a message of its own.
const MAX_SINGLE_RECEIPTS: usize = 3;

pub(super) const TIMED_OUT: ChatText = ChatText::new(
    "⚠️ Request timed out before it was finished. Ask again, or ask for less at once.",
    "⚠️ 요청이 끝나기 전에 시간이 초과되었습니다. 다시 요청하거나 한 번에 더 적게 요청하세요.",
    "⚠️ 请求在完成之前超时。请重新提问，或一次少提一些要求。",
);
const QUEUE_TIMED_OUT: ChatText = ChatText::new(
    "⚠️ Request timed out while it waited for those before it. Ask again.",
    "⚠️ 앞선 요청을 기다리다가 시간이 초과되었습니다. 다시 요청해 주세요.",
    "⚠️ 请求在等待前面的请求时超时。请重新提问。",
);
const CONTEXT_OVERFLOW: ChatText = ChatText::new(
    "⚠️ Context window exceeded: the conversation is too long for the model. Ask again, or begin a new one with /new.",
    "⚠️ 컨텍스트 창을 초과했습니다. 대화가 모델에 비해 너무 깁니다. 다시 요청하거나 /new로 새 대화를 시작하세요.",
    "⚠️ 超出上下文窗口：对话对该模型来说太长。请重新提问，或用 /new 开始新的对话。",
);

const STOPPING_RUN: ChatText = ChatText::new("Stopping your request.", "요청을 중지합니다.", "正在停止您的请求。");
const STOPPING_RUNS: ChatText =
    ChatText::new("Stopping {n} requests.", "요청 {n}개를 중지합니다.", "正在停止 {n} 个请求。");
const STOPPING_COMMAND: ChatText = ChatText::new("Stopping your command.", "명령을 중지합니다.", "正在停止您的命令。");
const STOPPING_COMMANDS: ChatText =
    ChatText::new("Stopping {n} commands.", "명령 {n}개를 중지합니다.", "正在停止 {n} 个命令。");
const ENDING_BACKGROUND_COMMAND: ChatText =
    ChatText::new("Ending {n} background command.", "백그라운드 명령 {n}개를 종료합니다.", "正在结束 {n} 个后台命令。");
const ENDING_BACKGROUND_COMMANDS: ChatText = ChatText::new(
    "Ending {n} background commands.",
    "백그라운드 명령 {n}개를 종료합니다.",
    "正在结束 {n} 个后台命令。",
);
const MESSAGE_WITHDRAWN: ChatText = ChatText::new(
    "{n} waiting message will not be answered.",
    "대기 중인 메시지 {n}개에는 답하지 않습니다.",
    "{n} 条等待中的消息不会得到答复。",
);
const MESSAGES_WITHDRAWN: ChatText = ChatText::new(
    "{n} waiting messages will not be answered.",
    "대기 중인 메시지 {n}개에는 답하지 않습니다.",
    "{n} 条等待中的消息不会得到答复。",
);

/// What a stop from a chat has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct StopCounts {
    pub(super) runs: usize,
    pub(super) commands: usize,
    pub(super) background_commands: usize,
    pub(super) withdrawn_messages: usize,
}

/// The immediate reply to a stop.
pub(super) fn stopping_text(counts: StopCounts, language: ChatLanguage) -> String {
    let parts = [
        (counts.runs, STOPPING_RUN, STOPPING_RUNS),
        (counts.commands, STOPPING_COMMAND, STOPPING_COMMANDS),
        (counts.background_commands, ENDING_BACKGROUND_COMMAND, ENDING_BACKGROUND_COMMANDS),
        (counts.withdrawn_messages, MESSAGE_WITHDRAWN, MESSAGES_WITHDRAWN),
    ];
    let parts = parts.into_iter().filter(|(count, ..)| *count > 0);
    let text = |(count, one, many): (usize, ChatText, ChatText)| {
        if count == 1 { one } else { many }.format(language, &[("n", &count)])
    };
    parts.map(text).collect::<Vec<_>>().join(" ")
}

const NODE_UNREACHED: ChatText = ChatText::new(
    "⚠️ A node does not answer ({nodes}). What runs there ends within {seconds} s.",
    "⚠️ 응답하지 않는 노드가 있습니다({nodes}). 그곳에서 실행 중인 작업은 {seconds}초 안에 끝납니다.",
    "⚠️ 有节点没有响应（{nodes}）。其上运行的任务将在 {seconds} 秒内结束。",
);
const NODES_UNREACHED: ChatText = ChatText::new(
    "⚠️ Some nodes do not answer ({nodes}). What runs there ends within {seconds} s.",
    "⚠️ 응답하지 않는 노드들이 있습니다({nodes}). 그곳에서 실행 중인 작업은 {seconds}초 안에 끝납니다.",
    "⚠️ 有些节点没有响应（{nodes}）。其上运行的任务将在 {seconds} 秒内结束。",
);

/// The part of the reply to a stop for nodes of the cluster that do not answer.
pub(super) fn unreached_nodes_text(unreached: &[UnreachedNode], language: ChatLanguage) -> Option<String> {
    let until = unreached.iter().map(|node| node.lease_ends_in_ms).max()?;
    let names: Vec<&str> = unreached.iter().map(|node| node.node.as_str()).collect();
    let text = if names.len() == 1 { NODE_UNREACHED } else { NODES_UNREACHED };
    Some(text.format(language, &[("nodes", &names.join(", ")), ("seconds", &until.div_ceil(1000))]))
}

const SCHEDULES_PAUSED: ChatText = ChatText::new(
    "⏸ Paused what was scheduled: {ids}. /schedules shows it.",
    "⏸ 예약을 일시 중지했습니다: {ids}. /schedules로 확인합니다.",
    "⏸ 已暂停定时任务：{ids}。/schedules 可查看。",
);

const PAUSES_UNSTORED: ChatText = ChatText::new(
    "⚠️ The database does not answer: the pauses are in force, and are stored as soon as it does. After a restart before \
     that, send /stop again.",
    "⚠️ 데이터베이스가 응답하지 않습니다. 일시 중지는 적용되었으며, 응답하면 저장됩니다. 그 전에 재시작되면 /stop을 다시 \
     보내세요.",
    "⚠️ 数据库没有响应：暂停已生效，数据库恢复后即会保存。若在此之前重启，请再次发送 /stop。",
);

/// The part of the reply to a stop for the schedules that it paused.
pub(super) fn paused_schedules_text(answer: &StopAnswer, language: ChatLanguage) -> Option<String> {
    let ids = &answer.paused_schedules;
    let paused = (!ids.is_empty()).then(|| SCHEDULES_PAUSED.format(language, &[("ids", &ids.join(", "))]));
    let unstored = answer.unstored_pauses.then(|| PAUSES_UNSTORED.text(language).to_owned());
    let parts: Vec<String> = [paused, unstored].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}

pub(super) fn stop_receipt_text(receipt: &Receipt, language: ChatLanguage) -> String {
    format!("⏹ {}", chat_receipt_line(receipt, language))
}

const BACKGROUND_COMMAND_ENDED: ChatText =
    ChatText::new("⏹ {n} background command ended", "⏹ 백그라운드 명령 {n}개 종료", "⏹ {n} 个后台命令已结束");
const BACKGROUND_COMMANDS_ENDED: ChatText =
    ChatText::new("⏹ {n} background commands ended", "⏹ 백그라운드 명령 {n}개 종료", "⏹ {n} 个后台命令已结束");
const COMMANDS_LEFT: ChatText = ChatText::new(
    "⚠️ What these commands started may still be alive: {names}. `quell processes` shows it.",
    "⚠️ 이 명령들이 시작한 프로세스가 아직 살아 있을 수 있습니다: {names}. `quell processes`로 확인하세요.",
    "⚠️ 这些命令启动的进程可能仍然存活：{names}。可用 `quell processes` 查看。",
);

/// The report of background commands that a stop ended; `left` has the ids of those that may still have live processes.
pub(super) fn commands_ended_text(commands: usize, left: &[&str], language: ChatLanguage) -> Option<String> {
    let ended = if commands == 1 { BACKGROUND_COMMAND_ENDED } else { BACKGROUND_COMMANDS_ENDED };
    match left {
        [] => (commands > 0).then(|| ended.format(language, &[("n", &commands)])),
        some => Some(COMMANDS_LEFT.format(language, &[("names", &some.join(", "))])),
    }
}

const REFUSED_ON_HOLD: ChatText = ChatText::new(
    "⚠️ Quell is on hold, so this is not answered. Ask again when it goes on.",
    "⚠️ Quell이 보류 중이라 답하지 않습니다. 보류가 풀리면 다시 요청하세요.",
    "⚠️ Quell 已冻结，此消息不会得到答复。解除冻结后请重新提问。",
);
const REFUSED_IN_SHUTDOWN: ChatText = ChatText::new(
    "⚠️ Quell is shutting down, so this is not answered. Ask again when it is back.",
    "⚠️ Quell이 종료되는 중이라 답하지 않습니다. 다시 시작되면 요청하세요.",
    "⚠️ Quell 正在关闭，此消息不会得到答复。待其恢复后请重新提问。",
);
const REFUSED_AS_BUSY: ChatText = ChatText::new(
    "⚠️ Your last request is still at work, so this one is not answered. Wait for it, or send /stop and ask again.",
    "⚠️ 이전 요청이 아직 진행 중이라 이 요청에는 답하지 않습니다. 기다리거나 /stop을 보낸 뒤 다시 요청하세요.",
    "⚠️ 您上一个请求仍在进行，这一个不会得到答复。请等待，或发送 /stop 后重新提问。",
);
const REFUSED_FOR_SPENDING: ChatText = ChatText::new(
    "⚠️ What may be spent in a day is used up, so this is not answered. Ask again tomorrow.",
    "⚠️ 하루에 쓸 수 있는 한도를 모두 사용해 답하지 않습니다. 내일 다시 요청하세요.",
    "⚠️ 每日可用额度已用完，此消息不会得到答复。请明天再提问。",
);
const REFUSED_WITHOUT_AGENT: ChatText = ChatText::new(
    "⚠️ The agent of this channel is gone, so this is not answered. Whoever runs Quell finds more in its log.",
    "⚠️ 이 채널의 에이전트가 없어져 답하지 않습니다. 자세한 내용은 Quell 관리자가 로그에서 확인할 수 있습니다.",
    "⚠️ 此频道的智能体已不存在，此消息不会得到答复。Quell 的管理者可在日志中查看详情。",
);
const REFUSED_IN_CONFLICT: ChatText = ChatText::new(
    "⚠️ This came together with a message from before a restart, and is not answered. Send it again.",
    "⚠️ 다시 시작하기 전의 메시지와 함께 도착해 답하지 않습니다. 다시 보내 주세요.",
    "⚠️ 此消息与重启之前的一条消息一同到达，不会得到答复。请重新发送。",
);
const REFUSED_BY_HOOK: ChatText = ChatText::new(
    "⚠️ This was refused. Whoever runs Quell finds the reason in its log.",
    "⚠️ 거부되었습니다. 이유는 Quell 관리자가 로그에서 확인할 수 있습니다.",
    "⚠️ 此请求被拒绝。Quell 的管理者可在日志中查看原因。",
);
const COULD_NOT_BE_DONE: ChatText = ChatText::new(
    "⚠️ This could not be done. Ask again; whoever runs Quell finds the reason in its log.",
    "⚠️ 처리하지 못했습니다. 다시 요청해 주세요. 이유는 Quell 관리자가 로그에서 확인할 수 있습니다.",
    "⚠️ 未能完成。请重新提问；Quell 的管理者可在日志中查看原因。",
);

/// Tells the sender why a message or a command was refused. The details may be private, and are in the log only.
pub(super) fn rejection_text(code: ErrorCode) -> ChatText {
    match code {
        ErrorCode::Held => REFUSED_ON_HOLD,
        ErrorCode::ShuttingDown => REFUSED_IN_SHUTDOWN,
        ErrorCode::Busy => REFUSED_AS_BUSY,
        ErrorCode::QueueFull => TOO_MANY_WAITING,
        ErrorCode::SpendLimit => REFUSED_FOR_SPENDING,
        ErrorCode::AgentNotFound => REFUSED_WITHOUT_AGENT,
        ErrorCode::Conflict => REFUSED_IN_CONFLICT,
        ErrorCode::SessionRefused => REFUSED_BY_HOOK,
        _ => COULD_NOT_BE_DONE,
    }
}

const FILE_NOT_SENT: ChatText = ChatText::new(
    "⚠️ {file} could not be sent: {reason}",
    "⚠️ {file} 파일을 보내지 못했습니다: {reason}",
    "⚠️ 未能发送 {file}：{reason}",
);
const FILES_SKIPPED: ChatText = ChatText::new(
    "⚠️ {n} more files were not sent: {limit} are the most",
    "⚠️ 파일 {n}개를 더 보내지 않았습니다: 최대 {limit}개입니다",
    "⚠️ 另有 {n} 个文件未发送：最多 {limit} 个",
);

/// `reason` is the network's or the operating system's, in its own words.
pub(super) fn file_error_text(source: &str, reason: &str, language: ChatLanguage) -> String {
    FILE_NOT_SENT.format(language, &[("file", &one_line(source, 200)), ("reason", &reason)])
}

pub(super) fn files_skipped_text(skipped: usize, limit: usize, language: ChatLanguage) -> String {
    FILES_SKIPPED.format(language, &[("n", &skipped), ("limit", &limit)])
}

const REQUESTS_STOPPED: ChatText = ChatText::new("⏹ {n} requests stopped", "⏹ 요청 {n}개 중지", "⏹ {n} 个请求已停止");
const REQUESTS_STOPPED_WITHIN: ChatText = ChatText::new(
    "⏹ {n} requests stopped, the slowest in {time}",
    "⏹ 요청 {n}개 중지, 최대 {time}",
    "⏹ {n} 个请求已停止，最慢用时 {time}",
);
const ALL_RELEASED: ChatText = ChatText::new(
    "all processes dead, nothing left open",
    "모든 프로세스 종료, 열린 것 없음",
    "所有进程均已结束，没有残留",
);
const SOME_LEFT: ChatText = ChatText::new(
    "⚠️ {n} left something behind: {names}",
    "⚠️ {n}개가 무언가를 남김: {names}",
    "⚠️ {n} 个留下了残留：{names}",
);
const ALL_RECORDED: ChatText = ChatText::new("all histories valid", "모든 기록 유효", "所有历史有效");
const HISTORY_NOT_RECORDED: ChatText = ChatText::new(
    "⚠️ {n} history not recorded: {names}",
    "⚠️ 기록 {n}개가 저장되지 않음: {names}",
    "⚠️ {n} 个历史未记录：{names}",
);
const HISTORIES_NOT_RECORDED: ChatText = ChatText::new(
    "⚠️ {n} histories not recorded: {names}",
    "⚠️ 기록 {n}개가 저장되지 않음: {names}",
    "⚠️ {n} 个历史未记录：{names}",
);
const DETAILS_BY_COMMAND: ChatText = ChatText::new(
    "`quell runs show ID` has the details",
    "자세한 내용: `quell runs show ID`",
    "详情见 `quell runs show ID`",
);

/// The reports of all runs that one stop ended: one text each, or a summary if there are more than a few.
pub(super) fn stop_receipt_texts(receipts: &[Receipt], language: ChatLanguage) -> Vec<String> {
    if receipts.len() <= MAX_SINGLE_RECEIPTS {
        return receipts.iter().map(|receipt| stop_receipt_text(receipt, language)).collect();
    }
    let number = receipts.len();
    let slowest = receipts.iter().filter_map(|receipt| receipt.settled_at.ms).reduce(f64::max);
    let mut parts = vec![match slowest {
        Some(ms) => REQUESTS_STOPPED_WITHIN.format(language, &[("n", &number), ("time", &format_millis(ms))]),
        None => REQUESTS_STOPPED.format(language, &[("n", &number)]),
    }];
    let named =
        |text: ChatText, runs: &[&str]| text.format(language, &[("n", &runs.len()), ("names", &runs.join(", "))]);
    let left = run_ids_where(receipts, |receipt| !receipt.leftovers.is_empty());
    parts.push(match left.len() {
        0 => ALL_RELEASED.text(language).to_owned(),
        _ => named(SOME_LEFT, &left),
    });
    let lost = run_ids_where(receipts, |receipt| !receipt.turn.recorded);
    parts.push(match lost.len() {
        0 => ALL_RECORDED.text(language).to_owned(),
        1 => named(HISTORY_NOT_RECORDED, &lost),
        _ => named(HISTORIES_NOT_RECORDED, &lost),
    });
    if !(left.is_empty() && lost.is_empty()) {
        parts.push(DETAILS_BY_COMMAND.text(language).to_owned());
    }
    vec![parts.join(" · ")]
}

fn run_ids_where(receipts: &[Receipt], is_so: impl Fn(&Receipt) -> bool) -> Vec<&str> {
    receipts.iter().filter(|receipt| is_so(receipt)).map(|receipt| receipt.run_id.as_str()).collect()
}

const STEPS_USED_UP: ChatText = ChatText::new(
    "⚠️ Stopped: the steps of this request are used up.",
    "⚠️ 중지: 이 요청에 허용된 단계를 모두 사용했습니다.",
    "⚠️ 已停止：此请求的步数已用完。",
);
const TOKENS_USED_UP: ChatText = ChatText::new(
    "⚠️ Stopped: the tokens of this request are used up.",
    "⚠️ 중지: 이 요청에 허용된 토큰을 모두 사용했습니다.",
    "⚠️ 已停止：此请求的 Token 数已用完。",
);
const DAY_USED_UP: ChatText = ChatText::new(
    "⚠️ Stopped: what may be spent in a day is used up.",
    "⚠️ 중지: 하루에 쓸 수 있는 한도를 모두 사용했습니다.",
    "⚠️ 已停止：每日可用额度已用完。",
);
const STOPPED_BY_SHUTDOWN: ChatText = ChatText::new(
    "⚠️ Stopped: Quell is shutting down. Ask again when it is back.",
    "⚠️ 중지: Quell이 종료되는 중입니다. 다시 시작되면 요청하세요.",
    "⚠️ 已停止：Quell 正在关闭。待其恢复后请重新提问。",
);

/// The text at the end of a run without a reply; `None` if its stop is reported elsewhere, or the sender knows of it.
pub(super) fn no_answer_text(verdict: &Verdict, receipt: &Receipt, language: ChatLanguage) -> Option<String> {
    let text = match verdict {
        Verdict::Completed => return None,
        Verdict::Failed { code, .. } if code == "withheld" => return None,
        Verdict::Failed { code, .. } if code == "context_overflow" => CONTEXT_OVERFLOW,
        Verdict::Failed { code, .. } => return Some(failure_text(code).format(language, &[("code", code)])),
        Verdict::Aborted { reason, .. } => match reason {
            StopReason::Command | StopReason::Superseded => return None,
            // The run held nothing: it was still queued.
            StopReason::Timeout if receipt.resources.is_empty() => QUEUE_TIMED_OUT,
            StopReason::Timeout => TIMED_OUT,
            StopReason::Steps => STEPS_USED_UP,
            StopReason::Tokens => TOKENS_USED_UP,
            StopReason::DailyLimit => DAY_USED_UP,
            StopReason::Shutdown | StopReason::DaemonStopped => STOPPED_BY_SHUTDOWN,
            StopReason::User | StopReason::Disconnect | StopReason::Other(_) => {
                return Some(stop_receipt_text(receipt, language));
            }
        },
    };
    Some(text.text(language).to_owned())
}

/// Sanitises a complete answer. The result is never blank.
pub(super) fn sanitise_answer(
    answer: &str,
    tools: &BTreeSet<String>,
    narration: NarrationPolicy,
    language: ChatLanguage,
) -> String {
    let cleaned = sanitise_reply(answer, &SanitiserRules { tools, narration_policy: narration });
    match cleaned.empty_reason {
        None => cleaned.text,
        Some(EmptyReplyReason::Blank) => EMPTY_ANSWER.text(language).to_owned(),
        Some(EmptyReplyReason::OnlyProtocol) => TOOL_CALL_AS_TEXT.text(language).to_owned(),
    }
}

const FAILED_EMPTY: ChatText = ChatText::new(
    "⚠️ The model ended without an answer. Ask again, or use another model (/model) ({code}).",
    "⚠️ 모델이 답변 없이 끝났습니다. 다시 요청하거나 다른 모델을 사용하세요 (/model) ({code}).",
    "⚠️ 模型没有给出答案就结束了。请重新提问，或使用其他模型（/model）（{code}）。",
);
const FAILED_VISION: ChatText = ChatText::new(
    "⚠️ The model cannot see pictures. Ask without them, or use another model (/model) ({code}).",
    "⚠️ 이 모델은 그림을 볼 수 없습니다. 그림 없이 요청하거나 다른 모델을 사용하세요 (/model) ({code}).",
    "⚠️ 该模型不能查看图片。请去掉图片再提问，或使用其他模型（/model）（{code}）。",
);
const FAILED_REFUSED: ChatText = ChatText::new(
    "⚠️ The model refuses to answer this ({code}).",
    "⚠️ 모델이 이 요청에 답하기를 거부했습니다 ({code}).",
    "⚠️ 模型拒绝回答此问题（{code}）。",
);
const FAILED_OVERLOADED: ChatText = ChatText::new(
    "⚠️ The model has too much to do. Ask again in a moment ({code}).",
    "⚠️ 모델에 요청이 너무 많습니다. 잠시 후 다시 요청하세요 ({code}).",
    "⚠️ 模型当前请求过多。请稍后重新提问（{code}）。",
);
const FAILED_STORE: ChatText = ChatText::new(
    "⚠️ What is done could not be written down, so it was not done. Ask again later ({code}).",
    "⚠️ 수행할 내용을 기록할 수 없어 수행하지 않았습니다. 나중에 다시 요청하세요 ({code}).",
    "⚠️ 无法记录所做的操作，因此没有执行。请稍后重新提问（{code}）。",
);
const FAILED_OTHERWISE: ChatText = ChatText::new(
    "⚠️ This failed. Ask again; whoever runs Quell finds the reason in its log ({code}).",
    "⚠️ 실패했습니다. 다시 요청해 주세요. 이유는 Quell 관리자가 로그에서 확인할 수 있습니다 ({code}).",
    "⚠️ 失败了。请重新提问；Quell 的管理者可在日志中查看原因（{code}）。",
);

/// Tells the sender what failed. The details may be private: they are in the log and in the record of the run only.
fn failure_text(code: &str) -> ChatText {
    match code {
        "empty_answer" => FAILED_EMPTY,
        "vision" => FAILED_VISION,
        "refused" => FAILED_REFUSED,
        "rate_limit" | "overloaded" => FAILED_OVERLOADED,
        "store" => FAILED_STORE,
        _ => FAILED_OTHERWISE,
    }
}

/// The reply could not be delivered completely.
pub(super) const ANSWER_UNDELIVERED: ChatText = ChatText::new(
    "⚠️ The answer could not be shown here as a whole; it stands in the history. Ask for it again.",
    "⚠️ 답변 전체를 여기에 표시하지 못했습니다. 답변은 기록에 남아 있습니다. 다시 요청해 주세요.",
    "⚠️ 答复未能在此完整显示，但已保存在历史中。请再次索取。",
);

pub(super) const DELIVERY_UNKNOWN: ChatText = ChatText::new(
    "⚠️ It is not known whether all of the answer is shown here; the whole of it stands in the history.",
    "⚠️ 답변이 모두 표시되었는지 알 수 없습니다. 답변 전체는 기록에 남아 있습니다.",
    "⚠️ 不清楚答复是否已在此完整显示；完整内容保存在历史中。",
);

const DRAFT_SUPERSEDED: ChatText =
    ChatText::new("⏹ Stopped: you wrote again.", "⏹ 중지: 새 메시지를 보내셨습니다.", "⏹ 已停止：您发送了新的消息。");
const DRAFT_STOPPED: ChatText = ChatText::new("⏹ Stopped.", "⏹ 중지했습니다.", "⏹ 已停止。");
const DRAFT_UNFINISHED: ChatText = ChatText::new("⚠️ This was not finished.", "⚠️ 끝내지 못했습니다.", "⚠️ 未能完成。");

/// The end of a draft that was cut off.
pub(super) fn draft_ending_text(verdict: &Verdict) -> ChatText {
    match verdict {
        Verdict::Aborted { reason: StopReason::Timeout, .. } => TIMED_OUT,
        Verdict::Aborted { reason: StopReason::Superseded, .. } => DRAFT_SUPERSEDED,
        Verdict::Aborted { .. } => DRAFT_STOPPED,
        Verdict::Failed { .. } | Verdict::Completed => DRAFT_UNFINISHED,
    }
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
        assert_eq!(stop_receipt_texts(&[], ChatLanguage::English), Vec::<String>::new());
        let few = stop_receipt_texts(&receipts[..3], ChatLanguage::English);
        assert!(few.len() == 3 && few[1].starts_with("⏹ stopped in 1.4 s"), "{few:?}");
        let all =
            "⏹ 4 requests stopped, the slowest in 1.4 s · all processes dead, nothing left open · all histories valid";
        assert_eq!(stop_receipt_texts(&receipts, ChatLanguage::English), [all]);
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
        assert_eq!(stop_receipt_texts(&receipts, ChatLanguage::English), [expected]);
    }

    #[test]
    fn a_stop_of_many_is_summed_up_in_each_language() {
        let mut receipts: Vec<Receipt> = (1..=4).map(|number| receipt(number, 5_000.0)).collect();
        assert_eq!(
            stop_receipt_texts(&receipts, ChatLanguage::Korean),
            ["⏹ 요청 4개 중지, 최대 5 s · 모든 프로세스 종료, 열린 것 없음 · 모든 기록 유효"]
        );
        receipts[0].turn.recorded = false;
        assert_eq!(
            stop_receipt_texts(&receipts, ChatLanguage::Chinese),
            ["⏹ 4 个请求已停止，最慢用时 5 s · 所有进程均已结束，没有残留 · ⚠️ 1 个历史未记录：paper:1 · \
              详情见 `quell runs show ID`"]
        );
    }
}
