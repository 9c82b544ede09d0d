//! Voice messages: what was said reaches the model, answers are spoken by the channel's rule, and a stop closes both.

use bytes::Bytes;
use quell_llm::{ProviderConfig, ProviderKind};
use quell_protocol::{Attachment, AttachmentKind};
use quell_testkit::audio::{AudioRequest, FakeAudioServer, ScriptedAudio};
use quell_testkit::model::ScriptedResponse;

use super::FlowFixture;
use crate::network::InboundMessage;
use crate::network::test_support::attachment_from;

const RULE: &str =
    "voice = { transcription_model = \"ears/whisper\", speech_model = \"ears/tts\", speaker = \"coral\" }";

struct VoiceFixture {
    flow: FlowFixture,
    audio: FakeAudioServer,
}

impl VoiceFixture {
    async fn start(rule: &str) -> Self {
        let audio = FakeAudioServer::start().await;
        let provider = ProviderConfig {
            base_url: Some(audio.base_url()),
            max_retries: 0,
            ..ProviderConfig::new(ProviderKind::OPENAI)
        };
        let flow = FlowFixture::start_with(rule, |config| {
            config.providers.insert("ears".to_owned(), provider);
        })
        .await;
        Self { flow, audio }
    }

    /// A person speaks. The sound is its own source here.
    fn receive_voice(&self, sound: &str) -> String {
        let inbound = self.flow.network.inbound_message("room", "ann", "");
        let (name, media_type) = (Some("voice.oga".to_owned()), Some("audio/ogg".to_owned()));
        let sound = Attachment { kind: AttachmentKind::Audio, name, media_type, ..attachment_from(sound) };
        let inbound = InboundMessage { attachments: vec![sound], ..inbound };
        let id = inbound.message_id.0.clone();
        self.flow.network.receive_message(inbound);
        id
    }

    async fn wait_done(&self, message: &str, reaction: &str) {
        self.flow.network.wait_for("the end", |state| state.reactions_on(message) == [reaction]).await;
    }

