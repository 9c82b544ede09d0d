//! Against a real Synapse: people and the account in rooms.

use quell_protocol::{Attachment, AttachmentKind};
use quell_testkit::networks::matrix::{MatrixPerson, Synapse, is_skipped};
use serde_json::{Value, json};

use super::{matrix, piece, place, while_listening};
use crate::channels::matrix::Matrix;
use crate::channels::seam::recording::RecordingEar;
use crate::channels::seam::{Heard, Network as _, NotSent, Own, Place};

/// Nobody looks into it.
const NOT_A_PICTURE: &[u8] = b"only bytes";

/// Those who are in most rooms.
struct Cast {
    server: Synapse,
    alice: MatrixPerson,
    /// The account of the channel.
    quell: MatrixPerson,
}

impl Cast {
    async fn meet() -> Self {
        let server = Synapse::start().await;
        let (alice, quell) = (server.person("alice").await, server.person("quell").await);
        quell.call_oneself("Quell Bot").await;
        Self { server, alice, quell }
    }

    fn matrix(&self, wishes: Value) -> Matrix {
        matrix(&self.server.base_url(), self.quell.token(), wishes)
    }

    /// A room in which the account is as well.
    async fn room(&mut self) -> String {
        let room = self.alice.create_room(&[self.quell.id()]).await;
        let own = self.quell.id().to_owned();
        self.alice.wait_for("the account in the room", |view| view.room(&room).members.contains(&own)).await;
        room
    }
}

/// Waits for a text, and answers how it was heard.
async fn hears(ear: &RecordingEar, text: &str) -> Heard {
    let state = ear.wait_for(text, |state| state.texts().contains(&text)).await;
    state.heard.into_iter().find(|heard| heard.text == text).unwrap()
}

#[tokio::test]
async fn a_person_and_the_account_talk_in_a_room_and_its_threads() {
    if is_skipped() {
        return;
    }
    let mut cast = Cast::meet().await;
    let (matrix, ear) = (cast.matrix(json!({"allow": [cast.alice.id()]})), RecordingEar::new());
    while_listening(&matrix, &ear, async {
        // Said before the account has accepted the invitation, as people do.
        let room = cast.alice.create_room(&[cast.quell.id()]).await;
        let hello = cast.alice.say(&room, "hello").await;
        let heard = hears(&ear, "hello").await;
        assert_eq!((heard.id.as_str(), heard.message.0.as_str()), (hello.as_str(), hello.as_str()));
        assert_eq!((heard.sender.as_str(), heard.sender_name.as_deref()), (cast.alice.id(), Some("alice")));
        assert_eq!((heard.place, heard.scope_id), (place(&room), None));
        assert!(heard.addressed && !heard.group);
        let own = Own { id: cast.quell.id().to_owned(), name: "Quell Bot".to_owned() };
        assert_eq!(ear.state().connected, [own]);
        says_and_edits(&mut cast, &matrix, &room).await;
        answers_in_a_thread(&mut cast, &matrix, &ear, &hello, &room).await;
        only_new_words_are_heard(&mut cast, &ear, &hello, &room).await;
        files_come_and_go(&mut cast, &matrix, &ear, &room).await;
    })
    .await;
    assert_eq!(matrix.probe().await, Ok("@quell:quell.test, in 1 room".to_owned()));
}

