//! Download and upload of attachments.

use quell_protocol::Attachment;
use rstest::rstest;

use super::*;
use crate::network::conformance::NetworkFixture;

#[tokio::test]
async fn a_file_of_a_deleted_message_is_not_fetched() {
    let fixture = DiscordFixture::listening().await;
    fixture.write_file(b"picture", &*fixture.sink).await;
    fixture.wait_for_texts(1).await;
    let inbound = fixture.sink.state().messages.remove(0);
    fixture.server.delete_message(&fixture.channel, &inbound.id);
    let NetworkError(why) =
        fixture.network.features().files.unwrap().fetch(&inbound.attachments[0], 1000).await.unwrap_err();
    assert!(why.contains("HTTP 404"), "{why}");
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
    let fixture = DiscordFixture::new().await;
    let NetworkError(why) =
        fixture.network.features().files.unwrap().fetch(&attachment_from(source), 100).await.unwrap_err();
    assert!(why.contains("not on Discord's servers"), "{why}");
}

#[tokio::test]
async fn a_file_is_sent_as_it_is() {
    let fixture = DiscordFixture::new().await;
    let bytes: Vec<u8> = (0..=255).chain(*b"\r\n--\r\n").collect();
    let sent = Attachment {
        name: Some("../odd \"name\".bin".to_owned()),
        media_type: Some("image/png\r\nx: y".to_owned()),
        ..attachment_from("")
    };
    let id =
        fixture.network.features().files.unwrap().send(&fixture.channel_address(), &sent, bytes.clone()).await.unwrap();
    let shown = &fixture.messages()[0];
    assert_eq!((&shown.id, shown.files.len()), (&id.0, 1));
    let file = &shown.files[0];
    assert_eq!((file.name.as_str(), &file.bytes), ("odd \"name\".bin", &bytes));
    assert_eq!(file.media_type, "application/octet-stream", "what is no media type is left out");
}

#[tokio::test]
async fn a_file_whose_answer_is_lost_is_not_sent_again() {
    let fixture = DiscordFixture::new().await;
    fixture.server.inject_fault(DiscordRoute::Send, FakeDiscordFault::LoseAnswer);
    let files = fixture.network.features().files.unwrap();
    let lost = files.send(&fixture.channel_address(), &attachment_from(""), vec![1]).await.unwrap_err();
    assert!(matches!(lost, SendError::Unknown { is_repeatable: false, .. }), "{lost:?}");
    assert_eq!(fixture.messages()[0].files[0].name, "file");
}
