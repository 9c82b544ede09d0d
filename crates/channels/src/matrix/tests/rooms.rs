//! Rooms, threads, files and reactions on Synapse.

use quell_protocol::{Attachment, AttachmentKind};
use quell_testkit::networks::matrix::{MatrixTestUser, Synapse, is_skipped};
use serde_json::{Value, json};

use super::{html_piece, matrix_network};
use crate::matrix::MatrixNetwork;
use crate::network::test_support::{RecordingInboundSink, chat_address, thread_address, while_listening};
use crate::network::{Network as _, OwnAccount, SendError};

/// Not a real picture; nothing decodes it.
const NOT_A_PICTURE: &[u8] = b"only bytes";

/// The users of most rooms.
struct MatrixFixture {
    server: Synapse,
    alice: MatrixTestUser,
    /// The account of the channel.
    quell: MatrixTestUser,
}

impl MatrixFixture {
    async fn start() -> Self {
        let server = Synapse::start().await;
        let (alice, quell) = (server.register_user("alice").await, server.register_user("quell").await);
        quell.set_display_name("Quell Bot").await;
        Self { server, alice, quell }
    }

    fn network(&self, extra_keys: Value) -> MatrixNetwork {
        matrix_network(&self.server.base_url(), self.quell.token(), extra_keys)
    }

    /// Creates a room with alice and the account.
    async fn create_shared_room(&mut self) -> String {
        let room = self.alice.create_room(&[self.quell.id()]).await;
        let own = self.quell.id().to_owned();
        self.alice.wait_for("the account in the room", |view| view.room(&room).members.contains(&own)).await;
        room
    }
}

#[tokio::test]
#[ignore = "full: Synapse"]
async fn a_person_and_the_account_talk_in_a_room_and_its_threads() {
    if is_skipped() {
        return;
    }
    let mut fixture = MatrixFixture::start().await;
    let (matrix, sink) = (fixture.network(json!({"allow": [fixture.alice.id()]})), RecordingInboundSink::new());
    while_listening(&matrix, &sink, async {
        // Sent before the account has accepted the invitation, as people do.
        let room = fixture.alice.create_room(&[fixture.quell.id()]).await;
        let hello = fixture.alice.send_message(&room, "hello").await;
        let inbound = sink.wait_for_text("hello").await;
        assert_eq!((inbound.id.as_str(), inbound.message_id.0.as_str()), (hello.as_str(), hello.as_str()));
        assert_eq!((inbound.sender.as_str(), inbound.sender_name.as_deref()), (fixture.alice.id(), Some("alice")));
        assert_eq!((inbound.address, inbound.scope_id), (chat_address(&room), None));
        assert!(inbound.is_addressed && !inbound.is_group);
        let own = OwnAccount { id: fixture.quell.id().to_owned(), name: "Quell Bot".to_owned() };
        assert_eq!(sink.state().accounts, [own]);
        check_send_and_edit(&mut fixture, &matrix, &room).await;
        check_thread_replies(&mut fixture, &matrix, &sink, &hello, &room).await;
        check_ignored_events(&mut fixture, &sink, &hello, &room).await;
        check_file_transfer(&mut fixture, &matrix, &sink, &room).await;
    })
    .await;
    assert_eq!(matrix.probe().await, Ok("@quell:quell.test, in 1 room".to_owned()));
}

async fn check_send_and_edit(fixture: &mut MatrixFixture, matrix: &MatrixNetwork, room: &str) {
    let address = chat_address(room);
    let draft = html_piece("<p>one</p>", "one");
    let sent = matrix.send(&address, &draft, "key 1").await.unwrap();
    assert_eq!(matrix.send(&address, &draft, "key 1").await, Ok(sent.clone()), "the same key is the same message");
    let final_text = html_piece("<p><strong>one</strong> and <em>two</em></p>", "one and two");
    for text in [html_piece("<p>one and</p>", "one and"), draft, final_text.clone(), final_text] {
        matrix.features().drafts.unwrap().edit(&address, &sent, &text).await.unwrap();
    }
    let own = fixture.quell.id().to_owned();
    let edited =
        |view: &quell_testkit::networks::matrix::MatrixUserView| view.room(room).messages.iter().any(|m| m.edits == 4);
    let view = fixture.alice.wait_for("the last edit", edited).await;
    let shown: Vec<_> = view.room(room).messages.into_iter().filter(|message| message.sender == own).collect();
    assert_eq!(shown.len(), 1, "{shown:#?}");
    assert_eq!((shown[0].id.as_str(), shown[0].text()), (sent.0.as_str(), "one and two"));
    assert_eq!(shown[0].html(), "<p><strong>one</strong> and <em>two</em></p>");
    // The longest message, of characters whose escapes are the longest.
    let longest_text = "\"\n".repeat(matrix.limits().message_format.max_length / 2);
    let long = matrix.send(&address, &html_piece(&longest_text, &longest_text), "key 2").await.unwrap();
    assert_ne!(long, sent, "another key is another message");
    matrix.features().drafts.unwrap().edit(&address, &long, &html_piece(&longest_text, &longest_text)).await.unwrap();
}