async fn says_and_edits(cast: &mut Cast, matrix: &Matrix, room: &str) {
    let place = place(room);
    let draft = piece("<p>one</p>", "one");
    let sent = matrix.send(&place, &draft, "key 1").await.unwrap();
    assert_eq!(matrix.send(&place, &draft, "key 1").await, Ok(sent.clone()), "the same key is the same message");
    let final_text = piece("<p><strong>one</strong> and <em>two</em></p>", "one and two");
    for text in [piece("<p>one and</p>", "one and"), draft, final_text.clone(), final_text] {
        matrix.drafts().unwrap().edit(&place, &sent, &text).await.unwrap();
    }
    let own = cast.quell.id().to_owned();
    let edited = |view: &quell_testkit::networks::matrix::View| view.room(room).messages.iter().any(|m| m.edits == 4);
    let view = cast.alice.wait_for("the last edit", edited).await;
    let shown: Vec<_> = view.room(room).messages.into_iter().filter(|message| message.sender == own).collect();
    assert_eq!(shown.len(), 1, "{shown:#?}");
    assert_eq!((shown[0].id.as_str(), shown[0].text()), (sent.0.as_str(), "one and two"));
    assert_eq!(shown[0].html(), "<p><strong>one</strong> and <em>two</em></p>");
    // The most that is sent at once, of what grows most on the way.
    let most = "\"\n".repeat(matrix.manners().form.longest / 2);
    let long = matrix.send(&place, &piece(&most, &most), "key 2").await.unwrap();
    assert_ne!(long, sent, "another key is another message");
    matrix.drafts().unwrap().edit(&place, &long, &piece(&most, &most)).await.unwrap();
}

async fn answers_in_a_thread(cast: &mut Cast, matrix: &Matrix, ear: &RecordingEar, root: &str, room: &str) {
    cast.alice.say_in_thread(room, root, "in a thread").await;
    let heard = hears(ear, "in a thread").await;
    let thread = Place { target: room.to_owned(), thread: Some(root.to_owned()) };
    assert_eq!((&heard.place, heard.scope_id.as_deref()), (&thread, Some(root)));
    let sent = matrix.send(&heard.place, &piece("<p>there</p>", "there"), "key 3").await.unwrap();
    matrix.drafts().unwrap().edit(&heard.place, &sent, &piece("<p>there!</p>", "there!")).await.unwrap();
    let own = cast.quell.id().to_owned();
    let view = cast.alice.wait_for("the answer", |view| view.room(room).texts_of(&own).contains(&"there!")).await;
    let messages = view.room(room).messages;
    let answer = messages.iter().find(|message| message.id == sent.0).unwrap();
    assert_eq!(answer.thread(), Some(root));
}

async fn only_new_words_are_heard(cast: &mut Cast, ear: &RecordingEar, hello: &str, room: &str) {
    let before = ear.state().heard.len();
    cast.alice.edit(room, hello, "hello, changed").await;
    cast.alice.send(room, "m.room.message", json!({"msgtype": "m.notice", "body": "a program speaks"})).await;
    cast.alice.send(room, "m.room.message", json!({"msgtype": "m.key.verification.request", "body": "verify"})).await;
    cast.alice.send(room, "m.sticker", json!({"body": "a sticker", "url": "mxc://quell.test/a", "info": {}})).await;
    cast.alice.react(room, hello, "👍").await;
    let reply = json!({
        "msgtype": "m.text", "body": "> <@quell:quell.test> one and two\n> more\n\nthe reply",
        "m.relates_to": {"m.in_reply_to": {"event_id": hello}},
    });
    cast.alice.send(room, "m.room.message", reply).await;
    assert_eq!(hears(ear, "the reply").await.place, place(room));
    assert_eq!(ear.state().heard.len(), before + 1, "{:#?}", ear.state().heard);
}

async fn files_come_and_go(cast: &mut Cast, matrix: &Matrix, ear: &RecordingEar, room: &str) {
    let uri = cast.alice.upload("image/png", NOT_A_PICTURE.to_vec()).await;
    let picture = json!({
        "msgtype": "m.image", "body": "what is this?", "filename": "cat.png", "url": uri,
        "info": {"mimetype": "image/png", "size": NOT_A_PICTURE.len()},
    });
    cast.alice.send(room, "m.room.message", picture).await;
    let heard = hears(ear, "what is this?").await;
    let attachment = Attachment {
        kind: AttachmentKind::Image,
        source: uri,
        name: Some("cat.png".to_owned()),
        media_type: Some("image/png".to_owned()),
        bytes: Some(10),
    };
    assert_eq!(heard.attachments, std::slice::from_ref(&attachment));
    let files = matrix.files().unwrap();
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
    let sent = files.send(&place(room), &report, b"all is well".to_vec()).await.unwrap();
    let view = cast.alice.wait_for("the file", |view| view.room(room).messages.iter().any(|m| m.id == sent.0)).await;
    let messages = view.room(room).messages;
    let shown = messages.iter().find(|message| message.id == sent.0).unwrap();
    assert_eq!((&shown.content["msgtype"], shown.text()), (&json!("m.file"), "report.txt"));
    assert_eq!(cast.alice.download(shown.content["url"].as_str().unwrap()).await, b"all is well");
}

