//! Download and upload of attachments.

use quell_protocol::Attachment;
use rstest::rstest;

use super::*;

#[tokio::test]
async fn a_file_that_came_with_a_message_is_fetched_without_the_token() {
    let fixture = DiscordFixture::new().await;
    let (anna, channel) = (fixture.server.add_person("anna"), fixture.server.add_channel());
    fixture.listen().await;
    fixture.server.post_message_with_file(&channel, &anna, "look", ("a.png", "image/png", b"picture"));
    fixture.wait_for_texts(1).await;
    let attachment = fixture.sink.state().messages[0].attachments[0].clone();
    let files = fixture.network.files().unwrap();
    assert_eq!(files.fetch(&attachment, 7).await.unwrap(), b"picture");
    let NetworkError(why) = files.fetch(&attachment, 6).await.unwrap_err();
    assert!(why.contains("larger than 6 bytes"), "{why}");
    fixture.server.delete_message(&channel, &fixture.sink.state().messages[0].id);
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
    let fixture = DiscordFixture::new().await;
    let NetworkError(why) = fixture.network.files().unwrap().fetch(&attachment_from(source), 100).await.unwrap_err();
    assert!(why.contains("not on Discord's servers"), "{why}");
}

#[tokio::test]
async fn a_file_is_sent_as_it_is() {
    let fixture = DiscordFixture::new().await;
    let channel = fixture.server.add_channel();
    let bytes: Vec<u8> = (0..=255).chain(*b"\r\n--\r\n").collect();
    let sent = Attachment {
        name: Some("../odd \"name\".bin".to_owned()),
        media_type: Some("image/png\r\nx: y".to_owned()),
        ..attachment_from("")
    };
    let id = fixture.network.files().unwrap().send(&chat_address(&channel), &sent, bytes.clone()).await.unwrap();
    let shown = &fixture.server.messages(&channel)[0];
    assert_eq!((&shown.id, shown.files.len()), (&id.0, 1));
    let file = &shown.files[0];
    assert_eq!((file.name.as_str(), &file.bytes), ("odd \"name\".bin", &bytes));
    assert_eq!(file.media_type, "application/octet-stream", "what is no media type is left out");
}

#[tokio::test]
async fn a_file_whose_answer_is_lost_is_not_sent_again() {
    let fixture = DiscordFixture::new().await;
    let channel = fixture.server.add_channel();
    fixture.server.inject_fault(DiscordRoute::Send, FakeDiscordFault::LoseAnswer);
    let lost = fixture
        .network
        .files()
        .unwrap()
        .send(&chat_address(&channel), &attachment_from(""), vec![1])
        .await
        .unwrap_err();
    assert!(matches!(lost, SendError::Unknown { is_repeatable: false, .. }), "{lost:?}");
    assert_eq!(fixture.server.messages(&channel)[0].files[0].name, "file");
}