async fn check_thread_replies(
    fixture: &mut MatrixFixture,
    matrix: &MatrixNetwork,
    sink: &RecordingInboundSink,
    root: &str,
    room: &str,
) {
    fixture.alice.send_message_in_thread(room, root, "in a thread").await;
    let inbound = sink.wait_for_text("in a thread").await;
    let thread = thread_address(room, root);
    assert_eq!((&inbound.address, inbound.scope_id.as_deref()), (&thread, Some(root)));
    let sent = matrix.send(&inbound.address, &html_piece("<p>there</p>", "there"), "key 3").await.unwrap();
    matrix
        .features()
        .drafts
        .unwrap()
        .edit(&inbound.address, &sent, &html_piece("<p>there!</p>", "there!"))
        .await
        .unwrap();
    let own = fixture.quell.id().to_owned();
    let view = fixture.alice.wait_for("the answer", |view| view.room(room).texts_of(&own).contains(&"there!")).await;
    let messages = view.room(room).messages;
    let answer = messages.iter().find(|message| message.id == sent.0).unwrap();
    assert_eq!(answer.thread(), Some(root));
}

async fn check_ignored_events(fixture: &mut MatrixFixture, sink: &RecordingInboundSink, hello: &str, room: &str) {
    let before = sink.state().messages.len();
    fixture.alice.edit_message(room, hello, "hello, changed").await;
    fixture.alice.send_event(room, "m.room.message", json!({"msgtype": "m.notice", "body": "a program speaks"})).await;
    fixture
        .alice
        .send_event(room, "m.room.message", json!({"msgtype": "m.key.verification.request", "body": "verify"}))
        .await;
    fixture
        .alice
        .send_event(room, "m.sticker", json!({"body": "a sticker", "url": "mxc://quell.test/a", "info": {}}))
        .await;
    fixture.alice.add_reaction(room, hello, "👍").await;
    let reply = json!({
        "msgtype": "m.text", "body": "> <@quell:quell.test> one and two\n> more\n\nthe reply",
        "m.relates_to": {"m.in_reply_to": {"event_id": hello}},
    });
    fixture.alice.send_event(room, "m.room.message", reply).await;
    assert_eq!(sink.wait_for_text("the reply").await.address, chat_address(room));
    assert_eq!(sink.state().messages.len(), before + 1, "{:#?}", sink.state().messages);
}

async fn check_file_transfer(
    fixture: &mut MatrixFixture,
    matrix: &MatrixNetwork,
    sink: &RecordingInboundSink,
    room: &str,
) {
    let uri = fixture.alice.upload("image/png", NOT_A_PICTURE.to_vec()).await;
    let picture = json!({
        "msgtype": "m.image", "body": "what is this?", "filename": "cat.png", "url": uri,
        "info": {"mimetype": "image/png", "size": NOT_A_PICTURE.len()},
    });
    fixture.alice.send_event(room, "m.room.message", picture).await;
    let inbound = sink.wait_for_text("what is this?").await;
    let attachment = Attachment {
        kind: AttachmentKind::Image,
        source: uri,
        name: Some("cat.png".to_owned()),
        media_type: Some("image/png".to_owned()),
        bytes: Some(10),
    };
    assert_eq!(inbound.attachments, std::slice::from_ref(&attachment));
    let files = matrix.features().files.unwrap();
    assert_eq!(files.fetch(&attachment, 10).await.unwrap(), NOT_A_PICTURE);
    assert!(files.fetch(&attachment, 9).await.is_err(), "it says that it is larger");
    let modest = Attachment { bytes: None, ..attachment.clone() };
    assert!(files.fetch(&modest, 9).await.is_err(), "it is larger");
    let report = Attachment {
        kind: AttachmentKind::File,
        source: String::new(),
        name: Some("report.txt".to_owned()),
        media_type: Some("text/plain".to_owned()),
        bytes: None,
    };
    let sent = files.send(&chat_address(room), &report, b"all is well".to_vec()).await.unwrap();
    let view = fixture.alice.wait_for("the file", |view| view.room(room).messages.iter().any(|m| m.id == sent.0)).await;
    let messages = view.room(room).messages;
    let shown = messages.iter().find(|message| message.id == sent.0).unwrap();
    assert_eq!((&shown.content["msgtype"], shown.text()), (&json!("m.file"), "report.txt"));
    assert_eq!(fixture.alice.download(shown.content["url"].as_str().unwrap()).await, b"all is well");
}