#[tokio::test]
async fn typing_and_signs_are_seen_and_gone_again() {
    if is_skipped() {
        return;
    }
    let mut cast = Cast::meet().await;
    let (matrix, ear) = (cast.matrix(json!({"allow": ["*"]})), RecordingEar::new());
    while_listening(&matrix, &ear, async {
        let room = cast.room().await;
        let question = cast.alice.say(&room, "a question").await;
        let heard = hears(&ear, "a question").await;
        let own = cast.quell.id().to_owned();
        matrix.typing().unwrap().show(&heard.place).await.unwrap();
        cast.alice.wait_for("typing", |view| view.room(&room).typing == [own.as_str()]).await;
        matrix.typing().unwrap().hide(&heard.place).await.unwrap();
        cast.alice.wait_for("no typing", |view| view.room(&room).typing.is_empty()).await;

        let signs = matrix.reactions().unwrap();
        for _ in 0..2 {
            signs.add(&heard.place, &heard.message, "👀").await.unwrap();
        }
        cast.alice.wait_for("the sign", |view| view.room(&room).signs(&question, &own) == ["👀"]).await;
        signs.remove(&heard.place, &heard.message, "👀").await.unwrap();
        signs.add(&heard.place, &heard.message, "✅").await.unwrap();
        cast.alice.wait_for("the other sign", |view| view.room(&room).signs(&question, &own) == ["✅"]).await;
        signs.remove(&heard.place, &heard.message, "👀").await.expect("what is not there may be taken off");
        cast.alice.react(&room, &question, "⏹").await;
        // After a restart of Quell nothing is remembered.
        let later = cast.matrix(json!({}));
        let signs = later.reactions().unwrap();
        signs.remove(&heard.place, &heard.message, "⏹").await.unwrap();
        signs.remove(&heard.place, &heard.message, "✅").await.unwrap();
        cast.alice.wait_for("no sign", |view| view.room(&room).signs(&question, &own).is_empty()).await;
        let alice = cast.alice.id().to_owned();
        cast.alice.wait_for("only her own", |view| view.room(&room).signs(&question, &alice) == ["⏹"]).await;
        signs.add(&heard.place, &heard.message, "✅").await.expect("what was taken off may be put on again");
        cast.alice.wait_for("it again", |view| view.room(&room).signs(&question, &own) == ["✅"]).await;
    })
    .await;
}

#[tokio::test]
async fn the_account_goes_only_where_it_may_and_answers_only_what_is_meant_for_it() {
    if is_skipped() {
        return;
    }
    let mut cast = Cast::meet().await;
    let (mut stranger, bob) = (cast.server.person("mallory").await, cast.server.person("bob").await);
    let public = cast.alice.create_room_with(json!({"preset": "public_chat", "room_alias_name": "town"})).await;
    cast.alice.say(&public, "before it came").await;
    let wishes = json!({"allow": [cast.alice.id()], "join": ["#town:quell.test"], "mention_only": true});
    let (matrix, ear) = (cast.matrix(wishes), RecordingEar::new());
    while_listening(&matrix, &ear, async {
        let own = cast.quell.id().to_owned();
        cast.alice.wait_for("it in town", |view| view.room(&public).members.contains(&own)).await;
        let lair = stranger.create_room(&[cast.quell.id()]).await;
        // Invitations are taken in their order: this one is accepted, so that one was looked at.
        let room = cast.room().await;
        cast.alice.say(&room, "nobody else is here").await;
        let heard = hears(&ear, "nobody else is here").await;
        assert!(heard.addressed && !heard.group);
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
            bob.say(&public, text).await;
            let heard = hears(&ear, words).await;
            assert_eq!((heard.addressed, heard.group), (addressed, true), "{text}");
        }
        let content =
            json!({"msgtype": "m.text", "body": "and what says Quell Bot?", "m.mentions": {"user_ids": [own]}});
        bob.send(&public, "m.room.message", content).await;
        assert!(hears(&ear, "and what says Quell Bot?").await.addressed);
        says_that_it_cannot_read(&mut cast, &ear).await;
    })
    .await;
    assert!(!ear.state().texts().contains(&"before it came"), "{:#?}", ear.state().texts());
    let gone = matrix.send(&place("!nowhere:quell.test"), &piece("", "hello"), "key").await;
    assert!(matches!(gone, Err(NotSent::Refused { .. })), "{gone:?}");
}

