//! Files in both directions.

use quell_protocol::{Attachment, AttachmentKind};

use super::*;

fn attachment(source: &str) -> Attachment {
    Attachment { kind: AttachmentKind::File, source: source.to_owned(), name: None, media_type: None, bytes: None }
}

#[tokio::test]
async fn a_file_goes_into_its_thread() {
    let stage = Stage::new().await;
    let (channel, ann) = (stage.server.channel(), stage.server.person("ann"));
    let parent = stage.server.say(&channel, &ann, "send it");
    let file = Attachment { name: Some("../weird \"näme\".txt".to_owned()), ..attachment("") };
    let files = stage.slack.files().unwrap();
    files.send(&thread(&channel, &parent), &file, b"hello".to_vec()).await.unwrap();
    let shown = stage.server.messages(&channel)[1].clone();
    assert_eq!(shown.thread, Some(parent));
    assert_eq!((shown.files[0].name.as_str(), shown.files[0].bytes.as_slice()), ("weird \"näme\".txt", &b"hello"[..]));
}

#[tokio::test]
async fn only_the_last_step_can_have_shown_something() {
    let stage = Stage::new().await;
    let channel = stage.server.channel();
    let files = stage.slack.files().unwrap();
    let at = place(&channel);
    for (method, fault) in [
        ("files.getUploadURLExternal", Fault::LoseAnswer),
        ("files.getUploadURLExternal", Fault::TooMany(3)),
        ("upload", Fault::LoseAnswer),
        ("upload", Fault::Page(500)),
    ] {
        stage.server.fault(method, fault.clone());
        let sent = files.send(&at, &attachment(""), b"x".to_vec()).await;
        assert!(matches!(sent, Err(NotSent::Undelivered { .. })), "{method} {fault:?}: {sent:?}");
    }
    stage.server.fault("files.completeUploadExternal", Fault::LoseAnswer);
    let sent = files.send(&at, &attachment(""), b"x".to_vec()).await;
    assert!(matches!(sent, Err(NotSent::Unknown { repeatable: false, .. })), "{sent:?}");
    assert_eq!(stage.server.messages(&channel).len(), 1);
}

#[tokio::test]
async fn a_file_without_the_scope_for_it_says_so() {
    let stage = Stage::new().await;
    let (channel, ann) = (stage.server.channel(), stage.server.person("ann"));
    stage.server.say_with_file(&channel, &ann, "", ("a.txt", "text/plain", b"text"));
    let id = stage.server.messages(&channel)[0].files[0].id.clone();
    let base = stage.server.base_url().replace("/api", "");
    let file = attachment(&format!("{base}/files-pri/{id}/a.txt"));
    let files = stage.slack.files().unwrap();
    assert_eq!(files.fetch(&file, 4).await, Ok(b"text".to_vec()));
    let Trouble(trouble) = files.fetch(&file, 3).await.unwrap_err();
    assert!(trouble.contains("larger than 3 bytes"), "{trouble}");
    stage.server.grant("chat:write");
    let Trouble(trouble) = files.fetch(&file, 4).await.unwrap_err();
    assert!(trouble.contains("add the scope files:read"), "{trouble}");
}

/// The token goes with the request: it must not be sent wherever a message says.
#[tokio::test]
async fn nothing_is_fetched_from_elsewhere() {
    let stage = Stage::new().await;
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
        let Trouble(trouble) = stage.slack.files().unwrap().fetch(&attachment(&source), 10).await.unwrap_err();
        assert_eq!(trouble, "the file is not on Slack's servers, so it is not fetched", "{source}");
    }
    assert!(other.state().complaints.is_empty(), "somebody has asked the other server");
}
