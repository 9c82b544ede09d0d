//! Blocks of messages: a section with a text, and a row of buttons (Slack: Block Kit).

use serde_json::Value;

use super::super::super::FakeButton;
use super::FakeSlackError;

/// Slack: section block, `text`.
const MAX_SECTION_CHARS: usize = 3000;
/// Slack: button element, `text`, `action_id` and `value`.
const MAX_LABEL_CHARS: usize = 75;
const MAX_ACTION_ID_CHARS: usize = 255;
const MAX_VALUE_CHARS: usize = 2000;

/// What a message with blocks shows.
pub(super) struct ShownBlocks {
    pub(super) text: String,
    pub(super) buttons: Vec<FakeButton>,
}

/// Parses the blocks of a call, if it has some.
pub(super) fn parse_blocks(body: &Value) -> Result<Option<ShownBlocks>, FakeSlackError> {
    let Some(blocks) = body.get("blocks") else { return Ok(None) };
    let mut shown = ShownBlocks { text: String::new(), buttons: Vec::new() };
    for block in blocks.as_array().ok_or("invalid_blocks_format")? {
        match block["type"].as_str() {
            Some("section") if block["text"]["type"] == "mrkdwn" => {
                let text = block["text"]["text"].as_str();
                let text = text.filter(|text| (1..=MAX_SECTION_CHARS).contains(&text.chars().count()));
                shown.text.push_str(text.ok_or("invalid_blocks")?);
            }
            Some("actions") => {
                let elements = block["elements"].as_array().filter(|all| (1..=25).contains(&all.len()));
                for element in elements.ok_or("invalid_blocks")? {
                    shown.buttons.push(parse_button(element).ok_or("invalid_blocks")?);
                }
                let ids: Vec<&Value> = elements.into_iter().flatten().map(|element| &element["action_id"]).collect();
                if ids.iter().enumerate().any(|(at, id)| ids[..at].contains(id)) {
                    return Err("invalid_blocks");
                }
            }
            _ => return Err("invalid_blocks"),
        }
    }
    Ok(Some(shown))
}

fn parse_button(element: &Value) -> Option<FakeButton> {
    let within = |text: &'_ Value, max: usize| {
        text.as_str().filter(|text| (1..=max).contains(&text.chars().count())).map(str::to_owned)
    };
    let has_style = matches!(element["style"].as_str(), Some("primary" | "danger"));
    let is_button = element["type"] == "button" && element["text"]["type"] == "plain_text" && has_style;
    within(&element["action_id"], MAX_ACTION_ID_CHARS).filter(|_| is_button)?;
    Some(FakeButton {
        label: within(&element["text"]["text"], MAX_LABEL_CHARS)?,
        data: within(&element["value"], MAX_VALUE_CHARS)?,
    })
}
