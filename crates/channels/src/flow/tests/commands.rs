//! Chat commands that wait: stops, restarts and shutdown while one is running.

use std::sync::{Arc, Mutex, mpsc};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use quell_engine::hooks::{LifecycleHook, Veto};
use quell_engine::live_run::RunProgress;
use quell_protocol::SessionKey;
use quell_protocol::hook::{HookBody, HookEvent};
use tokio::sync::watch;
use tokio::time::timeout;

use super::fake_network::{FakeNetwork, FakeNetworkState};
use super::{FlowFixture, WAIT_TIMEOUT};

const COMMAND_STOPPED_TEXT: &str = "⏹ Stopped. The command has changed nothing.";
const NEW_STOPPED_TEXT: &str = "⏹ Stopped. The conversation was not emptied; what was at work in it has been ended.";

/// A hook that blocks the planned number of calls of one event.
struct HookGate {
    event: HookEvent,
    /// How the next calls will wait; taken from the end.
    planned_waits: Mutex<Vec<HookWait>>,
    /// Number of calls that wait now.
    waiting: watch::Sender<usize>,
}

enum HookWait {
    /// Until the call is dropped.
    Forever,
    /// Blocking its thread, so that the call cannot be dropped.
    Blocked(mpsc::Receiver<()>),
}

impl HookGate {
    fn new(event: HookEvent, planned_waits: Vec<HookWait>) -> Arc<Self> {
        Arc::new(Self { event, planned_waits: Mutex::new(planned_waits), waiting: watch::Sender::default() })
    }

    async fn wait_until_holding(&self, calls: usize) {
        let mut waiting = self.waiting.subscribe();
        let held = timeout(WAIT_TIMEOUT, waiting.wait_for(|now| *now == calls)).await;
        assert!(held.is_ok(), "{calls} calls should wait");
    }

    async fn wait_at_gate(&self) {
        let Some(wait) = self.planned_waits.lock().unwrap().pop() else { return };
        self.waiting.send_modify(|waiting| *waiting += 1);
        let _left = HookWaitGuard(self);
        match wait {
            HookWait::Forever => std::future::pending().await,
            HookWait::Blocked(gate) => tokio::task::block_in_place(|| gate.recv().unwrap()),
        }
    }
}

struct HookWaitGuard<'a>(&'a HookGate);

impl Drop for HookWaitGuard<'_> {
    fn drop(&mut self) {
        self.0.waiting.send_modify(|waiting| *waiting -= 1);
    }
}

impl LifecycleHook for HookGate {
    fn name(&self) -> &str {
        "gate"
    }

    fn wants(&self, event: HookEvent) -> bool {
        event == self.event
    }

    fn on_create<'a>(&'a self, _body: &'a HookBody) -> BoxFuture<'a, Result<(), Veto>> {
        self.wait_at_gate().then(|()| ready(Ok(()))).boxed()
    }

    fn on_event<'a>(&'a self, _body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.wait_at_gate().boxed()
    }
}

async fn fixture_with_gate(gate: &Arc<HookGate>) -> FlowFixture {
    let hook = Arc::clone(gate) as Arc<dyn LifecycleHook>;
    FlowFixture::start_with("", |config| {
        config.lifecycle_hooks.push(hook);
        // Long enough that only the stop can end a hook.
        config.hooks.timeout_ms = 600_000;
    })
    .await
}

/// The stored model of a sender's session in the room.
async fn stored_model(fixture: &FlowFixture, sender: &str) -> Option<String> {
    let key = SessionKey::parse(format!("paper_room_{sender}")).unwrap();
    let view = fixture.engine.session_view(&key).await.unwrap()?;
    Some(view.config.unwrap().model.value)
}

/// Regression: a chat could not end such a command, and later messages waited for the hook's timeout.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_a_hook_holds_is_ended_by_a_stop_and_changes_nothing() {
    let gate = HookGate::new(HookEvent::Create, vec![HookWait::Forever]);
    let fixture = fixture_with_gate(&gate).await;
    fixture.network.receive_text("ann", "/model scripted/other");
    gate.wait_until_holding(1).await;
    fixture.network.receive_text("ann", "what is the weather?");
    // Neither the command nor the message is bob's, and ann's stop in another room does not reach them.
    fixture.network.receive_text("bob", "/stop");
    fixture.network.wait_for_text("Nothing of yours is running here.").await;
    fixture.network.receive_text_in("elsewhere", "ann", "/stop");
    let elsewhere = |state: &FakeNetworkState| state.messages.iter().any(|it| it.address.target == "elsewhere");
    let state = fixture.network.wait_for("the other answer", elsewhere).await;
    assert!(state.texts() == ["Nothing of yours is running here."; 2], "{:?}", state.texts());
    gate.wait_until_holding(1).await;
    fixture.network.receive_text("ann", "/stop");
    fixture.network.wait_for_text("Stopping your command. 1 waiting message will not be answered.").await;
    fixture.network.wait_for_text(COMMAND_STOPPED_TEXT).await;
    gate.wait_until_holding(0).await;
    assert_eq!(stored_model(&fixture, "ann").await, None, "there is no such session");
    fixture.ask("ann", "still there?", "Here.").await;
    assert_eq!(fixture.model.request_at(0).wait_arrived().await.body["model"], "model");
    assert_eq!(stored_model(&fixture, "ann").await.unwrap(), "scripted/model");
    fixture.shut_down().await;
}