#[tokio::test]
#[ignore = "full: Synapse"]
async fn typing_and_signs_are_seen_and_gone_again() {
    if is_skipped() {
        return;
    }
    let mut fixture = MatrixFixture::start().await;
    let (matrix, sink) = (fixture.network(json!({"allow": ["*"]})), RecordingInboundSink::new());
    while_listening(&matrix, &sink, async {
        let room = fixture.create_shared_room().await;
        let question = fixture.alice.send_message(&room, "a question").await;
        let inbound = sink.wait_for_text("a question").await;
        let own = fixture.quell.id().to_owned();
        matrix.features().typing.unwrap().show(&inbound.address).await.unwrap();
        fixture.alice.wait_for("typing", |view| view.room(&room).typing == [own.as_str()]).await;
        matrix.features().typing.unwrap().hide(&inbound.address).await.unwrap();
        fixture.alice.wait_for("no typing", |view| view.room(&room).typing.is_empty()).await;

        let reactions = matrix.features().reactions.unwrap();
        for _ in 0..2 {
            reactions.add(&inbound.address, &inbound.message_id, "👀").await.unwrap();
        }
        fixture.alice.wait_for("the sign", |view| view.room(&room).reactions_by(&question, &own) == ["👀"]).await;
        reactions.remove(&inbound.address, &inbound.message_id, "👀").await.unwrap();
        reactions.add(&inbound.address, &inbound.message_id, "✅").await.unwrap();
        fixture.alice.wait_for("the other sign", |view| view.room(&room).reactions_by(&question, &own) == ["✅"]).await;
        reactions
            .remove(&inbound.address, &inbound.message_id, "👀")
            .await
            .expect("what is not there may be taken off");
        fixture.alice.add_reaction(&room, &question, "⏹").await;
        // After a restart of Quell nothing is remembered.
        let later = fixture.network(json!({}));
        let reactions = later.features().reactions.unwrap();
        reactions.remove(&inbound.address, &inbound.message_id, "⏹").await.unwrap();
        reactions.remove(&inbound.address, &inbound.message_id, "✅").await.unwrap();
        fixture.alice.wait_for("no sign", |view| view.room(&room).reactions_by(&question, &own).is_empty()).await;
        let alice = fixture.alice.id().to_owned();
        fixture.alice.wait_for("only her own", |view| view.room(&room).reactions_by(&question, &alice) == ["⏹"]).await;
        reactions
            .add(&inbound.address, &inbound.message_id, "✅")
            .await
            .expect("what was taken off may be put on again");
        fixture.alice.wait_for("it again", |view| view.room(&room).reactions_by(&question, &own) == ["✅"]).await;
    })
    .await;
}

#[tokio::test]
#[ignore = "full: Synapse"]
async fn the_account_goes_only_where_it_may_and_answers_only_what_is_meant_for_it() {
    if is_skipped() {
        return;
    }
    let mut fixture = MatrixFixture::start().await;
    let (mut stranger, bob) =
        (fixture.server.register_user("mallory").await, fixture.server.register_user("bob").await);
    let public = fixture.alice.create_room_with(json!({"preset": "public_chat", "room_alias_name": "town"})).await;
    fixture.alice.send_message(&public, "before it came").await;
    let extra_keys = json!({"allow": [fixture.alice.id()], "join": ["#town:quell.test"], "mention_only": true});
    let (matrix, sink) = (fixture.network(extra_keys), RecordingInboundSink::new());
    while_listening(&matrix, &sink, async {
        let own = fixture.quell.id().to_owned();
        fixture.alice.wait_for("it in town", |view| view.room(&public).members.contains(&own)).await;
        let lair = stranger.create_room(&[fixture.quell.id()]).await;
        // Invitations are handled in order: once this one is accepted, the earlier one was checked.
        let room = fixture.create_shared_room().await;
        fixture.alice.send_message(&room, "nobody else is here").await;
        let inbound = sink.wait_for_text("nobody else is here").await;
        assert!(inbound.is_addressed && !inbound.is_group);
        let view = stranger.wait_for("the lair", |view| view.rooms.contains_key(&lair)).await;
        assert_eq!(view.room(&lair).members, [stranger.id()]);

        bob.join(&public).await;
        let said = [
            ("hello all", "hello all", false),
            ("Quell Bot is nice", "Quell Bot is nice", false),
            ("quell bot: what now?", "what now?", true),
            ("@quell:quell.test and now?", "and now?", true),
            ("quell, stop", "stop", true),
        ];
        for (text, words, addressed) in said {
            bob.send_message(&public, text).await;
            let inbound = sink.wait_for_text(words).await;
            assert_eq!((inbound.is_addressed, inbound.is_group), (addressed, true), "{text}");
        }
        let content =
            json!({"msgtype": "m.text", "body": "and what says Quell Bot?", "m.mentions": {"user_ids": [own]}});
        bob.send_event(&public, "m.room.message", content).await;
        assert!(sink.wait_for_text("and what says Quell Bot?").await.is_addressed);
        check_encryption_notice(&mut fixture, &sink).await;
    })
    .await;
    assert!(!sink.state().texts().contains(&"before it came"), "{:#?}", sink.state().texts());
    let gone = matrix.send(&chat_address("!nowhere:quell.test"), &html_piece("", "hello"), "key").await;
    assert!(matches!(gone, Err(SendError::Refused { .. })), "{gone:?}");
}

