//! Commands of a chat that wait for something: a stop ends them, and they say what came of them.

use std::sync::{Arc, Mutex, mpsc};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use quell_engine::cell::Progress;
use quell_engine::hooks::{LifecycleHook, Veto};
use quell_protocol::SessionKey;
use quell_protocol::hook::{HookBody, HookEvent};
use quell_testkit::model::Behaviour;
use tokio::sync::watch;
use tokio::time::timeout;

use super::paper::{Page, Paper};
use super::{House, PATIENCE};

const UNCHANGED: &str = "⏹ Stopped. The command has changed nothing.";
const NOT_EMPTIED: &str = "⏹ Stopped. The conversation was not emptied; what was at work in it has been ended.";

/// A hook that lets a few calls of one event wait.
struct Gate {
    event: HookEvent,
    /// Calls that will wait, and how.
    coming: Mutex<Vec<Wait>>,
    /// Calls that wait now.
    waiting: watch::Sender<usize>,
}

enum Wait {
    /// Until it is dropped.
    ForEver,
    /// On its thread, where nobody can drop it.
    Blocked(mpsc::Receiver<()>),
}

impl Gate {
    fn new(event: HookEvent, coming: Vec<Wait>) -> Arc<Self> {
        Arc::new(Self { event, coming: Mutex::new(coming), waiting: watch::Sender::default() })
    }

    async fn holds(&self, calls: usize) {
        let mut waiting = self.waiting.subscribe();
        let held = timeout(PATIENCE, waiting.wait_for(|now| *now == calls)).await;
        assert!(held.is_ok(), "{calls} calls should wait");
    }

    async fn pass(&self) {
        let Some(wait) = self.coming.lock().unwrap().pop() else { return };
        self.waiting.send_modify(|waiting| *waiting += 1);
        let _left = Left(self);
        match wait {
            Wait::ForEver => std::future::pending().await,
            Wait::Blocked(gate) => tokio::task::block_in_place(|| gate.recv().unwrap()),
        }
    }
}

struct Left<'a>(&'a Gate);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        self.0.waiting.send_modify(|waiting| *waiting -= 1);
    }
}

impl LifecycleHook for Gate {
    fn name(&self) -> &str {
        "gate"
    }

    fn wants(&self, event: HookEvent) -> bool {
        event == self.event
    }

    fn on_create<'a>(&'a self, _body: &'a HookBody) -> BoxFuture<'a, Result<(), Veto>> {
        self.pass().then(|()| ready(Ok(()))).boxed()
    }

    fn on_activate<'a>(&'a self, _body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.pass().boxed()
    }
}

async fn house(gate: &Arc<Gate>) -> House {
    let hook = Arc::clone(gate) as Arc<dyn LifecycleHook>;
    House::with("", |config| {
        config.lifecycle.push(hook);
        // It is the stop that ends a hook.
        config.hooks.timeout_ms = 600_000;
    })
    .await
}

/// The model that the conversation of a sender in the room is stored with.
async fn chosen(house: &House, sender: &str) -> Option<String> {
    let key = SessionKey::parse(format!("paper_room_{sender}")).unwrap();
    let view = house.engine.session_view(&key).await.unwrap()?;
    Some(view.config.unwrap().model.value)
}

async fn answer(paper: &Paper, text: &str) {
    paper.wait_for(text, |page| page.says(text)).await;
}

/// Nobody could end it from the chat, and what was said after it waited for the hook's time.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_a_hook_holds_is_ended_by_a_stop_and_changes_nothing() {
    let gate = Gate::new(HookEvent::Create, vec![Wait::ForEver]);
    let house = house(&gate).await;
    house.paper.say("ann", "/model scripted/other");
    gate.holds(1).await;
    house.paper.say("ann", "what is the weather?");
    // Neither is bob's, and neither reaches it.
    house.paper.say("bob", "/stop");
    answer(&house.paper, "Nothing of yours is running here.").await;
    house.paper.say_in("elsewhere", "ann", "/stop");
    let elsewhere = |page: &Page| page.written.iter().any(|it| it.place.target == "elsewhere");
    let page = house.paper.wait_for("the other answer", elsewhere).await;
    assert!(page.texts() == ["Nothing of yours is running here."; 2], "{:?}", page.texts());
    gate.holds(1).await;
    house.paper.say("ann", "/stop");
    answer(&house.paper, "Stopping your command. 1 waiting message will not be answered.").await;
    answer(&house.paper, UNCHANGED).await;
    gate.holds(0).await;
    assert_eq!(chosen(&house, "ann").await, None, "there is no such session");
    house.model.script(Behaviour::text("Here."));
    house.paper.say("ann", "still there?");
    answer(&house.paper, "Here.").await;
    assert_eq!(house.model.request(0).arrived().await.body["model"], "model");
    assert_eq!(chosen(&house, "ann").await.unwrap(), "scripted/model");
    house.close().await;
}

