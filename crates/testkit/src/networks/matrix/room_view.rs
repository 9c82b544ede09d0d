//! A user's view of the rooms: messages after edits and without deleted ones, reactions, and typing users.

use std::collections::BTreeMap;

use serde_json::Value;

/// All rooms that a user sees.
#[derive(Debug, Clone, Default)]
pub struct MatrixUserView {
    /// By room id.
    pub rooms: BTreeMap<String, MatrixRoomView>,
    /// Rooms that the user is invited to.
    pub invited: Vec<String>,
}

#[derive(Debug, Clone, Default)]
pub struct MatrixRoomView {
    pub messages: Vec<MatrixMessageView>,
    pub typing: Vec<String>,
    pub members: Vec<String>,
    /// Reactions in order; their own ids identify them when they are redacted.
    reactions: Vec<MatrixReactionView>,
}

#[derive(Debug, Clone)]
struct MatrixReactionView {
    event_id: String,
    target_id: String,
    sender: String,
    key: String,
}

/// A message as it is shown now.
#[derive(Debug, Clone, PartialEq)]
pub struct MatrixMessageView {
    pub id: String,
    pub sender: String,
    /// Its content after the last edit.
    pub content: Value,
    pub edits: usize,
}

impl MatrixMessageView {
    pub fn text(&self) -> &str {
        self.content["body"].as_str().unwrap_or_default()
    }

    pub fn html(&self) -> &str {
        self.content["formatted_body"].as_str().unwrap_or_default()
    }

    /// Root event of its thread.
    pub fn thread(&self) -> Option<&str> {
        let relation = &self.content["m.relates_to"];
        relation["event_id"].as_str().filter(|_| relation["rel_type"] == "m.thread")
    }
}

impl MatrixUserView {
    /// A room; an empty one if the user is not in it.
    pub fn room(&self, id: &str) -> MatrixRoomView {
        self.rooms.get(id).cloned().unwrap_or_default()
    }

    /// Applies one answer of `/sync`.
    pub(super) fn apply_sync(&mut self, answer: &Value) {
        for (id, invited) in object_entries(&answer["rooms"]["invite"]) {
            if !invited.is_null() && !self.invited.contains(id) {
                self.invited.push(id.clone());
            }
        }
        for (id, left) in object_entries(&answer["rooms"]["leave"]) {
            let room = self.rooms.entry(id.clone()).or_default();
            array_items(&left["timeline"]["events"]).for_each(|event| room.apply_event(event));
        }
        for (id, joined) in object_entries(&answer["rooms"]["join"]) {
            self.invited.retain(|invited| invited != id);
            let room = self.rooms.entry(id.clone()).or_default();
            let state = array_items(&joined["state"]["events"]).chain(array_items(&joined["timeline"]["events"]));
            state.for_each(|event| room.apply_event(event));
            array_items(&joined["ephemeral"]["events"]).for_each(|event| room.apply_ephemeral(event));
        }
    }
}

impl MatrixRoomView {
    /// The texts that a user has written, in order.
    pub fn texts_of(&self, sender: &str) -> Vec<&str> {
        self.messages.iter().filter(|message| message.sender == sender).map(MatrixMessageView::text).collect()
    }

    /// The reactions of a user to a message.
    pub fn reactions_by(&self, message: &str, sender: &str) -> Vec<&str> {
        let signs = self.reactions.iter().filter(|reaction| reaction.target_id == message && reaction.sender == sender);
        signs.map(|reaction| reaction.key.as_str()).collect()
    }

    fn apply_event(&mut self, event: &Value) {
        let (id, sender) = (string_value(&event["event_id"]), string_value(&event["sender"]));
        let (content, relation) = (&event["content"], &event["content"]["m.relates_to"]);
        match event["type"].as_str() {
            Some("m.room.member") => {
                let member = string_value(&event["state_key"]);
                self.members.retain(|known| *known != member);
                if content["membership"] == "join" {
                    self.members.push(member);
                }
            }
            Some("m.room.message") if relation["rel_type"] == "m.replace" => {
                let edited =
                    |shown: &&mut MatrixMessageView| shown.id == relation["event_id"] && shown.sender == sender;
                if let Some(shown) = self.messages.iter_mut().find(edited) {
                    // The first version's relation stays: an edit cannot move a message into another thread.
                    let first_relation = shown.content["m.relates_to"].take();
                    shown.content = content["m.new_content"].clone();
                    shown.content["m.relates_to"] = first_relation;
                    shown.edits += 1;
                }
            }
            Some("m.room.message") if content["msgtype"].is_string() => {
                self.messages.push(MatrixMessageView { id, sender, content: content.clone(), edits: 0 });
            }
            Some("m.reaction") if relation["rel_type"] == "m.annotation" => {
                let (on, sign) = (string_value(&relation["event_id"]), string_value(&relation["key"]));
                self.reactions.push(MatrixReactionView { event_id: id, target_id: on, sender, key: sign });
            }
            Some("m.room.redaction") => {
                // The place of the id depends on the room version.
                let gone = event["redacts"].as_str().or(content["redacts"].as_str()).unwrap_or_default();
                self.messages.retain(|shown| shown.id != gone);
                self.reactions.retain(|reaction| reaction.event_id != gone);
            }
            _ => {}
        }
    }

    fn apply_ephemeral(&mut self, event: &Value) {
        if event["type"] == "m.typing" {
            self.typing = array_items(&event["content"]["user_ids"]).map(string_value).collect();
        }
    }
}

fn object_entries(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten()
}

fn array_items(array: &Value) -> impl Iterator<Item = &Value> {
    array.as_array().into_iter().flatten()
}

fn string_value(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
