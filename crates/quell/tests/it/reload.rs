//! A configuration file that changes while the daemon works (row D5): runs end on what they began with, what comes later has the
//! new providers, and a file that is wrong changes nothing and is named with its line.

use std::fs;

use quell_engine::dispatch::{ReloadError, Reloaded, Submission};
use quell_protocol::Verdict;
use quell_testkit::ScriptedModel;
use quell_testkit::daemon::{Daemon, Home};
use quell_testkit::model::{Behaviour, Stream};
use serde_json::json;
use tokio::time::Instant;

use crate::cli::{exe, run};
use crate::harness::{Claim, House, PATIENCE, agent, config as engine_config, message};

/// Two model servers, and a daemon that was started with the first one.
struct World {
    daemon: Daemon,
    old: ScriptedModel,
    new: ScriptedModel,
    _claim: Claim,
}

fn config(model: &ScriptedModel) -> String {
    let url = model.base_url();
    format!(
        "[providers.p]\nkind = \"openai\"\nbase_url = \"{url}\"\nmax_retries = 0\n[agents.main]\nmodel = \"p/m\"\ntools = []\n"
    )
}

impl World {
    async fn open() -> Self {
        let claim = Claim::shared().await;
        let (old, new) = (ScriptedModel::start().await, ScriptedModel::start().await);
        old.by_prompt(|_, _| Behaviour::text("from the old one"));
        new.by_prompt(|_, _| Behaviour::text("from the new one"));
        let daemon = Daemon::start(exe(), &config(&old)).await;
        Self { daemon, old, new, _claim: claim }
    }

    fn home(&self) -> &Home {
        self.daemon.home()
    }

    /// The file holds this from now on, written in place.
    fn write(&self, text: &str) {
        fs::write(self.home().config(), text).unwrap();
    }

    async fn send(&self, session: &str) -> String {
        let sent = self.daemon.http().post(&format!("/api/sessions/{session}/runs"), &json!({"text": "hello"})).await;
        sent.expect_status(202)["runId"].as_str().unwrap().to_owned()
    }

    /// What a run answers.
    async fn answer_of(&self, id: &str) -> String {
        let log = self.daemon.http().events(id, 0).await.to_end().await;
        assert_eq!(log.verdict(), "completed", "{}", self.daemon.output());
        let view = self.daemon.http().get(&format!("/api/runs/{id}")).await.expect_status(200);
        view["output"].as_str().unwrap().to_owned()
    }

    async fn ask(&self, session: &str) -> String {
        self.answer_of(&self.send(session).await).await
    }

    /// Waits until the log or the metrics say so; they are asked again over the wire, since neither has an event.
    async fn until(&self, line: &str) {
        let begun = Instant::now();
        while !self.daemon.output().contains(line) && !self.metrics().await.lines().any(|shown| shown == line) {
            assert!(begun.elapsed() < PATIENCE, "no {line:?}\n{}", self.daemon.output());
        }
    }