async fn check_encryption_notice(fixture: &mut MatrixFixture, sink: &RecordingInboundSink) {
    let secret = json!({
        "preset": "private_chat", "invite": [fixture.quell.id()],
        "initial_state": [{"type": "m.room.encryption", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}],
    });
    let secret = fixture.alice.create_room_with(secret).await;
    let hidden = json!({"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "AAAA", "session_id": "a"});
    for _ in 0..2 {
        fixture.alice.send_event(&secret, "m.room.encrypted", hidden.clone()).await;
    }
    let own = fixture.quell.id().to_owned();
    fixture.alice.wait_for("the notice", |view| !view.room(&secret).texts_of(&own).is_empty()).await;
    fixture.alice.send_event(&secret, "m.room.encrypted", hidden).await;
    fixture.alice.send_message(&secret, "not encrypted by mistake").await;
    sink.wait_for_text("not encrypted by mistake").await;
    let marker = fixture.alice.send_message(&secret, "the end").await;
    sink.wait_for_text("the end").await;
    let view =
        fixture.alice.wait_for("the end", |view| view.room(&secret).messages.iter().any(|m| m.id == marker)).await;
    let room = view.room(&secret);
    let notices = room.texts_of(&own);
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].starts_with("This room is encrypted"), "{notices:?}");
}

#[tokio::test]
#[ignore = "full: Synapse"]
async fn the_account_goes_on_in_the_room_that_replaces_another() {
    if is_skipped() {
        return;
    }
    let fixture = MatrixFixture::start().await;
    let own = fixture.quell.id().to_owned();
    let MatrixFixture { server, mut alice, quell } = fixture;
    let open = alice.create_room_with(json!({"preset": "public_chat", "invite": [own], "room_version": "11"})).await;
    let closed = alice.create_room(&[&own]).await;
    let matrix = matrix_network(&server.base_url(), quell.token(), json!({"allow": [alice.id()]}));
    let sink = RecordingInboundSink::new();
    let next = while_listening(&matrix, &sink, async {
        for room in [&open, &closed] {
            alice.wait_for("the account", |view| view.room(room).members.contains(&own)).await;
        }
        // A room of version 12 has no server in its id.
        let next = alice.upgrade_room(&open, "12").await;
        alice.wait_for("the account in the next room", |view| view.room(&next).members.contains(&own)).await;
        alice.send_message(&next, "and here?").await;
        assert_eq!(sink.wait_for_text("and here?").await.address, chat_address(&next));
        // Alice invites the account to a closed room, before or after it has seen the replacement.
        let next_closed = alice.upgrade_room(&closed, "11").await;
        alice.invite(&next_closed, &own).await;
        alice.wait_for("the account in it", |view| view.room(&next_closed).members.contains(&own)).await;
        alice.send_message(&next_closed, "and in private?").await;
        assert_eq!(sink.wait_for_text("and in private?").await.address, chat_address(&next_closed));
        next
    })
    .await;
    // Nothing listens, and the cursor is lost.
    let last = alice.upgrade_room(&next, "12").await;
    let later = RecordingInboundSink::new();
    while_listening(&matrix, &later, async {
        alice.wait_for("the account in the last room", |view| view.room(&last).members.contains(&own)).await;
        alice.send_message(&last, "still there?").await;
        later.wait_for_text("still there?").await;
    })
    .await;
}
