//! Results of chat commands, in every language of chats.

use quell_kernel::channel::chat_text::ChatText;

pub(super) const COMMAND_STOPPED: ChatText = ChatText::new(
    "⏹ Stopped. The command has changed nothing.",
    "⏹ 중지했습니다. 명령으로 바뀐 것은 없습니다.",
    "⏹ 已停止。命令没有改变任何内容。",
);
pub(super) const NEW_CONVERSATION_STOPPED: ChatText = ChatText::new(
    "⏹ Stopped. The conversation was not emptied; what was at work in it has been ended.",
    "⏹ 중지했습니다. 대화는 비우지 않았고, 진행 중이던 작업은 종료했습니다.",
    "⏹ 已停止。对话没有清空；其中进行的任务已结束。",
);
pub(super) const COMMAND_STILL_RUNNING: ChatText = ChatText::new(
    "⚠️ Stopped, but something that the command had begun has not ended: it may still take effect.",
    "⚠️ 중지했지만 명령이 시작한 작업이 끝나지 않았습니다. 아직 적용될 수 있습니다.",
    "⚠️ 已停止，但命令已开始的操作尚未结束：它仍可能生效。",
);
/// The result of a command that ended before the stop, and that nobody had read by then.
pub(super) const FINISHED_BEFORE_STOP: ChatText = ChatText::new(
    "⏹ It was over before the stop. {outcome}",
    "⏹ 중지하기 전에 이미 끝났습니다. {outcome}",
    "⏹ 在停止之前已经完成。{outcome}",
);

pub(super) const CURRENT_MODEL: ChatText = ChatText::new(
    "This conversation is for {model}. /model NAME chooses another one.",
    "이 대화의 모델은 {model}입니다. /model NAME으로 다른 모델을 선택합니다.",
    "此对话使用 {model}。/model NAME 可选择其他模型。",
);
pub(super) const MODEL_UNKNOWN: ChatText = ChatText::new(
    "It is not known which model this conversation is for.",
    "이 대화의 모델을 알 수 없습니다.",
    "不清楚此对话使用哪个模型。",
);
pub(super) const MODEL_CHOSEN: ChatText = ChatText::new(
    "This conversation is for {model} from now on.",
    "지금부터 이 대화의 모델은 {model}입니다.",
    "从现在起，此对话使用 {model}。",
);
/// `problem` is in the words of the configuration's check.
pub(super) const MODEL_UNUSABLE: ChatText = ChatText::new(
    "{model} cannot be used: {problem}",
    "{model} 모델을 사용할 수 없습니다: {problem}",
    "无法使用 {model}：{problem}",
);
pub(super) const PROVIDER_LIST: ChatText = ChatText::new(
    "Providers: {names}. /models NAME chooses one for this conversation.",
    "제공자: {names}. /models NAME으로 이 대화의 제공자를 선택합니다.",
    "提供方：{names}。/models NAME 可为此对话选择一个。",
);
pub(super) const PROVIDER_UNKNOWN: ChatText = ChatText::new(
    "There is no provider {provider}; there are {names}.",
    "{provider} 제공자는 없습니다. 사용할 수 있는 제공자: {names}.",
    "没有提供方 {provider}；可用的有 {names}。",
);
pub(super) const NO_MODEL_OF_PROVIDER: ChatText = ChatText::new(
    "No model of {provider} is known; /model {provider}/NAME chooses one.",
    "{provider}의 모델을 알 수 없습니다. /model {provider}/NAME으로 선택하세요.",
    "不知道 {provider} 的任何模型；请用 /model {provider}/NAME 选择。",
);
pub(super) const PROVIDER_MISSING: ChatText = ChatText::new(
    "Name the provider too, as in /model PROVIDER/{name}; there are {names}.",
    "/model PROVIDER/{name}처럼 제공자도 적어 주세요. 사용할 수 있는 제공자: {names}.",
    "请同时写明提供方，例如 /model PROVIDER/{name}；可用的有 {names}。",
);

pub(super) const NEW_CONVERSATION: ChatText =
    ChatText::new("A new conversation begins.", "새 대화를 시작합니다.", "开始新的对话。");