/// After a restart, a network may deliver the command again without the stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_was_stopped_is_not_done_when_it_is_told_again() {
    let gate = HookGate::new(HookEvent::Create, vec![HookWait::Forever]);
    let first = fixture_with_gate(&gate).await;
    let inbound = first.network.inbound_message("room", "ann", "/model scripted/other");
    first.network.receive_message(inbound.clone());
    gate.wait_until_holding(1).await;
    first.network.receive_text("ann", "/stop");
    first.network.wait_for_text(COMMAND_STOPPED_TEXT).await;
    let network = FakeNetwork::with_state(first.network.state());
    let fixture = FlowFixture::start_with_data((first.shut_down().await, network), "", |_| {}).await;
    fixture.network.receive_message(inbound);
    fixture.network.receive_text("ann", "/model");
    fixture.network.wait_for_text("This conversation is for scripted/model.").await;
    assert_eq!(stored_model(&fixture, "ann").await, None);
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_ends_the_commands_of_others() {
    let gate = HookGate::new(HookEvent::Create, vec![HookWait::Forever, HookWait::Forever]);
    let fixture = fixture_with_gate(&gate).await;
    fixture.network.receive_text("ann", "/model scripted/other");
    fixture.network.receive_text("bob", "/models scripted");
    gate.wait_until_holding(2).await;
    fixture.network.receive_text("root", "/stop");
    fixture.network.wait_for_text("Nothing of yours is running here.").await;
    gate.wait_until_holding(2).await;
    fixture.network.receive_text("root", "/stop all");
    fixture.network.wait_for_text("Stopping 2 commands.").await;
    let both =
        |state: &FakeNetworkState| state.texts().iter().filter(|text| **text == COMMAND_STOPPED_TEXT).count() == 2;
    fixture.network.wait_for("both answers", both).await;
    gate.wait_until_holding(0).await;
    fixture.shut_down().await;
}

/// The hook is notified after the session has changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_has_taken_effect_says_so_after_a_stop() {
    let gate = HookGate::new(HookEvent::Activate, Vec::new());
    let fixture = fixture_with_gate(&gate).await;
    fixture.ask("ann", "hello", "Hello.").await;
    gate.planned_waits.lock().unwrap().push(HookWait::Forever);
    fixture.network.receive_text("ann", "/model scripted/other");
    gate.wait_until_holding(1).await;
    fixture.network.receive_text("ann", "/stop");
    fixture
        .network
        .wait_for_text("⏹ It was over before the stop. This conversation is for scripted/other from now on.")
        .await;
    fixture.ask("ann", "still there?", "Here.").await;
    assert_eq!(fixture.model.request_at(1).wait_arrived().await.body["model"], "other");
    fixture.shut_down().await;
}

/// `/new` waits for the end of the run that it stopped.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_keeps_the_history_that_a_command_was_about_to_empty() {
    let gate = HookGate::new(HookEvent::Activate, Vec::new());
    let fixture = fixture_with_gate(&gate).await;
    fixture.ask("ann", "my number is 4711", "Noted.").await;
    let (open, opened) = mpsc::channel();
    gate.planned_waits.lock().unwrap().push(HookWait::Blocked(opened));
    fixture.network.receive_text("ann", "and now?");
    gate.wait_until_holding(1).await;
    let run = fixture.engine.live_run(&fixture.engine.active_runs()[0].run_id).unwrap();
    fixture.network.receive_text("ann", "/new");
    run.wait_for_progress(RunProgress::Ending).await;
    fixture.network.receive_text("ann", "/stop");
    fixture.network.wait_for_text("Stopping your command.").await;
    fixture.network.wait_for_text(NEW_STOPPED_TEXT).await;
    open.send(()).unwrap();
    run.wait_for_progress(RunProgress::Ended).await;
    // The live run keeps the channel alive.
    drop(run);
    fixture.ask("ann", "what is my number?", "4711.").await;
    let request = fixture.model.request_at(1).wait_arrived().await;
    assert!(request.body.to_string().contains("my number is 4711"), "{:#}", request.body);
    fixture.shut_down().await;
}

/// A blocked hook cannot be dropped, so the outcome of the command stays unknown.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_cannot_be_ended_says_that_nobody_knows_and_is_waited_for_no_longer() {
    let (open, opened) = mpsc::channel();
    let gate = HookGate::new(HookEvent::Create, vec![HookWait::Blocked(opened)]);
    let fixture = fixture_with_gate(&gate).await;
    fixture.network.receive_text("ann", "/model scripted/other");
    gate.wait_until_holding(1).await;
    fixture.network.receive_text("ann", "/stop");
    fixture.network.wait_for_text("Stopping your command.").await;
    fixture.network.receive_text("ann", "/stop");
    fixture.network.wait_for_text("Still stopping.").await;
    let expected = "⚠️ Stopped, but something that the command had begun has not ended: it may still take effect.";
    fixture.network.wait_for_text(expected).await;
    fixture.network.receive_text("ann", "/model");
    fixture.network.wait_for_text("This conversation is for scripted/model.").await;
    open.send(()).unwrap();
    gate.wait_until_holding(0).await;
    fixture.shut_down().await;
}

/// Regression: the command was dropped without a message.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_waits_at_the_shutdown_says_that_it_was_not_done() {
    let gate = HookGate::new(HookEvent::Create, vec![HookWait::Forever]);
    let first = fixture_with_gate(&gate).await;
    first.network.receive_text("ann", "/model scripted/other");
    gate.wait_until_holding(1).await;
    let network = Arc::clone(&first.network);
    let dir = first.shut_down().await;
    assert_eq!(
        network.state().texts(),
        ["⚠️ Quell is shutting down, so this is not answered. Ask again when it is back."]
    );
    let fixture = FlowFixture::start_with_data((dir, FakeNetwork::with_state(network.state())), "", |_| {}).await;
    assert_eq!(stored_model(&fixture, "ann").await, None);
    fixture.shut_down().await;
}
