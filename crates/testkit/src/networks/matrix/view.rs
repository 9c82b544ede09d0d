//! What a person sees in the rooms: messages after their edits and without deleted ones, reactions, and who is writing.

use std::collections::BTreeMap;

use serde_json::Value;

/// All rooms that a person sees.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// By id.
    pub rooms: BTreeMap<String, Room>,
    /// Rooms that the person is invited to.
    pub invited: Vec<String>,
}

/// One room.
#[derive(Debug, Clone, Default)]
pub struct Room {
    /// Messages in their order.
    pub messages: Vec<Shown>,
    /// Who is writing now.
    pub typing: Vec<String>,
    /// Who is in it.
    pub members: Vec<String>,
    /// Reactions as they came: their own ids, for when they are taken back, and on what they are.
    reactions: Vec<Reaction>,
}

#[derive(Debug, Clone)]
struct Reaction {
    event: String,
    on: String,
    sender: String,
    sign: String,
}

/// A message as it is shown now.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    /// Its event id.
    pub id: String,
    /// Who wrote it.
    pub sender: String,
    /// Its content, after the last edit.
    pub content: Value,
    /// How often it was edited.
    pub edits: usize,
}

impl Shown {
    /// Its text.
    #[must_use]
    pub fn text(&self) -> &str {
        self.content["body"].as_str().unwrap_or_default()
    }

    /// Its text in HTML.
    #[must_use]
    pub fn html(&self) -> &str {
        self.content["formatted_body"].as_str().unwrap_or_default()
    }

    /// The thread that it is in.
    #[must_use]
    pub fn thread(&self) -> Option<&str> {
        let relation = &self.content["m.relates_to"];
        relation["event_id"].as_str().filter(|_| relation["rel_type"] == "m.thread")
    }
}

impl View {
    /// A room; an empty one where the person is in none of that id.
    #[must_use]
    pub fn room(&self, id: &str) -> Room {
        self.rooms.get(id).cloned().unwrap_or_default()
    }

    /// Takes in one answer of `/sync`.
    pub(super) fn take(&mut self, answer: &Value) {
        for (id, invited) in entries(&answer["rooms"]["invite"]) {
            if !invited.is_null() && !self.invited.contains(id) {
                self.invited.push(id.clone());
            }
        }
        for (id, left) in entries(&answer["rooms"]["leave"]) {
            let room = self.rooms.entry(id.clone()).or_default();
            each(&left["timeline"]["events"]).for_each(|event| room.take(event));
        }
        for (id, joined) in entries(&answer["rooms"]["join"]) {
            self.invited.retain(|invited| invited != id);
            let room = self.rooms.entry(id.clone()).or_default();
            let state = each(&joined["state"]["events"]).chain(each(&joined["timeline"]["events"]));
            state.for_each(|event| room.take(event));
            each(&joined["ephemeral"]["events"]).for_each(|event| room.take_passing(event));
        }
    }
}

impl Room {
    /// The texts that somebody has written, in their order.
    #[must_use]
    pub fn texts_of(&self, sender: &str) -> Vec<&str> {
        self.messages.iter().filter(|message| message.sender == sender).map(Shown::text).collect()
    }

    /// The signs that somebody has put on a message.
    #[must_use]
    pub fn signs(&self, message: &str, sender: &str) -> Vec<&str> {
        let signs = self.reactions.iter().filter(|reaction| reaction.on == message && reaction.sender == sender);
        signs.map(|reaction| reaction.sign.as_str()).collect()
    }

    fn take(&mut self, event: &Value) {
        let (id, sender) = (text(&event["event_id"]), text(&event["sender"]));
        let (content, relation) = (&event["content"], &event["content"]["m.relates_to"]);
        match event["type"].as_str() {
            Some("m.room.member") => {
                let member = text(&event["state_key"]);
                self.members.retain(|known| *known != member);
                if content["membership"] == "join" {
                    self.members.push(member);
                }
            }
            Some("m.room.message") if relation["rel_type"] == "m.replace" => {
                let edited = |shown: &&mut Shown| shown.id == relation["event_id"] && shown.sender == sender;
                if let Some(shown) = self.messages.iter_mut().find(edited) {
                    // The relation of the first version stays: an edit cannot move a message into another thread.
                    let first_relation = shown.content["m.relates_to"].take();
                    shown.content = content["m.new_content"].clone();
                    shown.content["m.relates_to"] = first_relation;
                    shown.edits += 1;
                }
            }
            Some("m.room.message") if content["msgtype"].is_string() => {
                self.messages.push(Shown { id, sender, content: content.clone(), edits: 0 });
            }
            Some("m.reaction") if relation["rel_type"] == "m.annotation" => {
                let (on, sign) = (text(&relation["event_id"]), text(&relation["key"]));
                self.reactions.push(Reaction { event: id, on, sender, sign });
            }
            Some("m.room.redaction") => {
                // The place of the id depends on the version of the room.
                let gone = event["redacts"].as_str().or(content["redacts"].as_str()).unwrap_or_default();
                self.messages.retain(|shown| shown.id != gone);
                self.reactions.retain(|reaction| reaction.event != gone);
            }
            _ => {}
        }
    }

    fn take_passing(&mut self, event: &Value) {
        if event["type"] == "m.typing" {
            self.typing = each(&event["content"]["user_ids"]).map(text).collect();
        }
    }
}

fn entries(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten()
}

fn each(array: &Value) -> impl Iterator<Item = &Value> {
    array.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
