//! Files that come with messages: how many at the same time, and when they go.

use quell_engine::agent::AgentConfig;
use quell_engine::tools::attachment::folder_of;
use quell_kernel::Push;
use quell_kernel::approval::ApprovalPolicy;
use quell_kernel::registry::StopAsk;
use quell_protocol::api::Scope;
use quell_protocol::approval::Decision;
use quell_protocol::{Attachment, AttachmentKind, SessionKey, StopReason, Surface};
use quell_testkit::model::Behaviour;

use super::House;
use super::operate::admin;
use crate::channels::seam::Heard;

/// As many as a channel has in memory.
const FILES_AT_ONCE: usize = 8;

impl House {
    fn with_file(&self, sender: &str, source: &str) -> Heard {
        let mut heard = self.paper.heard("room", sender, "look");
        heard.attachments.push(Attachment {
            kind: AttachmentKind::File,
            source: source.to_owned(),
            name: Some("notes.txt".to_owned()),
            media_type: None,
            bytes: None,
        });
        heard
    }

    /// Runs that fetch, or wait for their turn to.
    async fn at_their_files(&self) -> usize {
        let mut count = 0;
        for run in self.engine.active_runs() {
            let held = self.engine.run(&run.run_id).await.unwrap().map(|view| view.held).unwrap_or_default();
            count += usize::from(held.iter().any(|row| row.label == "1 attachments from paper"));
        }
        count
    }
}

/// Each may have 20 MiB, and whoever writes a hundred messages with files had them all in memory.
#[tokio::test(flavor = "multi_thread")]
async fn only_so_many_files_are_fetched_at_the_same_time_and_a_stop_makes_room() {
    let house = House::open().await;
    for number in 0..=FILES_AT_ONCE {
        house.paper.tell(house.with_file(&format!("sender {number}"), "slow"));
        house.paper.wait_for("its fetching", |page| page.fetching == (number + 1).min(FILES_AT_ONCE)).await;
    }
    while house.at_their_files().await <= FILES_AT_ONCE {}
    assert_eq!(house.paper.page().fetching, FILES_AT_ONCE, "the last one waits");
    house.paper.say("sender 0", "/stop");
    house.paper.wait_for("the receipt", |page| page.says("1 delivery cancelled")).await;
    house.paper.wait_for("the last one's turn", |page| page.fetching == FILES_AT_ONCE).await;
    let last = format!("sender {FILES_AT_ONCE}");
    house.paper.say(&last, "/stop");
    house.paper.wait_for("one less", |page| page.fetching == FILES_AT_ONCE - 1).await;
    house.close().await;
}

/// They stayed for ever.
#[tokio::test(flavor = "multi_thread")]
async fn files_go_with_the_session_they_came_into() {
    let house = House::open().await;
    house.model.script(Behaviour::text("I see.")).script(Behaviour::text("I see, too."));
    let folder = |sender: &str| {
        let session = SessionKey::parse(format!("paper_room_{sender}")).unwrap();
        (house.dir.path().join("work/main").join(folder_of(&session)), session)
    };
    for sender in ["ann", "bob"] {
        let asked = house.with_file(sender, "contents");
        let id = asked.message.0.clone();
        house.paper.tell(asked);
        house.paper.wait_for("the answer", |page| page.signs_on(&id) == ["✅"]).await;
        assert!(folder(sender).0.exists());
    }
    let admin = super::super::caller("page", "admin", Scope::Admin);
    let ask = StopAsk { push: Push::Gentle, reason: StopReason::User, surface: Surface::Page };
    assert!(house.engine.delete_session(&admin, &folder("ann").1, &ask).await.unwrap());
    assert!(!folder("ann").0.exists() && folder("bob").0.exists());
    house.close().await;
}

/// A house whose agent has a file to send, and answers with its marker.
async fn with_marker(change: impl Fn(&mut AgentConfig)) -> House {
    let house = House::with("", |config| config.agents.values_mut().for_each(&change)).await;
    let work = house.dir.path().join("work/main");
    std::fs::write(work.join("fine.txt"), "a fine text").unwrap();
    house.model.script(Behaviour::text("Here it is. [FILE:fine.txt]"));
    house
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
    let house = with_marker(|agent| {
        agent.tools = tools.iter().map(|tool| (*tool).to_owned()).collect();
        agent.approvals.extend(policy.map(|policy| ("send_file".to_owned(), policy)));
    })
    .await;
    let asked = house.paper.say("ann", "send it");
    let page = house.paper.wait_for("the end", |page| page.signs_on(&asked) == ["✅"]).await;
    assert!(page.says("Here it is.") && !page.says("a fine text"), "{:?}", page.texts());
    assert!(page.says("[FILE:fine.txt]"), "a person cannot see that there was one: {:?}", page.texts());
    house.close().await;
}

#[rstest::rstest]
#[case(Decision::Allow, true)]
#[case(Decision::Deny, false)]
#[tokio::test(flavor = "multi_thread")]
async fn a_marker_waits_for_a_person_where_the_tool_does(#[case] decision: Decision, #[case] sent: bool) {
    let house = with_marker(|agent| {
        agent.approvals.insert("send_file".to_owned(), ApprovalPolicy::Ask);
    })
    .await;
    let asked = house.paper.say("ann", "send it");
    let call = loop {
        if let Some(call) = house.engine.approvals().pop() {
            break call;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(call.tool, "send_file");
    assert!(!house.paper.page().says("a fine text"), "it was sent before anybody was asked");
    house.engine.answer_approval(&admin(), &call.id, decision).unwrap();
    let page = house.paper.wait_for("the end", |page| page.signs_on(&asked) == ["✅"]).await;
    assert_eq!(page.says("file fine.txt: a fine text"), sent, "{:?}", page.texts());
    house.close().await;
}