    async fn metrics(&self) -> String {
        self.daemon.http().get("/metrics").await.expect_status(200).as_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_run_ends_on_the_old_provider_and_the_next_one_has_the_new_one() {
    let world = World::open().await;
    let own = json!({"userId": "u", "chatId": "c", "provider": "p", "apiKey": "sk-own", "maxTokens": 9});
    let made = world.daemon.http().post("/api/sessions", &own).await.expect_status(201);
    let own_session = made["key"].as_str().unwrap().to_owned();
    assert_eq!(world.ask(&own_session).await, "from the old one");
    world.old.script(Stream::new().text("begun and ").wait_for("end").text("ended on the old one"));
    let running = world.send("busy").await;
    world.old.requests(2).await;
    let changed = config(&world.new) + "[agents.scout]\nmodel = \"p/m\"\n[limits]\nmax_steps = 7\n";
    world.write(&changed);
    world.until("configuration reloaded").await;
    world.until("needs a restart: limits").await;
    assert_eq!(world.ask("other").await, "from the new one");
    // Its key was given for the old address, and goes to no other by a reload alone.
    let kept_back = world.send(&own_session).await;
    assert_eq!(world.daemon.http().events(&kept_back, 0).await.to_end().await.verdict(), "failed");
    let scout = world.daemon.http().get("/api/agents/scout").await.expect_status(200);
    assert_eq!(scout["id"], "scout");
    world.old.open_gate("end");
    assert_eq!(world.answer_of(&running).await, "begun and ended on the old one");
    assert_eq!(world.ask("busy").await, "from the new one");
    assert_eq!((world.old.request_count(), world.new.request_count()), (2, 2));
    assert!(world.daemon.stop().await.success(), "{}", world.daemon.output());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_file_keeps_the_old_configuration_and_is_named_and_a_mended_one_is_taken() {
    let world = World::open().await;
    world.until("quell_config_stale 0").await;
    world.write(&config(&world.new).replace("base_url", "base_ur"));
    world.until("quell_config_stale 1").await;
    let output = world.daemon.output();
    let place = format!("{}:3:1: ", world.home().config().display());
    assert!(output.contains(&place) && output.contains("did you mean `base_url`?"), "{output}");
    assert_eq!(world.ask("s").await, "from the old one");
    world.write(&config(&world.new));
    world.until("quell_config_stale 0").await;
    assert_eq!(world.ask("s").await, "from the new one");
    world.write(&config(&world.old).replace("p/m", "demo/demo"));
    world.until("quell_config_stale 1").await;
    assert_eq!(world.ask("s").await, "from the new one");
    let looked = run(world.home().command(exe()).args(["doctor", "--config"]).arg(world.home().config()));
    assert!(looked.out.contains("does not take its configuration file"), "{looked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_vanishes_from_the_file_answers_what_it_has_and_goes_then() {
    let with_scout = |engine: &mut quell_engine::EngineConfig| {
        let main = engine.agents[&agent("main")].clone();
        engine.agents.insert(agent("scout"), main);
    };
    let house = House::with(Claim::shared().await, with_scout).await;
    let without = house.engine.config().agents.iter().filter(|(id, _)| **id == agent("main"));
    let without = without.map(|(id, config)| (id.clone(), config.clone())).collect();
    let providers = &house.engine.config().providers;
    house.model.script(Stream::new().text("begun ").wait_for("end").text("and ended"));
    let busy = house.send(Submission { agent: Some(agent("scout")), ..message("s", "hello") }).await;
    house.model.requests(1).await;
    let leaving = Reloaded { leaving: vec![agent("scout")], ..Reloaded::default() };
    assert_eq!(house.engine.reload(providers, &without).unwrap(), leaving);
    assert!(house.engine.agent(&agent("scout")).is_some());
    house.model.open_gate("end");
    let ended = house.ended(&busy).await;
    assert_eq!((ended.verdict, ended.output.as_deref()), (Some(Verdict::Completed), Some("begun and ended")));
    assert_eq!(house.engine.reload(providers, &without).unwrap(), Reloaded::default());
    assert!(house.engine.agent(&agent("scout")).is_none());
    let added = Reloaded { added: vec![agent("scout")], ..Reloaded::default() };
    assert_eq!(house.engine.reload(providers, &house.engine.config().agents).unwrap(), added);
    house.model.script(Behaviour::text("here again"));
    let again = house.send(Submission { agent: Some(agent("scout")), ..message("s", "hello") }).await;
    assert_eq!(house.ended(&again).await.output.as_deref(), Some("here again"));
    house.engine.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn providers_that_cannot_be_used_change_nothing() {
    let house = House::shared().await;
    let engine = engine_config(house.dir.path(), "nowhere", Default::default());
    let refused = house.engine.reload(&engine.providers, &engine.agents);
    assert!(matches!(refused, Err(ReloadError::Provider(_))), "{refused:?}");
    house.model.script(Behaviour::text("as before"));
    let run = house.send(message("s", "hello")).await;
    assert_eq!(house.ended(&run).await.output.as_deref(), Some("as before"));
    house.engine.shut_down().await;
}