/// A network that tells it again, after a restart, has not been told that it was stopped.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_was_stopped_is_not_done_when_it_is_told_again() {
    let gate = Gate::new(HookEvent::Create, vec![Wait::ForEver]);
    let first = house(&gate).await;
    let heard = first.paper.heard("room", "ann", "/model scripted/other");
    first.paper.tell(heard.clone());
    gate.holds(1).await;
    first.paper.say("ann", "/stop");
    answer(&first.paper, UNCHANGED).await;
    let paper = Paper::after(first.paper.page());
    let house = House::on((first.close().await, paper), "", |_| {}).await;
    house.paper.tell(heard);
    house.paper.say("ann", "/model");
    answer(&house.paper, "This conversation is for scripted/model.").await;
    assert_eq!(chosen(&house, "ann").await, None);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_ends_the_commands_of_others() {
    let gate = Gate::new(HookEvent::Create, vec![Wait::ForEver, Wait::ForEver]);
    let house = house(&gate).await;
    house.paper.say("ann", "/model scripted/other");
    house.paper.say("bob", "/models scripted");
    gate.holds(2).await;
    house.paper.say("root", "/stop");
    answer(&house.paper, "Nothing of yours is running here.").await;
    gate.holds(2).await;
    house.paper.say("root", "/stop all");
    answer(&house.paper, "Stopping 2 commands.").await;
    let both = |page: &Page| page.texts().iter().filter(|text| **text == UNCHANGED).count() == 2;
    house.paper.wait_for("both answers", both).await;
    gate.holds(0).await;
    house.close().await;
}

/// The session is changed by then, and the hook is only told of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_has_taken_effect_says_so_after_a_stop() {
    let gate = Gate::new(HookEvent::Activate, Vec::new());
    let house = house(&gate).await;
    house.model.script(Behaviour::text("Hello."));
    house.paper.say("ann", "hello");
    answer(&house.paper, "Hello.").await;
    gate.coming.lock().unwrap().push(Wait::ForEver);
    house.paper.say("ann", "/model scripted/other");
    gate.holds(1).await;
    house.paper.say("ann", "/stop");
    answer(&house.paper, "⏹ It was over before the stop. This conversation is for scripted/other from now on.").await;
    house.model.script(Behaviour::text("Here."));
    house.paper.say("ann", "still there?");
    answer(&house.paper, "Here.").await;
    assert_eq!(house.model.request(1).arrived().await.body["model"], "other");
    house.close().await;
}

/// It waits for the end of what it has stopped, which may take its time.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_keeps_the_history_that_a_command_was_about_to_empty() {
    let gate = Gate::new(HookEvent::Activate, Vec::new());
    let house = house(&gate).await;
    house.model.script(Behaviour::text("Noted."));
    house.paper.say("ann", "my number is 4711");
    answer(&house.paper, "Noted.").await;
    let (open, opened) = mpsc::channel();
    gate.coming.lock().unwrap().push(Wait::Blocked(opened));
    house.paper.say("ann", "and now?");
    gate.holds(1).await;
    let run = house.engine.live(&house.engine.active_runs()[0].run_id).unwrap();
    house.paper.say("ann", "/new");
    run.reached(Progress::Ending).await;
    house.paper.say("ann", "/stop");
    answer(&house.paper, "Stopping your command.").await;
    answer(&house.paper, NOT_EMPTIED).await;
    open.send(()).unwrap();
    run.reached(Progress::Ended).await;
    // It holds the channel.
    drop(run);
    house.model.script(Behaviour::text("4711."));
    house.paper.say("ann", "what is my number?");
    answer(&house.paper, "4711.").await;
    let request = house.model.request(1).arrived().await;
    assert!(request.body.to_string().contains("my number is 4711"), "{:#}", request.body);
    house.close().await;
}

/// What cannot be dropped goes on, and nobody knows yet what comes of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_cannot_be_ended_says_that_nobody_knows_and_is_waited_for_no_longer() {
    let (open, opened) = mpsc::channel();
    let gate = Gate::new(HookEvent::Create, vec![Wait::Blocked(opened)]);
    let house = house(&gate).await;
    house.paper.say("ann", "/model scripted/other");
    gate.holds(1).await;
    house.paper.say("ann", "/stop");
    answer(&house.paper, "Stopping your command.").await;
    house.paper.say("ann", "/stop");
    answer(&house.paper, "Still stopping.").await;
    let said = "⚠️ Stopped, but something that the command had begun has not ended: it may still take effect.";
    answer(&house.paper, said).await;
    house.paper.say("ann", "/model");
    answer(&house.paper, "This conversation is for scripted/model.").await;
    open.send(()).unwrap();
    gate.holds(0).await;
    house.close().await;
}

/// It was dropped without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_waits_at_the_shutdown_says_that_it_was_not_done() {
    let gate = Gate::new(HookEvent::Create, vec![Wait::ForEver]);
    let first = house(&gate).await;
    first.paper.say("ann", "/model scripted/other");
    gate.holds(1).await;
    let paper = Arc::clone(&first.paper);
    let dir = first.close().await;
    assert_eq!(
        paper.page().texts(),
        ["⚠️ Quell is shutting down, so this is not answered. Ask again when it is back."]
    );
    let house = House::on((dir, Paper::after(paper.page())), "", |_| {}).await;
    assert_eq!(chosen(&house, "ann").await, None);
    house.close().await;
}
