//! Parses chat commands such as `/stop` and `/model`, and words their answers.
//!
//! Commands are handled without a model request. This module checks neither permissions nor whether a named provider or
//! model exists.

use quell_protocol::api::RunView;
use quell_protocol::approval::ApprovalAnswer;
use quell_protocol::mcp::{McpContentCommand, McpListKind};

use super::chat_language::ChatLanguage;
use super::chat_text::ChatText;

pub const HELP_TEXT: ChatText = ChatText::new(
    "\
/stop - stop what I am doing for you here
/stop all - stop everything that runs in this channel (operators)
/new - begin a new conversation
/status - what I am doing
/model - the model of this conversation
/model NAME - use another model in this conversation
/models - the providers
/models PROVIDER - use another provider in this conversation
/approve ID - allow a call that waits (approvers)
/approve ID NAME=VALUE - answer a question of an MCP server
/approve ID session - allow such calls in this conversation, too
/approve ID pattern PATTERN - allow calls whose command or path matches, too
/deny ID REASON - deny a call that waits; the reason is for the model
/prompts - the prompts of the MCP servers
/prompt SERVER NAME ARGUMENT=VALUE - send a prompt as your message
/resources - the resources of the MCP servers
/resource SERVER URI TEXT - send a resource with your message
/schedules - your schedules
/schedules pause ID, resume ID, remove ID - change one of them
/help - this list",
    "\
/stop - 여기서 요청하신 작업 중지
/stop all - 이 채널에서 실행 중인 모든 작업 중지 (운영자)
/new - 새 대화 시작
/status - 현재 작업 상태
/model - 이 대화의 모델
/model NAME - 이 대화에서 다른 모델 사용
/models - 제공자 목록
/models PROVIDER - 이 대화에서 다른 제공자 사용
/approve ID - 대기 중인 호출 허용 (승인자)
/approve ID NAME=VALUE - MCP 서버의 질문에 답하기
/approve ID session - 이 대화에서 같은 호출도 함께 허용
/approve ID pattern PATTERN - 명령이나 경로가 일치하는 호출도 함께 허용
/deny ID REASON - 대기 중인 호출 거부, 이유는 모델에 전달
/prompts - MCP 서버의 프롬프트 목록
/prompt SERVER NAME ARGUMENT=VALUE - 프롬프트를 내 메시지로 보내기
/resources - MCP 서버의 리소스 목록
/resource SERVER URI TEXT - 메시지에 리소스를 붙여 보내기
/schedules - 내 예약 목록
/schedules pause ID, resume ID, remove ID - 예약 일시 중지, 재개, 삭제
/help - 이 목록",
    "\
/stop - 停止您在这里请求的任务
/stop all - 停止此频道中运行的所有任务（操作员）
/new - 开始新的对话
/status - 当前的任务状态
/model - 此对话的模型
/model NAME - 在此对话中使用其他模型
/models - 提供方列表
/models PROVIDER - 在此对话中使用其他提供方
/approve ID - 允许等待中的调用（批准人）
/approve ID NAME=VALUE - 回答 MCP 服务器的问题
/approve ID session - 同时允许此对话中的同类调用
/approve ID pattern PATTERN - 同时允许命令或路径匹配的调用
/deny ID REASON - 拒绝等待中的调用，理由会告诉模型
/prompts - MCP 服务器的提示词列表
/prompt SERVER NAME ARGUMENT=VALUE - 把提示词作为您的消息发送
/resources - MCP 服务器的资源列表
/resource SERVER URI TEXT - 把资源附在您的消息中发送
/schedules - 您的定时任务
/schedules pause ID, resume ID, remove ID - 暂停、恢复、删除定时任务
/help - 此列表",
);

const NOTHING_RUNS: ChatText =
    ChatText::new("Nothing is running here", "여기서 실행 중인 작업이 없습니다", "这里没有正在运行的任务");
const WORKING_SINCE: ChatText = ChatText::new(
    "Working since {time} (step {step}, {processes} processes)",
    "{time}부터 작업 중입니다 ({step}단계, 프로세스 {processes}개)",
    "自 {time} 起在工作（第 {step} 步，{processes} 个进程）",
);
const RUNS_WAIT: ChatText = ChatText::new(", {n} waiting", ", 대기 {n}건", "，{n} 条在等待");
const STATUS: ChatText = ChatText::new(
    "{work}{queue}. Model: {model}. /stop ends it.",
    "{work}{queue}. 모델: {model}. /stop으로 중지합니다.",
    "{work}{queue}。模型：{model}。/stop 可以停止。",
);

const UNKNOWN_MODEL: ChatText = ChatText::new("unknown", "알 수 없음", "未知");

