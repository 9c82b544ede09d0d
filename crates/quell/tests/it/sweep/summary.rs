//! A run that is stopped while what came before it is made ready for the model: older turns are summarised, pictures are read.

use quell_engine::dispatch::Submission;
use quell_testkit::{Behaviour, model};

use super::scene::Scene;
use crate::harness::{agent, message_as, run_id};

/// A turn that fills the small agent's window, before the run that is stopped.
pub(super) async fn a_long_story(scene: &Scene<'_>, then: Behaviour) {
    let before = format!("before-{}", scene.run);
    scene.site.script(&before, [Behaviour::text(format!("It was a long story. {}", "And on it went. ".repeat(200)))]);
    let message = Submission { agent: Some(agent("main")), ..message_as(&run_id(&before), &scene.session, "") };
    let message = Submission { text: format!("tell me a story marker:{before}"), ..message };
    scene.site.house.send(message).await;
    scene.site.house.ended(&run_id(&before)).await;
    // The summary's own request has the marker of what it summarises.
    scene.site.script(&before, [then]);
}

/// A turn with a picture, before the run that is stopped: every later request shows it.
pub(super) async fn a_picture_before(scene: &Scene<'_>) {
    let before = format!("before-{}", scene.run);
    scene.site.script(&before, [Behaviour::text("A dot.")]);
    let picture = scene.site.workdir().join("dot.png");
    let text = format!("keep this [IMAGE:{}] marker:{before}", picture.display());
    let message = message_as(&run_id(&before), &scene.session, &text);
    scene.site.house.send(Submission { agent: Some(agent("seeing")), ..message }).await;
    scene.site.house.ended(&run_id(&before)).await;
}

/// Nothing of it streams to people.
pub(super) async fn it_is_summarised(scene: &Scene<'_>) {
    the_summary(scene).await.resting().await;
}

pub(super) async fn the_summary_is_left(scene: &Scene<'_>) {
    the_summary(scene).await.client_left().await;
}

/// The second request that shows the old story, and nothing newer.
async fn the_summary(scene: &Scene<'_>) -> model::ModelRequest {
    let (house, before) = (&scene.site.house, format!("before-{}", scene.run));
    loop {
        let seen = house.model.seen();
        let of_it =
            |request: &&model::ModelRequest| request.markers == [before.clone()] && request.messages().len() > 2;
        match seen.iter().rev().find(of_it) {
            Some(request) => return request.clone(),
            None => drop(house.model.requests(seen.len() + 1).await),
        }
    }
}