async fn says_that_it_cannot_read(cast: &mut Cast, ear: &RecordingEar) {
    let secret = json!({
        "preset": "private_chat", "invite": [cast.quell.id()],
        "initial_state": [{"type": "m.room.encryption", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}],
    });
    let secret = cast.alice.create_room_with(secret).await;
    let hidden = json!({"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "AAAA", "session_id": "a"});
    for _ in 0..2 {
        cast.alice.send(&secret, "m.room.encrypted", hidden.clone()).await;
    }
    let own = cast.quell.id().to_owned();
    cast.alice.wait_for("the notice", |view| !view.room(&secret).texts_of(&own).is_empty()).await;
    cast.alice.send(&secret, "m.room.encrypted", hidden).await;
    cast.alice.say(&secret, "not encrypted by mistake").await;
    hears(ear, "not encrypted by mistake").await;
    let marker = cast.alice.say(&secret, "the end").await;
    hears(ear, "the end").await;
    let view = cast.alice.wait_for("the end", |view| view.room(&secret).messages.iter().any(|m| m.id == marker)).await;
    let room = view.room(&secret);
    let notices = room.texts_of(&own);
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].starts_with("This room is encrypted"), "{notices:?}");
}

#[tokio::test]
async fn the_account_goes_on_in_the_room_that_replaces_another() {
    if is_skipped() {
        return;
    }
    let cast = Cast::meet().await;
    let own = cast.quell.id().to_owned();
    let Cast { server, mut alice, quell } = cast;
    let open = alice.create_room_with(json!({"preset": "public_chat", "invite": [own], "room_version": "11"})).await;
    let closed = alice.create_room(&[&own]).await;
    let matrix = matrix(&server.base_url(), quell.token(), json!({"allow": [alice.id()]}));
    let ear = RecordingEar::new();
    let next = while_listening(&matrix, &ear, async {
        for room in [&open, &closed] {
            alice.wait_for("the account", |view| view.room(room).members.contains(&own)).await;
        }
        // A room of version 12 names no server in its id.
        let next = alice.upgrade(&open, "12").await;
        alice.wait_for("the account in the next room", |view| view.room(&next).members.contains(&own)).await;
        alice.say(&next, "and here?").await;
        assert_eq!(hears(&ear, "and here?").await.place, place(&next));
        // Into a closed one it is invited, before or after it has seen that there is one.
        let next_closed = alice.upgrade(&closed, "11").await;
        alice.invite(&next_closed, &own).await;
        alice.wait_for("the account in it", |view| view.room(&next_closed).members.contains(&own)).await;
        alice.say(&next_closed, "and in private?").await;
        assert_eq!(hears(&ear, "and in private?").await.place, place(&next_closed));
        next
    })
    .await;
    // Nobody listens, and where listening had come to is lost.
    let last = alice.upgrade(&next, "12").await;
    let later = RecordingEar::new();
    while_listening(&matrix, &later, async {
        alice.wait_for("the account in the last room", |view| view.room(&last).members.contains(&own)).await;
        alice.say(&last, "still there?").await;
        hears(&later, "still there?").await;
    })
    .await;
}