/// Answer to [`ChannelCommand::Status`]. `runs` are the runs of the conversation that are not over. Without a model it
/// is not known.
#[must_use]
pub fn status_text(runs: &[RunView], model: Option<&str>, language: ChatLanguage) -> String {
    let (working, waiting): (Vec<_>, Vec<_>) = runs.iter().partition(|run| run.state != "queued");
    let work = match working.first() {
        None => NOTHING_RUNS.text(language).to_owned(),
        Some(run) => WORKING_SINCE
            .format(language, &[("time", &run.accepted_at), ("step", &run.steps), ("processes", &run.processes)]),
    };
    let queue = match waiting.len() {
        0 => String::new(),
        waiting => RUNS_WAIT.format(language, &[("n", &waiting)]),
    };
    let model = model.unwrap_or(UNKNOWN_MODEL.text(language));
    STATUS.format(language, &[("work", &work), ("queue", &queue), ("model", &model)])
}

/// Maximum length of a provider or model name. A longer word is an invalid argument.
const MAX_NAME_CHARS: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChannelCommand {
    /// `/models`: list the providers.
    Providers,
    /// `/models PROVIDER`: use another provider in this conversation from now on.
    UseProvider(String),
    /// `/model`: show the model of this conversation.
    Model,
    /// `/model NAME`: use another model in this conversation from now on.
    UseModel(String),
    /// `/new`: clear the history of this conversation.
    New,
    /// `/stop`, `/stop all`: abort the runs in this reach.
    Stop(StopReach),
    /// `/approve ID`, `/approve ID session`, `/approve ID pattern PATTERN`, `/deny ID REASON`: answer a call that waits
    /// for a person.
    AnswerApproval { id: String, answer: ApprovalAnswer },
    /// `/status`: show the runs of this conversation.
    Status,
    /// `/prompts`, `/resources`: list what the MCP servers offer to people.
    McpList(McpListKind),
    /// `/prompt SERVER NAME ARGUMENT=VALUE`, `/resource SERVER URI TEXT`: send what a server gives as the message.
    McpMessage(McpContentCommand),
    /// `/schedules`: list the sender's schedules.
    Schedules,
    /// `/schedules pause ID`, `/schedules resume ID`, `/schedules remove ID`: change a schedule of the sender.
    EditSchedule { edit: ScheduleEdit, id: String },
    /// `/help`, and every known command with invalid arguments.
    Help,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleEdit {
    Pause,
    Resume,
    Remove,
}

impl ScheduleEdit {
    fn parse(word: &str) -> Option<Self> {
        match word.to_ascii_lowercase().as_str() {
            "pause" => Some(Self::Pause),
            "resume" => Some(Self::Resume),
            "remove" => Some(Self::Remove),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReach {
    /// The sender's own runs in this conversation.
    Own,
    /// Everything in this channel; for operators only.
    All,
}

impl ChannelCommand {
    /// Parses a whole text as a command. Returns `None` for a text that is no command, even if it begins with a slash.
    /// `/status@NAME`, as networks write it in groups, parses as `/status`: the network has checked the name before.
    ///
    /// A command with invalid arguments parses as [`ChannelCommand::Help`] and does nothing. So `/new plan` does not
    /// clear the history, and `/model --list` does not select a model.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let name = words.next()?.strip_prefix('/')?;
        let name = match name.split_once('@') {
            Some((_, account)) if !is_account_name(account) => return None,
            Some((name, _)) => name,
            None => name,
        };
        if name.eq_ignore_ascii_case("deny") {
            return Some(Self::parse_answer(text, |reason| {
                let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
                Some(ApprovalAnswer::denial(Some(reason).filter(|reason| !reason.is_empty())))
            }));
        }
        if name.eq_ignore_ascii_case("approve") {
            return Some(Self::parse_answer(text, ApprovalAnswer::parse_allowance));
        }
        if name.eq_ignore_ascii_case("prompt") {
            return Some(McpContentCommand::parse_prompt(argument_text(text)).map_or(Self::Help, Self::McpMessage));
        }
        if name.eq_ignore_ascii_case("resource") {
            return Some(McpContentCommand::parse_resource(argument_text(text)).map_or(Self::Help, Self::McpMessage));
        }
        // No other command takes three arguments.
        let arguments: Vec<&str> = words.take(3).collect();
        Some(match (name.to_ascii_lowercase().as_str(), arguments.as_slice()) {
            ("models", []) => Self::Providers,
            ("models", [provider]) if is_valid_name(provider) => Self::UseProvider((*provider).to_owned()),
            ("model", []) => Self::Model,
            ("model", [model]) if is_valid_name(model) => Self::UseModel((*model).to_owned()),
            ("stop", []) => Self::Stop(StopReach::Own),
            ("stop", [word]) if word.eq_ignore_ascii_case("all") => Self::Stop(StopReach::All),
            ("new", []) => Self::New,
            ("status", []) => Self::Status,
            ("prompts", []) => Self::McpList(McpListKind::Prompts),
            ("resources", []) => Self::McpList(McpListKind::Resources),
            ("schedules", []) => Self::Schedules,
            ("schedules", [word, id]) if is_valid_name(id) => {
                ScheduleEdit::parse(word).map_or(Self::Help, |edit| Self::EditSchedule { edit, id: (*id).to_owned() })
            }
            ("models" | "model" | "stop" | "new" | "status" | "schedules" | "help" | "prompts" | "resources", _) => {
                Self::Help
            }
            _ => return None,
        })
    }
}

impl ChannelCommand {
    /// Parses the arguments of `/approve` and `/deny`: an id, and words that `parse` reads.
    fn parse_answer(text: &str, parse: impl FnOnce(&str) -> Option<ApprovalAnswer>) -> Self {
        let arguments = argument_text(text);
        let (id, words) = arguments.split_once(char::is_whitespace).unwrap_or((arguments, ""));
        match parse(words) {
            Some(answer) if !id.is_empty() && is_valid_name(id) => Self::AnswerApproval { id: id.to_owned(), answer },
            _ => Self::Help,
        }
    }
}

/// The text behind the name of a command.
fn argument_text(text: &str) -> &str {
    text.trim_start().split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim())
}

/// Rejects words that look like flags: no command takes a flag.
fn is_valid_name(word: &str) -> bool {
    !word.starts_with(['-', '\u{2013}', '\u{2014}'])
        && !word.contains(char::is_control)
        && word.chars().nth(MAX_NAME_CHARS).is_none()
}

fn is_account_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':'))
}

