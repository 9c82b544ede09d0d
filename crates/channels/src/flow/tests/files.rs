//! Attachments in the flow: concurrency limit, cleanup with the session, approval of file markers.

use quell_engine::agent::AgentConfig;
use quell_kernel::approval::ApprovalPolicy;
use quell_protocol::approval::Decision;
use quell_protocol::{Attachment, SessionKey};
use quell_testkit::model::ScriptedResponse;
use quell_tools::attachment::attachment_folder;

use super::operations::admin_caller;
use super::{FlowFixture, page_admin, page_stop_request};
use crate::network::InboundMessage;
use crate::network::test_support::attachment_from;

/// The channel's limit of files in memory.
const FILES_AT_ONCE: usize = 8;

impl FlowFixture {
    pub(super) fn inbound_with_file(&self, sender: &str, source: &str) -> InboundMessage {
        let mut inbound = self.network.inbound_message("room", sender, "look");
        let name = Some("notes.txt".to_owned());
        inbound.attachments.push(Attachment { name, ..attachment_from(source) });
        inbound
    }

    /// Number of runs that fetch a file, or wait for a permit to.
    async fn runs_fetching_files(&self) -> usize {
        let mut count = 0;
        for run in self.engine.active_runs() {
            let held = self.engine.find_run(&run.run_id).await.unwrap().map(|view| view.held).unwrap_or_default();
            count += usize::from(held.iter().any(|row| row.label == "1 attachments from paper"));
        }
        count
    }
}

/// Regression: each file may have 20 MiB, and a sender of 100 files had all of them in memory.
#[tokio::test(flavor = "multi_thread")]
async fn only_so_many_files_are_fetched_at_the_same_time_and_a_stop_makes_room() {
    let fixture = FlowFixture::start().await;
    for number in 0..=FILES_AT_ONCE {
        fixture.network.receive_message(fixture.inbound_with_file(&format!("sender {number}"), "slow"));
        fixture.network.wait_for("its fetching", |state| state.fetching == (number + 1).min(FILES_AT_ONCE)).await;
    }
    while fixture.runs_fetching_files().await <= FILES_AT_ONCE {}
    assert_eq!(fixture.network.state().fetching, FILES_AT_ONCE, "the last one waits");
    fixture.network.receive_text("sender 0", "/stop");
    fixture.network.wait_for_text("1 delivery cancelled").await;
    fixture.network.wait_for("the last one's turn", |state| state.fetching == FILES_AT_ONCE).await;
    let last = format!("sender {FILES_AT_ONCE}");
    fixture.network.receive_text(&last, "/stop");
    fixture.network.wait_for("one less", |state| state.fetching == FILES_AT_ONCE - 1).await;
    fixture.shut_down().await;
}

/// Regression: files were never deleted.
#[tokio::test(flavor = "multi_thread")]
async fn files_go_with_the_session_they_came_into() {
    let fixture = FlowFixture::start().await;
    fixture.model.script(ScriptedResponse::text("I see.")).script(ScriptedResponse::text("I see, too."));
    let folder = |sender: &str| {
        let session = SessionKey::parse(format!("paper_room_{sender}")).unwrap();
        (fixture.dir.path().join("work/main").join(attachment_folder(&session)), session)
    };
    for sender in ["ann", "bob"] {
        let inbound = fixture.inbound_with_file(sender, "contents");
        let id = inbound.message_id.0.clone();
        fixture.network.receive_message(inbound);
        fixture.network.wait_for("the answer", |state| state.reactions_on(&id) == ["✅"]).await;
        assert!(folder(sender).0.exists());
    }
    let session = folder("ann").1;
    assert!(fixture.engine.delete_session(&page_admin(), &session, &page_stop_request()).await.unwrap());
    assert!(!folder("ann").0.exists() && folder("bob").0.exists());
    fixture.shut_down().await;
}

/// A fixture whose agent has a file to send, and answers with its marker.
async fn fixture_with_marker(change: impl Fn(&mut AgentConfig)) -> FlowFixture {
    let fixture = FlowFixture::start_with("", |config| config.agents.values_mut().for_each(&change)).await;
    let work = fixture.dir.path().join("work/main");
    std::fs::write(work.join("fine.txt"), "a fine text").unwrap();
    fixture.model.script(ScriptedResponse::text("Here it is. [FILE:fine.txt]"));
    fixture
}