    /// The newest message that the model was shown.
    async fn shown_to_model(&self) -> String {
        self.flow.model.request_at(0).wait_arrived().await.last_user_text.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voice_message_is_read_by_the_model_and_answered_by_voice() {
    let fixture = VoiceFixture::start(RULE).await;
    fixture.audio.script(ScriptedAudio::Transcript(" Boil an egg. ".to_owned()));
    fixture.audio.script(ScriptedAudio::Speech(Bytes::from_static(b"sung")));
    fixture.flow.model.script(ScriptedResponse::text("It *boils*."));
    let message = fixture.receive_voice("hum");
    fixture.wait_done(&message, "✅").await;
    assert!(fixture.shown_to_model().await.contains("Boil an egg."));
    let texts = fixture.flow.network.state().texts().join("|");
    assert!(texts.contains("It boils.") && texts.ends_with("file the spoken answer: sung"), "{texts}");
    let requests = fixture.audio.state.state().requests;
    let heard = AudioRequest {
        path: "/v1/audio/transcriptions".to_owned(),
        model: "whisper".to_owned(),
        file_name: "voice.oga".to_owned(),
        media_type: "audio/ogg".to_owned(),
        bytes: Bytes::from_static(b"hum"),
        ..AudioRequest::default()
    };
    let spoken = AudioRequest {
        path: "/v1/audio/speech".to_owned(),
        model: "tts".to_owned(),
        voice: "coral".to_owned(),
        input: "It boils.".to_owned(),
        ..AudioRequest::default()
    };
    assert_eq!(requests, [heard, spoken]);
    fixture.flow.shut_down().await;
}

#[rstest::rstest]
#[case::typed(RULE, 0)]
#[case::always(&RULE.replace(" }", ", spoken_answers = \"always\" }"), 1)]
#[tokio::test(flavor = "multi_thread")]
async fn typed_messages_are_answered_by_voice_only_on_request(#[case] rule: &str, #[case] spoken: usize) {
    let fixture = VoiceFixture::start(rule).await;
    fixture.audio.script(ScriptedAudio::Speech(Bytes::from_static(b"sung")));
    fixture.flow.model.script(ScriptedResponse::text("Good morning."));
    let message = fixture.flow.network.receive_text("ann", "hello");
    fixture.wait_done(&message, "✅").await;
    assert_eq!(fixture.audio.state.state().requests.len(), spoken);
    fixture.flow.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_ears_or_voice_the_conversation_goes_on_in_text() {
    let fixture = VoiceFixture::start(RULE).await;
    let refusal = "{\"error\": {\"message\": \"no credit left\", \"code\": \"insufficient_quota\"}}".to_owned();
    fixture.audio.script(ScriptedAudio::Refusal(429, refusal));
    fixture.audio.script(ScriptedAudio::Speech(Bytes::new()));
    fixture.flow.model.script(ScriptedResponse::text("What did you say?"));
    let message = fixture.receive_voice("hum");
    fixture.wait_done(&message, "✅").await;
    let shown = fixture.shown_to_model().await;
    assert!(shown.contains("[the audio could not be transcribed:") && shown.contains("no credit left"), "{shown}");
    let texts = fixture.flow.network.state().texts().join("|");
    assert!(texts.ends_with("What did you say?"), "{texts}");
    fixture.flow.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voice_that_does_not_come_ends_by_its_own_time_limit() {
    let fixture = VoiceFixture::start(&RULE.replace(" }", ", speech_timeout_s = 1 }")).await;
    fixture.audio.script(ScriptedAudio::Transcript("Sing.".to_owned()));
    fixture.audio.script(ScriptedAudio::Silence);
    fixture.flow.model.script(ScriptedResponse::text("La la."));
    let message = fixture.receive_voice("hum");
    fixture.flow.network.wait_for_text("La la.").await;
    fixture.wait_done(&message, "✅").await;
    fixture.audio.state.wait_for("the end of the connection", |state| state.waiting == 0).await;
    let texts = fixture.flow.network.state().texts().join("|");
    assert!(!texts.contains("the spoken answer"), "{texts}");
    fixture.flow.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_with_files_do_not_wait_for_transcriptions() {
    let fixture = VoiceFixture::start(RULE).await;
    for number in 0..8 {
        fixture.audio.script(ScriptedAudio::Silence);
        let sound = Attachment { kind: AttachmentKind::Audio, ..attachment_from("hum") };
        let inbound = fixture.flow.network.inbound_message(&format!("room{number}"), "ann", "");
        fixture.flow.network.receive_message(InboundMessage { attachments: vec![sound], ..inbound });
    }
    fixture.audio.state.wait_for("the requests", |state| state.waiting == 8).await;
    fixture.flow.model.script(ScriptedResponse::text("I have it."));
    let inbound = fixture.flow.network.inbound_message("another room", "bob", "keep this");
    let attachments = vec![attachment_from("a letter")];
    fixture.flow.network.receive_message(InboundMessage { attachments, ..inbound });
    fixture.flow.network.wait_for_text("I have it.").await;
    fixture.flow.shut_down().await;
}

/// A stop finds the run in the transcription, or after its answer was written and before it is spoken.
#[rstest::rstest]
#[case::hearing(None)]
#[case::speaking(Some("Sing."))]
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_closes_the_request_for_a_voice(#[case] heard: Option<&str>) {
    let fixture = VoiceFixture::start(RULE).await;
    if let Some(heard) = heard {
        fixture.audio.script(ScriptedAudio::Transcript(heard.to_owned()));
    }
    fixture.audio.script(ScriptedAudio::Silence);
    fixture.flow.model.script(ScriptedResponse::text("La la."));
    let message = fixture.receive_voice("hum");
    fixture.audio.state.wait_for("the request", |state| state.waiting == 1).await;
    fixture.flow.network.receive_text("ann", "/stop");
    fixture.audio.state.wait_for("the end of the connection", |state| state.waiting == 0).await;
    fixture.wait_done(&message, "⏹").await;
    // The receipt may come after the mark.
    let network = &fixture.flow.network;
    let state = network.wait_for("the receipt", |state| state.texts().join("|").contains("model closed after")).await;
    let texts = state.texts().join("|");
    assert!(!texts.contains("the spoken answer"), "{texts}");
    fixture.flow.shut_down().await;
}