#[cfg(test)]
mod tests {
    use quell_protocol::approval::Decision;
    use quell_protocol::mcp::McpContentRequest;
    use rstest::rstest;

    use super::*;

    fn provider(name: &str) -> Option<ChannelCommand> {
        Some(ChannelCommand::UseProvider(name.to_owned()))
    }

    fn answer(id: &str, answer: ApprovalAnswer) -> Option<ChannelCommand> {
        Some(ChannelCommand::AnswerApproval { id: id.to_owned(), answer })
    }

    fn schedule_edit(edit: ScheduleEdit) -> Option<ChannelCommand> {
        Some(ChannelCommand::EditSchedule { edit, id: "7f3a".to_owned() })
    }

    fn prompt(name: &str, arguments: &[(&str, &str)]) -> Option<ChannelCommand> {
        let arguments = arguments.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let request = McpContentRequest::Prompt { name: name.to_owned(), arguments };
        let (server, text) = ("notes".to_owned(), String::new());
        Some(ChannelCommand::McpMessage(McpContentCommand { server, request, text }))
    }

    fn resource(text: &str) -> Option<ChannelCommand> {
        let request = McpContentRequest::Resource("notes://today".to_owned());
        let (server, text) = ("notes".to_owned(), text.to_owned());
        Some(ChannelCommand::McpMessage(McpContentCommand { server, request, text }))
    }

    fn model(name: &str) -> Option<ChannelCommand> {
        Some(ChannelCommand::UseModel(name.to_owned()))
    }

    #[rstest]
    #[case("/models openrouter", provider("openrouter"))]
    #[case("/models", Some(ChannelCommand::Providers))]
    #[case("/model anthropic/claude-sonnet-4-5", model("anthropic/claude-sonnet-4-5"))]
    #[case("/model llama3.2:8b", model("llama3.2:8b"))]
    #[case("/model", Some(ChannelCommand::Model))]
    #[case("/approve 01a2-b3", answer("01a2-b3", Decision::Allow.into()))]
    #[case("/approve 01a2 name=Ada Lovelace", answer("01a2", ApprovalAnswer::with_fields([("name".to_owned(), "Ada Lovelace".into())].into_iter().collect())))]
    #[case("/approve 01a2 session", answer("01a2", ApprovalAnswer::for_session()))]
    #[case("/approve 01a2 pattern git  log *", answer("01a2", ApprovalAnswer::for_pattern("git  log *".to_owned())))]
    #[case("/deny@quell_bot 01a2", answer("01a2", ApprovalAnswer::denial(None)))]
    #[case("/deny 01a2 not  on\nFriday", answer("01a2", ApprovalAnswer::denial(Some("not on Friday".to_owned()))))]
    #[case("/new", Some(ChannelCommand::New))]
    #[case("  /new \n", Some(ChannelCommand::New))]
    #[case("/stop", Some(ChannelCommand::Stop(StopReach::Own)))]
    #[case("/stop all", Some(ChannelCommand::Stop(StopReach::All)))]
    #[case("/STOP  All", Some(ChannelCommand::Stop(StopReach::All)))]
    #[case("/status", Some(ChannelCommand::Status))]
    #[case("/schedules", Some(ChannelCommand::Schedules))]
    #[case("/schedules pause 7f3a", schedule_edit(ScheduleEdit::Pause))]
    #[case("/Schedules Remove 7f3a", schedule_edit(ScheduleEdit::Remove))]
    #[case("/prompts", Some(ChannelCommand::McpList(McpListKind::Prompts)))]
    #[case("/Resources", Some(ChannelCommand::McpList(McpListKind::Resources)))]
    #[case("/prompt notes review topic=the  parser depth=2", prompt("review", &[("topic", "the parser"), ("depth", "2")]))]
    #[case("/prompt@quell_bot notes daily", prompt("daily", &[]))]
    #[case("/resource notes notes://today  What is\nurgent? ", resource("What is\nurgent?"))]
    #[case("/resource notes notes://today", resource(""))]
    #[case("/help", Some(ChannelCommand::Help))]
    #[case("/help me", Some(ChannelCommand::Help))]
    #[case::as_telephones_write_it("/Status", Some(ChannelCommand::Status))]
    #[case::in_a_group("/status@quell_bot", Some(ChannelCommand::Status))]
    #[case::in_a_group_with_a_name("/model@quell_bot gpt-5", model("gpt-5"))]
    #[case::in_a_matrix_room("/stop@quell:example.org", Some(ChannelCommand::Stop(StopReach::Own)))]
    fn commands_are_known(#[case] text: &str, #[case] command: Option<ChannelCommand>) {
        assert_eq!(ChannelCommand::parse(text), command);
    }

