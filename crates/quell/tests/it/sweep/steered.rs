//! A message that joins a run at work is covered by its stop from the step in which the run takes it.

use quell_engine::dispatch::Submission;
use quell_protocol::api::OnBusy;
use quell_testkit::{Behaviour, model};
use serde_json::json;

use super::cases::{Case, Moment, model_says, text_came};
use super::scene::Scene;
use crate::harness::message;

pub(super) fn case() -> Case {
    Case {
        seen: &["turn left at the corner"],
        ..Case::new(
            "a steered message was taken",
            |scene| {
                let call = model::Stream::new().wait_for(scene.run.as_str()).tool_call(
                    "c1",
                    "shell",
                    &json!({"command": "true"}),
                );
                model_says(scene, [call.into(), Behaviour::silent_mid_stream("I turn.")])
            },
            Moment::When(|scene| Box::pin(it_is_taken(scene))),
        )
    }
}

async fn it_is_taken(scene: &Scene<'_>) {
    let house = &scene.site.house;
    scene.request().await.resting().await;
    let steer = Submission { on_busy: OnBusy::Steer, ..message(&scene.session, "turn left at the corner") };
    house.answer(steer).await;
    house.model.open_gate(scene.run.as_str());
    text_came(scene).await;
}
