//! Files, in and out.

use quell_protocol::{Attachment, AttachmentKind};
use rstest::rstest;

use super::*;

fn attachment(source: &str) -> Attachment {
    Attachment { kind: AttachmentKind::File, source: source.to_owned(), name: None, media_type: None, bytes: None }
}

#[tokio::test]
async fn a_file_that_came_with_a_message_is_fetched_without_the_token() {
    let stage = Stage::new().await;
    let (anna, channel) = (stage.server.person("anna"), stage.server.channel());
    let plot = async {
        stage.connected(1).await;
        stage.server.say_with_file(&channel, &anna, "look", ("a.png", "image/png", b"picture"));
        stage.heard(1).await
    };
    stage.play(plot).await;
    let attachment = stage.ear.state().heard[0].attachments[0].clone();
    let files = stage.discord.files().unwrap();
    assert_eq!(files.fetch(&attachment, 7).await.unwrap(), b"picture");
    let Trouble(why) = files.fetch(&attachment, 6).await.unwrap_err();
    assert!(why.contains("larger than 6 bytes"), "{why}");
    stage.server.delete(&channel, &stage.ear.state().heard[0].id);
    assert!(files.fetch(&attachment, 7).await.is_err(), "it is not there any more");
}

#[rstest]
#[case::this_machine("http://127.0.0.1:9/x")]
#[case::the_cloud("http://169.254.169.254/latest/meta-data")]
#[case::without_encryption("http://cdn.discordapp.com/attachments/1/2/x")]
#[case::another_port("https://cdn.discordapp.com:8443/attachments/1/2/x")]
#[case::another_host("https://cdn.discordapp.com.evil.example/x")]
#[case::a_user("https://cdn.discordapp.com@evil.example/x")]
#[case::a_file("file:///etc/passwd")]
#[case::no_url("x")]
#[tokio::test]
async fn a_file_elsewhere_is_not_fetched(#[case] source: &str) {
    let stage = Stage::new().await;
    let Trouble(why) = stage.discord.files().unwrap().fetch(&attachment(source), 100).await.unwrap_err();
    assert!(why.contains("not on Discord's servers"), "{why}");
}

#[tokio::test]
async fn a_file_is_sent_as_it_is() {
    let stage = Stage::new().await;
    let channel = stage.server.channel();
    let bytes: Vec<u8> = (0..=255).chain(*b"\r\n--\r\n").collect();
    let sent = Attachment {
        name: Some("../odd \"name\".bin".to_owned()),
        media_type: Some("image/png\r\nx: y".to_owned()),
        ..attachment("")
    };
    let id = stage.discord.files().unwrap().send(&place(&channel), &sent, bytes.clone()).await.unwrap();
    let shown = &stage.server.messages(&channel)[0];
    assert_eq!((&shown.id, shown.files.len()), (&id.0, 1));
    let file = &shown.files[0];
    assert_eq!((file.name.as_str(), &file.bytes), ("odd \"name\".bin", &bytes));
    assert_eq!(file.media_type, "application/octet-stream", "what is no media type is left out");
}

#[tokio::test]
async fn a_file_whose_answer_is_lost_is_not_sent_again() {
    let stage = Stage::new().await;
    let channel = stage.server.channel();
    stage.server.fault(Route::Send, Fault::LoseAnswer);
    let lost = stage.discord.files().unwrap().send(&place(&channel), &attachment(""), vec![1]).await.unwrap_err();
    assert!(matches!(lost, NotSent::Unknown { repeatable: false, .. }), "{lost:?}");
    assert_eq!(stage.server.messages(&channel)[0].files[0].name, "file");
}