    #[rstest]
    #[case::unknown_flag("/model --user gpt-5")]
    #[case::unknown_flag_alone("/model --list")]
    #[case::short_flag("/models -a")]
    #[case::flag_as_telephones_write_it("/model \u{2014}list")]
    #[case::approves_nothing("/approve")]
    #[case::approves_all("/approve --all")]
    #[case::approves_two("/approve 01a2 01a3")]
    #[case::approves_without_pattern("/approve 01a2 pattern")]
    #[case::denies_nothing("/deny")]
    #[case::two_names("/model gpt 5")]
    #[case::words_behind("/new plan for tomorrow")]
    #[case::next_line("/new\nwhat is the weather?")]
    #[case::not_all("/stop everything")]
    #[case::removes_nothing("/schedules remove")]
    #[case::removes_two("/schedules remove 7f3a 7f3b")]
    #[case::unknown_edit("/schedules delete 7f3a")]
    #[case::status("/status of run 7")]
    #[case::prompt_of_no_server("/prompt review")]
    #[case::prompt_without_a_name_of_the_argument("/prompt notes review parsers")]
    #[case::prompt_with_a_flag("/prompt --list notes")]
    #[case::resource_without_address("/resource notes")]
    #[case::prompts_of_one("/prompts notes")]
    #[case::control_character("/model a\u{7}b")]
    fn a_command_that_is_written_wrong_shows_help_and_does_nothing(#[case] text: &str) {
        assert_eq!(ChannelCommand::parse(text), Some(ChannelCommand::Help));
    }

    #[test]
    fn a_text_that_is_no_name_is_not_taken_for_one() {
        assert_eq!(
            ChannelCommand::parse(&format!("/model {}", "x".repeat(MAX_NAME_CHARS))),
            model(&"x".repeat(MAX_NAME_CHARS))
        );
        assert_eq!(
            ChannelCommand::parse(&format!("/model {}", "x".repeat(MAX_NAME_CHARS + 1))),
            Some(ChannelCommand::Help)
        );
    }

    #[rstest]
    #[case("/home/x is full")]
    #[case("/")]
    #[case("/ new")]
    #[case("//new")]
    #[case("/newer")]
    #[case("/new/plan")]
    #[case("/stop@")]
    #[case("/stop@a/b")]
    #[case("/@bot")]
    #[case("new")]
    #[case("what does /new do?")]
    #[case("\u{1}/new")]
    #[case("")]
    fn text_after_a_slash_is_not_always_a_command(#[case] text: &str) {
        assert_eq!(ChannelCommand::parse(text), None);
    }

    #[test]
    fn help_names_every_command() {
        for language in [ChatLanguage::English, ChatLanguage::Korean, ChatLanguage::Chinese] {
            let help = HELP_TEXT.text(language);
            for command in ["/models PROVIDER", "/model NAME", "/new", "/stop all", "/status", "/help"] {
                assert!(help.contains(command), "{command} in {language:?}");
            }
            let first_words =
                |text: &'static str| text.lines().map(|line| line.split(" - ").next()).collect::<Vec<_>>();
            assert_eq!(first_words(help), first_words(HELP_TEXT.text(ChatLanguage::English)), "{language:?}");
        }
    }
}
