//! Buttons that answer calls, on every network that has them: the real network modules against their strict servers,
//! with a real engine.

mod servers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quell_engine::Engine;
use quell_engine::EngineConfig;
use quell_kernel::approval::ApprovalPolicy;
use quell_protocol::approval::ApprovalRow;
use quell_protocol::channel::ChannelHealth;
use quell_testkit::ScriptedModel;
use quell_testkit::model::ScriptedResponse;
use rstest::rstest;
use serde_json::{Value, json};
use tempfile::TempDir;

use self::servers::{ButtonServer, ChatView, ShownButtonMessage};
use super::super::Channels;
use super::{WAIT_TIMEOUT, engine_config, page_admin, page_submission};
use crate::config::ChannelKind::{self, Discord, Slack, Telegram};
use crate::settings::{FlowSettings, LiveSettings};

/// A channel `chat`: ann and root may write, root is an operator, bob and cy are approvers, and eve is nobody.
struct ButtonFixture {
    engine: Engine,
    model: ScriptedModel,
    channels: Channels,
    server: Box<dyn ButtonServer>,
    _dir: TempDir,
}

impl ButtonFixture {
    async fn start(kind: ChannelKind) -> Self {
        Self::start_with(kind, |_| {}).await
    }

    async fn start_with(kind: ChannelKind, change: impl FnOnce(&mut EngineConfig)) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (server, dir) = (servers::start(kind).await, tempfile::tempdir().unwrap());
        let model = ScriptedModel::start().await;
        let mut config = engine_config(&dir, &model);
        for agent in config.agents.values_mut() {
            agent.approvals.insert("list_files".to_owned(), ApprovalPolicy::Ask);
        }
        change(&mut config);
        let engine = Engine::start(config).await.unwrap();
        let person = |name| server.person_id(name);
        let mut channel = server.config();
        channel.allow = vec![person("ann"), person("bob"), person("cy")];
        channel.operators = vec![person("root")];
        channel.approvers = vec![person("bob"), person("cy")];
        (channel.drafts, channel.ack_reactions) = (false, false);
        let channels = BTreeMap::from([("chat".to_owned(), channel)]);
        let settings = LiveSettings::new(FlowSettings { channels, ..FlowSettings::default() });
        let channels = Channels::start(engine.clone(), settings, Arc::new(|| {}));
        while !channels.channel_rows().iter().any(|row| row.health == ChannelHealth::Connected) {
            tokio::task::yield_now().await;
        }
        Self { engine, model, channels, server, _dir: dir }
    }

    /// Ann asks for something that needs a call. Returns the message of the call, and the call.
    async fn ask(&self, arguments: Value) -> (ShownButtonMessage, ApprovalRow) {
        let call = ScriptedResponse::tool_call("c1", "list_files", &arguments);
        self.model.script(call).script(ScriptedResponse::text("It is done."));
        self.server.write("ann", "list it");
        let view = self.wait("the buttons", |view| view.messages.iter().any(|shown| !shown.buttons.is_empty())).await;
        let row = self.engine.pending_approvals().pop().unwrap();
        (view.messages.into_iter().find(|shown| !shown.buttons.is_empty()).unwrap(), row)
    }

    async fn wait_for_call(&self) -> ApprovalRow {
        let waiting = async {
            loop {
                if let Some(row) = self.engine.pending_approvals().pop() {
                    return row;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, waiting).await.expect("a call waits")
    }

    async fn wait(&self, what: &str, condition: impl Fn(&ChatView) -> bool + Send + Sync) -> ChatView {
        self.server.wait_for(what, &condition).await
    }

    /// Waits until the message shows this text, without buttons.
    async fn wait_for_end(&self, message: &ShownButtonMessage, text: &str) -> ShownButtonMessage {
        let is_over = |shown: &ShownButtonMessage| shown.id == message.id && shown.text.contains(text);
        let view = self.wait(text, |view| view.messages.iter().any(is_over)).await;
        let shown = view.messages.into_iter().find(|shown| shown.id == message.id).unwrap();
        assert_eq!(shown.buttons, [], "the buttons are withdrawn");
        shown
    }

    async fn wait_for_answer(&self) {
        self.wait("the answer", |view| view.messages.iter().any(|shown| shown.text.contains("It is done."))).await;
    }

    /// A person presses, and is refused with this text.
    async fn press_refused(&self, person: &'static str, message: &str, data: &str, text: &str) {
        let before = self.server.view().refusals.len();
        self.server.press(person, message, data);
        let view = self.wait("the refusal", |view| view.refusals.len() > before).await;
        let (told, refusal) = &view.refusals[before];
        assert!(*told == self.server.person_id(person) && refusal.contains(text), "{person}: {view:#?}");
    }

    /// The result of the call as the model was told.
    fn told_model(&self) -> String {
        self.model.recorded_requests().last().unwrap().body["messages"].to_string()
    }

    /// Shuts everything down, and returns what the group shows then.
    async fn shut_down(self) -> ChatView {
        self.wait("the answers to all presses", |view| view.unanswered == 0).await;
        let deadline = tokio::time::sleep(Duration::from_secs(5));
        let (left, ()) = tokio::join!(self.engine.shut_down(), self.channels.shut_down(deadline));
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(self.server.client_errors(), Vec::<String>::new());
        self.server.view()
    }
}

/// The data of the button with this label.
fn data_of(message: &ShownButtonMessage, label: &str) -> String {
    message.buttons.iter().find(|button| button.label.contains(label)).unwrap().data.clone()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_approver_presses_approve_and_the_message_says_so(#[values(Telegram, Discord, Slack)] kind: ChannelKind) {
    let fixture = ButtonFixture::start(kind).await;
    let (message, row) = fixture.ask(json!({"path": "."})).await;
    assert!(message.text.contains("list_files") && message.text.contains(r#"{"path":"."}"#), "{message:?}");
    let (approve, deny) = (data_of(&message, "Approve"), data_of(&message, "Deny"));
    assert!(message.buttons.len() == 3 && approve != deny && approve.contains(&row.id), "{message:?}");
    fixture.server.press("bob", &message.id, &approve);
    let by = format!("chat:{}", fixture.server.person_id("bob"));
    let shown = fixture.wait_for_end(&message, &format!("list_files was allowed by {by}.")).await;
    assert!(shown.text.contains(r#"{"path":"."}"#), "the record of the call stays: {shown:?}");
    fixture.wait_for_answer().await;
    assert!(!fixture.told_model().contains("did not run"), "{}", fixture.told_model());
    // The same person again, and another one: nothing changes.
    for person in ["bob", "cy"] {
        fixture.press_refused(person, &message.id, &approve, "Nothing was changed").await;
        fixture.press_refused(person, &message.id, &deny, &format!("was allowed by {by}")).await;
    }
    assert_eq!(fixture.server.view().refusals.len(), 4);
    fixture.shut_down().await;
}

#[rstest]
#[case("ko-KR", "호출이 승인을 기다립니다", ["승인", "이 대화에서 계속 승인", "거부"], "호출이 허용되었습니다", "바뀐 것이 없습니다")]
#[case("zh-CN", "正在等待批准", ["批准", "在此对话中批准", "拒绝"], "允许", "没有任何改变")]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_and_its_buttons_are_in_the_language_of_the_agent(
    #[values(Telegram, Discord, Slack)] kind: ChannelKind,
    #[case] tag: &str,
    #[case] waits: &str,
    #[case] labels: [&str; 3],
    #[case] allowed: &str,
    #[case] unchanged: &str,
) {
    let language = |config: &mut EngineConfig| {
        config.agents.values_mut().for_each(|agent| agent.language = Some(tag.to_owned()));
    };
    let fixture = ButtonFixture::start_with(kind, language).await;
    let (message, _) = fixture.ask(json!({"path": "."})).await;
    assert!(message.text.contains(waits), "{message:?}");
    // Telegram has no colours of buttons, and puts signs before the labels.
    let has_labels = message.buttons.iter().zip(labels).all(|(button, label)| button.label.ends_with(label));
    assert!(message.buttons.len() == 3 && has_labels, "{message:?}");
    let approve = message.buttons[0].data.clone();
    fixture.server.press("bob", &message.id, &approve);
    fixture.wait_for_end(&message, allowed).await;
    fixture.wait_for_answer().await;
    fixture.press_refused("bob", &message.id, &approve, unchanged).await;
    fixture.shut_down().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_approver_allows_a_tool_for_the_conversation(#[values(Telegram, Discord, Slack)] kind: ChannelKind) {
    let fixture = ButtonFixture::start(kind).await;
    let (message, row) = fixture.ask(json!({"path": "."})).await;
    fixture.server.press("bob", &message.id, &data_of(&message, "in this conversation"));
    fixture.wait_for_end(&message, "list_files was allowed by").await;
    fixture.wait_for_answer().await;
    let rules = fixture.engine.visible_approval_rules(&super::operations::admin_caller());
    assert!(matches!(rules.as_slice(), [rule] if rule.session_key.as_ref() == Some(&row.session_key)), "{rules:?}");
    fixture.shut_down().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_person_is_refused_and_told_so(#[values(Telegram, Discord, Slack)] kind: ChannelKind) {
    let fixture = ButtonFixture::start(kind).await;
    let (message, _) = fixture.ask(json!({"path": "."})).await;
    let (approve, deny) = (data_of(&message, "Approve"), data_of(&message, "Deny"));
    // Who asked, an operator, and somebody who may not even write.
    for person in ["ann", "root", "eve"] {
        fixture.press_refused(person, &message.id, &approve, "You may not answer this call").await;
    }
    for person in ["root", "eve"] {
        fixture.press_refused(person, &message.id, &deny, "You may not answer this call").await;
    }
    assert_eq!(fixture.engine.pending_approvals().len(), 1);
    // Who asked may deny.
    fixture.server.press("ann", &message.id, &deny);
    fixture.wait_for_end(&message, "list_files was denied by").await;
    fixture.wait_for_answer().await;
    assert!(fixture.told_model().contains("Denied by a person"), "{}", fixture.told_model());
    fixture.shut_down().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn after_a_stop_the_buttons_are_gone_and_a_press_does_nothing(
    #[values(Telegram, Discord, Slack)] kind: ChannelKind,
) {
    let fixture = ButtonFixture::start(kind).await;
    let (message, _) = fixture.ask(json!({"path": "."})).await;
    let approve = data_of(&message, "Approve");
    fixture.server.write("ann", "stop");
    fixture.wait_for_end(&message, "was not executed, because the request was stopped").await;
    fixture.press_refused("bob", &message.id, &approve, "the request was stopped").await;
    assert_eq!(fixture.model.recorded_requests().len(), 1, "nothing went on");
    fixture.shut_down().await;
}

#[rstest]
#[tokio::test]
async fn after_the_time_limit_the_buttons_are_gone(#[values(Telegram, Discord, Slack)] kind: ChannelKind) {
    let limit = Duration::from_secs(20);
    let fixture = ButtonFixture::start_with(kind, |config| config.limits.approval_timeout_s = limit.as_secs()).await;
    let (message, _) = fixture.ask(json!({"path": "."})).await;
    let approve = data_of(&message, "Approve");
    tokio::time::pause();
    tokio::time::advance(limit).await;
    tokio::time::resume();
    fixture.wait_for_end(&message, "nobody answered in time").await;
    fixture.press_refused("bob", &message.id, &approve, "nobody answered in time").await;
    fixture.wait_for_answer().await;
    fixture.shut_down().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn forged_data_of_a_press_has_no_effect(#[values(Telegram, Discord, Slack)] kind: ChannelKind) {
    let fixture = ButtonFixture::start(kind).await;
    fixture.model.script(ScriptedResponse::tool_call("c2", "list_files", &json!({"path": "."})));
    fixture.engine.submit(&page_admin(), page_submission("page", "list it")).await.unwrap();
    let page_row = fixture.wait_for_call().await;
    let (message, row) = fixture.ask(json!({"path": "."})).await;
    let approve = data_of(&message, "Approve");
    for data in ["approve", "approve:", "approve:../..", "allow:1", "\u{1f600}", &approve.to_uppercase()] {
        fixture.press_refused("bob", &message.id, data, "belongs to no call").await;
    }
    let unknown = "approve:01989a5e-5f3b-7c11-9a55-0d2c6c1f7b1a";
    fixture.press_refused("bob", &message.id, unknown, "No call with this id waits in this channel").await;
    // The right data below another message.
    let other = fixture.server.post_bot_message("look").await;
    fixture.press_refused("bob", &other, &approve, "belongs to no call").await;
    // The call outside of the chats.
    let forged = approve.replace(&row.id, &page_row.id);
    fixture.press_refused("bob", &message.id, &forged, "belongs to no call").await;
    assert_eq!(fixture.engine.pending_approvals().len(), 2);
    fixture.shut_down().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_too_long_cannot_be_allowed_by_a_button(#[values(Telegram, Discord, Slack)] kind: ChannelKind) {
    let fixture = ButtonFixture::start(kind).await;
    let (message, row) = fixture.ask(json!({"path": "x".repeat(5000)})).await;
    assert!(message.buttons.len() == 1 && message.text.contains("too long"), "{message:?}");
    let approve = data_of(&message, "Deny").replace("deny", "approve");
    assert!(approve.contains(&row.id));
    fixture.press_refused("bob", &message.id, &approve, "belongs to no call").await;
    fixture.server.press("bob", &message.id, &data_of(&message, "Deny"));
    fixture.wait_for_end(&message, "was denied by").await;
    fixture.shut_down().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_of_two_is_counted_in_the_message(#[values(Telegram, Discord, Slack)] kind: ChannelKind) {
    let quorum = |config: &mut EngineConfig| config.agents.values_mut().for_each(|agent| agent.approval_quorum = 2);
    let fixture = ButtonFixture::start_with(kind, quorum).await;
    let (message, _) = fixture.ask(json!({"path": "."})).await;
    assert!(message.text.contains("Approved by 0 of 2 people."), "{message:?}");
    let approve = data_of(&message, "Approve");
    fixture.server.press("bob", &message.id, &approve);
    let counted = |shown: &ShownButtonMessage| shown.text.contains("Approved by 1 of 2 people: chat:");
    let view = fixture.wait("the count", |view| view.messages.iter().any(counted)).await;
    assert_eq!(view.messages.iter().find(|shown| counted(shown)).unwrap().buttons.len(), 2, "the buttons stay");
    fixture.press_refused("bob", &message.id, &approve, "you have allowed the call already").await;
    assert_eq!(fixture.engine.pending_approvals()[0].allowed_by.len(), 1);
    fixture.server.press("cy", &message.id, &approve);
    let (bob, cy) = (fixture.server.person_id("bob"), fixture.server.person_id("cy"));
    fixture.wait_for_end(&message, &format!("was allowed by chat:{bob}, chat:{cy}.")).await;
    fixture.wait_for_answer().await;
    fixture.shut_down().await;
}

/// An answer by command or on the page changes the message, too.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_from_elsewhere_withdraws_the_buttons(#[values(Telegram, Discord, Slack)] kind: ChannelKind) {
    let fixture = ButtonFixture::start(kind).await;
    let (message, row) = fixture.ask(json!({"path": "."})).await;
    fixture.engine.answer_approval(&page_admin(), &row.id, quell_protocol::approval::Decision::Deny.into()).unwrap();
    fixture.wait_for_end(&message, "was denied by page:admin").await;
    fixture.wait_for_answer().await;
    fixture.shut_down().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_withdraws_the_buttons(#[values(Telegram, Discord, Slack)] kind: ChannelKind) {
    let fixture = ButtonFixture::start(kind).await;
    let (message, _) = fixture.ask(json!({"path": "."})).await;
    let view = fixture.shut_down().await;
    let shown = view.messages.iter().find(|shown| shown.id == message.id).unwrap();
    assert!(shown.buttons.is_empty() && shown.text.contains("was not executed"), "{view:#?}");
}

/// The response to the message is lost: the press says which message it is.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_response_was_lost_is_answered_all_the_same(
    #[values(Telegram, Discord, Slack)] kind: ChannelKind,
) {
    let fixture = ButtonFixture::start(kind).await;
    fixture.server.lose_next_response();
    let (message, _) = fixture.ask(json!({"path": "."})).await;
    fixture.server.press("bob", &message.id, &data_of(&message, "Approve"));
    fixture.wait_for_end(&message, "was allowed by").await;
    fixture.wait_for_answer().await;
    fixture.shut_down().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn where_buttons_are_refused_the_commands_are_named(#[values(Telegram, Discord, Slack)] kind: ChannelKind) {
    let fixture = ButtonFixture::start(kind).await;
    fixture.server.refuse_next_message();
    fixture.model.script(ScriptedResponse::tool_call("c1", "list_files", &json!({"path": "."})));
    fixture.server.write("ann", "list it");
    let is_notice = |shown: &ShownButtonMessage| shown.buttons.is_empty() && shown.text.contains("/approve ");
    fixture.wait("the notice", |view| view.messages.iter().any(is_notice)).await;
    fixture.shut_down().await;
}