pub(super) const FOREIGN_RUN_ACTIVE: ChatText = ChatText::new(
    "What somebody else asked for is at work in this conversation. Wait for it, or ask an operator.",
    "이 대화에서 다른 사람의 요청이 진행 중입니다. 기다리거나 운영자에게 문의하세요.",
    "此对话中正在处理其他人的请求。请等待，或联系操作员。",
);
pub(super) const ASK_AN_OPERATOR: ChatText = ChatText::new(
    "This could not be done. Ask an operator.",
    "처리하지 못했습니다. 운영자에게 문의하세요.",
    "未能完成。请联系操作员。",
);

pub(super) const NO_SCHEDULES: ChatText =
    ChatText::new("You have no schedules.", "예약이 없습니다.", "您没有定时任务。");
/// `when` is as it was given, such as a cron expression.
pub(super) const SCHEDULE_LINE: ChatText = ChatText::new(
    "{id}: {when} ({timezone}), next at {next}: {text}",
    "{id}: {when} ({timezone}), 다음 실행 {next}: {text}",
    "{id}：{when}（{timezone}），下次 {next}：{text}",
);
pub(super) const PAUSED_SCHEDULE_LINE: ChatText = ChatText::new(
    "{id}: {when} ({timezone}), paused: {text}",
    "{id}: {when} ({timezone}), 일시 중지됨: {text}",
    "{id}：{when}（{timezone}），已暂停：{text}",
);
pub(super) const ENDED_SCHEDULE_LINE: ChatText = ChatText::new(
    "{id}: {when} ({timezone}), over: {text}",
    "{id}: {when} ({timezone}), 끝남: {text}",
    "{id}：{when}（{timezone}），已结束：{text}",
);
pub(super) const SCHEDULE_UNKNOWN: ChatText = ChatText::new(
    "You have no schedule {id}; /schedules lists them.",
    "{id} 예약이 없습니다. /schedules로 목록을 봅니다.",
    "您没有定时任务 {id}；/schedules 可列出。",
);
pub(super) const SCHEDULE_PAUSED: ChatText = ChatText::new(
    "The schedule {id} is paused. /schedules resume {id} lets it fire again.",
    "{id} 예약을 일시 중지했습니다. /schedules resume {id}로 재개합니다.",
    "定时任务 {id} 已暂停。/schedules resume {id} 可恢复。",
);
pub(super) const SCHEDULE_RESUMED: ChatText = ChatText::new(
    "The schedule {id} fires again, next at {next}.",
    "{id} 예약을 재개했습니다. 다음 실행: {next}.",
    "定时任务 {id} 已恢复，下次 {next}。",
);
pub(super) const SCHEDULE_REMOVED: ChatText =
    ChatText::new("The schedule {id} is deleted.", "{id} 예약을 삭제했습니다.", "定时任务 {id} 已删除。");
/// It had one time, which has passed.
pub(super) const SCHEDULE_OVER: ChatText = ChatText::new(
    "The schedule {id} is over; make a new one.",
    "{id} 예약은 끝났습니다. 새로 만드세요.",
    "定时任务 {id} 已结束；请新建一个。",
);

pub(super) const NO_PROMPTS: ChatText = ChatText::new(
    "The MCP servers here offer no prompts.",
    "여기의 MCP 서버가 제공하는 프롬프트가 없습니다.",
    "这里的 MCP 服务器没有提供提示词。",
);
pub(super) const NO_RESOURCES: ChatText = ChatText::new(
    "The MCP servers here offer no resources.",
    "여기의 MCP 서버가 제공하는 리소스가 없습니다.",
    "这里的 MCP 服务器没有提供资源。",
);
pub(super) const MCP_MORE_ITEMS: ChatText = ChatText::new("… and {n} more", "… 외 {n}개", "……还有 {n} 项");
pub(super) const MCP_SERVER_UNAVAILABLE: ChatText = ChatText::new(
    "{server} cannot be asked: {problem}",
    "{server}에 물어볼 수 없습니다: {problem}",
    "无法询问 {server}：{problem}",
);
pub(super) const MCP_FAILED: ChatText =
    ChatText::new("That is not possible: {problem}.", "요청을 처리할 수 없습니다: {problem}.", "无法完成：{problem}。");
pub(super) const MCP_CONTENT_EMPTY: ChatText = ChatText::new(
    "The MCP server gave no text, so nothing was sent.",
    "MCP 서버가 텍스트를 주지 않아 아무것도 보내지 않았습니다.",
    "MCP 服务器没有返回文本，因此没有发送任何内容。",
);