#[rstest::rstest]
#[case::denied(&["*"], Some(ApprovalPolicy::Deny))]
#[case::no_tools(&[], None)]
#[case::other_tools(&["read_file", "shell"], None)]
#[tokio::test(flavor = "multi_thread")]
async fn a_marker_sends_nothing_that_its_agent_may_not_send(
    #[case] tools: &[&str],
    #[case] policy: Option<ApprovalPolicy>,
) {
    let fixture = fixture_with_marker(|agent| {
        agent.tools = tools.iter().map(|tool| (*tool).to_owned()).collect();
        agent.approvals.extend(policy.map(|policy| ("send_file".to_owned(), policy)));
    })
    .await;
    let message_id = fixture.network.receive_text("ann", "send it");
    let state = fixture.network.wait_for("the end", |state| state.reactions_on(&message_id) == ["✅"]).await;
    assert!(state.contains_text("Here it is.") && !state.contains_text("a fine text"), "{:?}", state.texts());
    assert!(state.contains_text("[FILE:fine.txt]"), "a person cannot see that there was one: {:?}", state.texts());
    fixture.shut_down().await;
}

#[rstest::rstest]
#[case(Decision::Allow, true)]
#[case(Decision::Deny, false)]
#[tokio::test(flavor = "multi_thread")]
async fn a_marker_waits_for_a_person_where_the_tool_does(#[case] decision: Decision, #[case] sent: bool) {
    let fixture = fixture_with_marker(|agent| {
        agent.approvals.insert("send_file".to_owned(), ApprovalPolicy::Ask);
    })
    .await;
    let message_id = fixture.network.receive_text("ann", "send it");
    let call = loop {
        if let Some(call) = fixture.engine.pending_approvals().pop() {
            break call;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(call.tool, "send_file");
    assert!(!fixture.network.state().contains_text("a fine text"), "it was sent before anybody was asked");
    fixture.engine.answer_approval(&admin_caller(), &call.id, decision.into()).unwrap();
    let state = fixture.network.wait_for("the end", |state| state.reactions_on(&message_id) == ["✅"]).await;
    assert_eq!(state.contains_text("file fine.txt: a fine text"), sent, "{:?}", state.texts());
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_answers_its_calls_and_the_wrong_person_is_refused() {
    let fixture = FlowFixture::start_with("approvers = [\"cy\"]", |config| {
        for agent in config.agents.values_mut() {
            agent.approvals.insert("list_files".to_owned(), ApprovalPolicy::Ask);
        }
    })
    .await;
    let call = || ScriptedResponse::tool_call("c1", "list_files", &serde_json::json!({"path": "."}));
    fixture.model.script(call()).script(ScriptedResponse::text("It is done."));
    fixture.network.receive_text("ann", "list it");
    fixture.network.wait_for_text("list_files waits for approval").await;
    let id = fixture.engine.pending_approvals().pop().unwrap().id;
    assert!(fixture.network.state().contains_text(&format!("/approve {id}")));
    // Neither who asked nor an operator is an approver.
    for sender in ["ann", "bob", "root"] {
        fixture.network.receive_text(sender, &format!("/approve {id}"));
    }
    let refused = |state: &super::fake_network::FakeNetworkState| {
        state.texts().iter().filter(|text| text.contains("You may not answer this call")).count() == 3
    };
    fixture.network.wait_for("the refusals", refused).await;
    fixture.network.receive_text("cy", "/approve nonsense");
    fixture.network.wait_for_text("No call with this id waits").await;
    assert_eq!(fixture.engine.pending_approvals().len(), 1);
    fixture.network.receive_text("cy", &format!("/approve {id}"));
    fixture.network.wait_for_text("Allowed: list_files").await;
    fixture.network.wait_for_text("It is done.").await;
    // An approver answers for a run of their own, too; who asked may deny.
    for (sender, command, told) in
        [("cy", "/approve {id}", "Allowed: list_files"), ("ann", "/deny {id} not today", "Denied: list_files")]
    {
        fixture.model.script(call()).script(ScriptedResponse::text(format!("Over for {sender}.")));
        fixture.network.receive_text(sender, "again");
        let id = loop {
            if let Some(row) = fixture.engine.pending_approvals().pop() {
                break row.id;
            }
            tokio::task::yield_now().await;
        };
        fixture.network.receive_text(sender, &command.replace("{id}", &id));
        fixture.network.wait_for_text(told).await;
        fixture.network.wait_for_text(&format!("Over for {sender}.")).await;
    }
    let requests = fixture.model.recorded_requests();
    assert!(requests.last().unwrap().body["messages"].to_string().contains("who says: not today"));
    fixture.shut_down().await;
}
