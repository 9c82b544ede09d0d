//! Notices, errors and help in the language of the conversation.

use quell_engine::EngineConfig;
use quell_protocol::session::SessionRequest;
use quell_testkit::model::ScriptedResponse;
use rstest::rstest;

use super::{FlowFixture, page_admin};

fn speaks(tag: &str) -> impl FnOnce(&mut EngineConfig) + use<> {
    let tag = tag.to_owned();
    move |config| config.agents.values_mut().for_each(|agent| agent.language = Some(tag.clone()))
}

#[rstest]
#[case("ko-KR", "요청을 중지합니다.", "⏹ 중지했습니다.", "⏹ 중지 ", "기록 유효")]
#[case("zh-CN", "正在停止您的请求。", "⏹ 已停止。", "⏹ 已停止，用时 ", "历史有效")]
#[case::falls_back("de-DE", "Stopping your request.", "⏹ Stopped.", "⏹ stopped in ", "history valid")]
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_and_its_receipt_are_in_the_language_of_the_agent(
    #[case] tag: &str,
    #[case] stopping: &str,
    #[case] draft_ending: &str,
    #[case] receipt: &str,
    #[case] history: &str,
) {
    let fixture = FlowFixture::start_with("", speaks(tag)).await;
    fixture.model.script(ScriptedResponse::silent_mid_stream("I begin"));
    fixture.network.receive_text("ann", "write");
    fixture.network.wait_for_text("I begin").await;
    fixture.network.receive_text("ann", "/stop");
    fixture.network.wait_for_text(stopping).await;
    let draft = format!("I begin\n\n{draft_ending}");
    fixture.network.wait_for("the end of the draft", |state| state.texts().contains(&draft.as_str())).await;
    let is_receipt = |text: &&str| text.starts_with(receipt) && text.contains(" · ") && text.contains(history);
    fixture.network.wait_for("the receipt", |state| state.texts().iter().any(is_receipt)).await;
    fixture.shut_down().await;
}

#[rstest]
#[case("ko", "여기서 실행 중인 요청이 없습니다.")]
#[case("zh", "这里没有您正在运行的任务。")]
#[tokio::test(flavor = "multi_thread")]
async fn the_same_is_said_once_in_every_language(#[case] tag: &str, #[case] nothing: &str) {
    let fixture = FlowFixture::start_with("", speaks(tag)).await;
    for text in ["/stop", "/stop", "/help"] {
        fixture.network.receive_text("ann", text);
    }
    let state = fixture.network.wait_for("the help", |state| state.contains_text("/models PROVIDER")).await;
    let state = if state.contains_text(nothing) { state } else { fixture.network.wait_for_text(nothing).await };
    assert_eq!(state.texts().iter().filter(|text| **text == nothing).count(), 1, "{state:#?}");
    fixture.shut_down().await;
}

#[rstest]
#[case("ko-KR", "/help - 이 목록", "여기서 실행 중인 작업이 없습니다. 모델: scripted/model.", "새 대화를 시작합니다.")]
#[case("zh-CN", "/help - 此列表", "这里没有正在运行的任务。模型：scripted/model。", "开始新的对话。")]
#[tokio::test(flavor = "multi_thread")]
async fn commands_answer_in_the_language_of_the_agent(
    #[case] tag: &str,
    #[case] help: &str,
    #[case] status: &str,
    #[case] new: &str,
) {
    let fixture = FlowFixture::start_with("", speaks(tag)).await;
    for (command, text) in [("/help", help), ("/status", status), ("/new", new)] {
        fixture.network.receive_text("ann", command);
        fixture.network.wait_for_text(text).await;
    }
    fixture.shut_down().await;
}

#[rstest]
#[case("ko-KR", "⚠️ 실패했습니다. 다시 요청해 주세요.", "⚠️ Quell이 보류 중이라 답하지 않습니다.")]
#[case("zh-CN", "⚠️ 失败了。请重新提问", "⚠️ Quell 已冻结，此消息不会得到答复。")]
#[tokio::test(flavor = "multi_thread")]
async fn errors_are_told_in_the_language_of_the_agent(#[case] tag: &str, #[case] failed: &str, #[case] held: &str) {
    let fixture = FlowFixture::start_with("", speaks(tag)).await;
    fixture.model.script(ScriptedResponse::status(400));
    fixture.network.receive_text("ann", "hello");
    fixture.network.wait_for_text(failed).await;
    fixture.engine.set_hold(&page_admin(), true, None).await.unwrap();
    fixture.network.receive_text("ann", "hello?");
    fixture.network.wait_for_text(held).await;
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_has_its_own_language_before_its_agents() {
    let fixture = FlowFixture::start_with("", speaks("ko-KR")).await;
    let engine = &fixture.engine;
    assert_eq!(engine.agent_language(None).as_deref(), Some("ko-KR"));
    let request = |chat: &str, language: Option<&str>| SessionRequest {
        user_id: "u1".to_owned(),
        chat_id: chat.to_owned(),
        provider: "scripted".to_owned(),
        language: language.map(str::to_owned),
        ..SessionRequest::default()
    };
    let (own, _) = engine.open_session(&page_admin(), request("c1", Some("zh-CN"))).await.unwrap();
    assert_eq!(engine.session_language(&own, None).as_deref(), Some("zh-CN"));
    let (other, _) = engine.open_session(&page_admin(), request("c2", None)).await.unwrap();
    assert_eq!(engine.session_language(&other, None).as_deref(), Some("ko-KR"));
    fixture.shut_down().await;
}
