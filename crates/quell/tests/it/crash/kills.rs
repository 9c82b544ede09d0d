//! SIGKILL at random moments, with tools at work, again and again on the same data.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_testkit::commands::{self, Marker};
use quell_testkit::daemon::{Daemon, Home};
use quell_testkit::model::{Behaviour, Stream};
use quell_testkit::{ScriptedModel, mcp};
use serde_json::{Value, json};

use super::certain;
use crate::cli::exe;
use crate::doors::escape;

/// Daemons beside each other, and the lives of each.
const HOUSES: u64 = 4;
const LIVES: u64 = 25;
/// Runs at work in each life, one in each session.
const SESSIONS: u64 = 4;
/// Within this time after its start a daemon dies.
const LONGEST_LIFE_MS: u64 = 150;
/// How long anything may outlive its daemon.
const GONE: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_deaths_leave_no_process_and_every_session_usable() {
    let (model, scripts) = (Arc::new(ScriptedModel::start().await), Scripts::default());
    let said = Arc::clone(&scripts);
    model.by_prompt(move |_, request| {
        let scripted = request.markers.last().and_then(|marker| said.lock().unwrap().remove(marker));
        scripted.unwrap_or_else(|| Behaviour::text("That is done."))
    });
    let houses = (0..HOUSES).map(|house| tokio::spawn(live_and_die(Arc::clone(&model), Arc::clone(&scripts), house)));
    let mut longest = Duration::ZERO;
    for house in futures_util::future::join_all(houses).await {
        longest = longest.max(house.unwrap());
    }
    model.assert_histories_valid();
    show(longest);
}

/// Answers how long the last process lived after its daemon, at most.
async fn live_and_die(model: Arc<ScriptedModel>, scripts: Scripts, house: u64) -> Duration {
    let mut chance = Chance(house);
    let home = Home::new(&config(&model));
    let mut longest = Duration::ZERO;
    for _ in 0..LIVES {
        let daemon = home.start(exe()).await;
        all_is_over(&daemon).await;
        let mut marks = Vec::new();
        for session in 0..SESSIONS {
            let mark = Marker::new();
            let deed = DEEDS[usize::try_from(chance.below(DEEDS.len() as u64)).unwrap()](&mark);
            scripts.lock().unwrap().extend([
                (mark.as_str().to_owned(), deed),
                (format!("below-{}", mark.as_str()), shell(&commands::setsid_child(&mark))),
            ]);
            say(&daemon, session, &format!("go on marker:{}", mark.as_str())).await;
            marks.push(mark);
        }
        // The moment of the death is what this test is about; nothing is waited for.
        tokio::time::sleep(Duration::from_millis(chance.below(LONGEST_LIFE_MS))).await;
        daemon.kill9().await;
        for mark in marks {
            longest = longest.max(mark.gone(GONE).await);
        }
    }
    let daemon = home.start(exe()).await;
    all_is_over(&daemon).await;
    for session in 0..SESSIONS {
        let run = say(&daemon, session, "and now? marker:last").await;
        let log = daemon.http().events(&run, 0).await.to_end().await;
        assert_eq!(log.verdict(), "completed", "house {house}, session {session}");
    }
    assert!(daemon.stop().await.success(), "{}", daemon.output());
    longest
}

/// Nothing goes on in a new daemon, and every run of the old ones has its end and its receipt.
async fn all_is_over(daemon: &Daemon) {
    let active = daemon.http().get("/api/runs?state=active").await.expect_status(200);
    assert_eq!(active["items"], json!([]), "a run came back");
    let all = daemon.http().get("/api/runs?limit=100").await.expect_status(200);
    for run in all["items"].as_array().unwrap() {
        assert_eq!(run["state"], "ended", "{run:#}");
        assert_eq!(certain(&run["receipt"]["leftovers"]), [""; 0], "{run:#}");
    }
}

async fn say(daemon: &Daemon, session: u64, text: &str) -> String {
    let path = format!("/api/sessions/{}/runs", escape(&format!("session {session}")));
    let sent = daemon.http().post(&path, &json!({"text": text})).await.expect_status(202);
    sent["runId"].as_str().unwrap().to_owned()
}

/// What a run does when its daemon dies. The sub-agent's deed is what a run does whose prompt has the marker with `below-`.
const DEEDS: &[fn(&Marker) -> Behaviour] = &[
    |mark| shell(&commands::obedient(mark)),
    |mark| shell(&commands::ignores_signals(mark)),
    |mark| shell(&commands::setsid_child(mark)),
    |mark| shell(&commands::deaf_setsid_child(mark)),
    |mark| shell(&commands::double_fork(mark)),
    |mark| shell(&commands::respawns_on_term(mark)),
    |mark| {
        let start = json!({"command": commands::detached_server(mark), "background": true});
        let wait = json!({"action": "wait", "timeout_s": 600});
        Stream::new().tool_call("c1", "shell", &start).tool_call("c2", "process", &wait).into()
    },
    |mark| Behaviour::tool_call("c1", "test__fork", &json!({"text": mark.as_str()})),
    |mark| {
        let prompt = format!("help marker:below-{}", mark.as_str());
        Behaviour::tool_call("c1", "spawn_agent", &json!({"agent": "scout", "prompt": prompt}))
    },
    |_| Behaviour::silent_mid_stream("I think"),
    |_| Behaviour::tokens_forever(Duration::from_millis(1)),
];

fn shell(command: &str) -> Behaviour {
    Behaviour::tool_call("c1", "shell", &json!({"command": command}))
}

/// What the model says, by the last marker of the request.
type Scripts = Arc<Mutex<HashMap<String, Behaviour>>>;

fn config(model: &ScriptedModel) -> String {
    let script: Value = json!(mcp::SERVER);
    format!(
        "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\n\
         [mcp.test]\ncommand = \"sh\"\nargs = [\"-c\", {script}]\n\
         [agents.main]\nmodel = \"scripted/m\"\n[agents.scout]\nmodel = \"scripted/m\"\nparent = \"main\"\nmcp = []\n",
        model.base_url()
    )
}

/// Numbers that look like chance and are the same in every run of the test: Weyl's sequence, mixed (splitmix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

#[expect(clippy::print_stdout, reason = "the figure is what a person reads of it")]
fn show(longest: Duration) {
    println!("{} deaths: the last process was gone {} ms after its daemon", HOUSES * LIVES, longest.as_millis());
}
