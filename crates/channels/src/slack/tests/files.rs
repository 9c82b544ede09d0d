//! Download and upload of attachments.

use quell_protocol::Attachment;

use super::*;
use crate::network::conformance::NetworkFixture;

#[tokio::test]
async fn a_file_goes_into_its_thread() {
    let fixture = SlackFixture::new().await;
    let parent = fixture.post("send it");
    let file = Attachment { name: Some("../weird \"näme\".txt".to_owned()), ..attachment_from("") };
    let files = fixture.network.features().files.unwrap();
    files.send(&thread_address(&fixture.channel, &parent), &file, b"hello".to_vec()).await.unwrap();
    let shown = fixture.messages()[1].clone();
    assert_eq!(shown.thread, Some(parent));
    assert_eq!((shown.files[0].name.as_str(), shown.files[0].bytes.as_slice()), ("weird \"näme\".txt", &b"hello"[..]));
}

#[tokio::test]
async fn only_the_last_step_can_have_shown_something() {
    let fixture = SlackFixture::new().await;
    let files = fixture.network.features().files.unwrap();
    let address = fixture.channel_address();
    for (method, fault) in [
        ("files.getUploadURLExternal", FakeSlackFault::LoseAnswer),
        ("files.getUploadURLExternal", FakeSlackFault::RateLimited(3)),
        ("upload", FakeSlackFault::LoseAnswer),
        ("upload", FakeSlackFault::HtmlPage(500)),
    ] {
        fixture.server.inject_fault(method, fault.clone());
        let sent = files.send(&address, &attachment_from(""), b"x".to_vec()).await;
        assert!(matches!(sent, Err(SendError::NotDelivered { .. })), "{method} {fault:?}: {sent:?}");
    }
    fixture.server.inject_fault("files.completeUploadExternal", FakeSlackFault::LoseAnswer);
    let sent = files.send(&address, &attachment_from(""), b"x".to_vec()).await;
    assert!(matches!(sent, Err(SendError::Unknown { is_repeatable: false, .. })), "{sent:?}");
    assert_eq!(fixture.messages().len(), 1);
}

#[tokio::test]
async fn a_file_without_the_scope_for_it_says_so() {
    let fixture = SlackFixture::new().await;
    fixture.write_file(b"text", &*fixture.sink).await;
    let id = fixture.messages()[0].files[0].id.clone();
    let base = fixture.server.base_url().replace("/api", "");
    let file = attachment_from(&format!("{base}/files-pri/{id}/a.txt"));
    let files = fixture.network.features().files.unwrap();
    assert_eq!(files.fetch(&file, 4).await, Ok(b"text".to_vec()));
    let NetworkError(problem) = files.fetch(&file, 3).await.unwrap_err();
    assert!(problem.contains("larger than 3 bytes"), "{problem}");
    fixture.server.update(|state| state.scopes = "chat:write".to_owned());
    let NetworkError(problem) = files.fetch(&file, 4).await.unwrap_err();
    assert!(problem.contains("add the scope files:read"), "{problem}");
}

/// The token goes with the request, so it must not be sent to a server that a message names.
#[tokio::test]
async fn nothing_is_fetched_from_elsewhere() {
    let fixture = SlackFixture::new().await;
    let other = FakeSlack::start().await;
    let sources = [
        other.base_url(),
        "https://example.org/x".to_owned(),
        "http://files.slack.com/x".to_owned(),
        "https://files.slack.com:8443/x".to_owned(),
        "https://slack.com.example.org/x".to_owned(),
        "https://notslack.com/x".to_owned(),
        "file:///etc/passwd".to_owned(),
        "no URL".to_owned(),
    ];
    for source in sources {
        let NetworkError(problem) =
            fixture.network.features().files.unwrap().fetch(&attachment_from(&source), 10).await.unwrap_err();
        assert_eq!(problem, "the file is not on Slack's servers, so it is not fetched", "{source}");
    }
    assert!(other.state().client_errors.is_empty(), "somebody has asked the other server");
}
