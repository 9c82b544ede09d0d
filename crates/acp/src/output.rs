//! Standard output: lines that wait for a slow editor are merged.
//!
//! The crate's connection never waits for the editor, so everything that a run prints would wait in memory, and an answer
//! would come behind all of it. Here an update that waits takes in the next one of its session: pieces of a text become one
//! text, states of a tool call become its newest state.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};

use futures_util::Sink;
use serde_json::Value;
use tokio::io::AsyncWrite;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::codec::{FramedWrite, LinesCodec, LinesCodecError};

/// A text that is longer, in bytes, takes in no more.
const MAX_MERGED_BYTES: usize = 64 * 1024;

/// Writes lines until their sender is dropped and all are written.
///
/// # Errors
/// What the writer said, such as a closed pipe.
///
/// # Cancel safety
/// Lines that wait are lost.
pub(crate) async fn write_lines(mut lines: UnboundedReceiver<String>, writer: impl AsyncWrite) -> io::Result<()> {
    let mut output = pin!(FramedWrite::new(writer, LinesCodec::new()));
    let mut waiting = WaitingLines::default();
    let (mut is_open, mut is_flushed) = (true, true);
    loop {
        let has_line = !waiting.is_empty();
        let progress = poll_fn(|cx| {
            let output: Pin<&mut dyn Sink<String, Error = LinesCodecError>> = output.as_mut();
            if has_line { output.poll_ready(cx) } else { output.poll_flush(cx) }
        });
        tokio::select! {
            biased;
            line = lines.recv(), if is_open => match line {
                Some(line) => waiting.push(line),
                None => is_open = false,
            },
            done = progress, if has_line || !is_flushed => {
                done.map_err(write_error)?;
                is_flushed = !has_line;
                if let Some(line) = waiting.pop() {
                    output.as_mut().start_send(line).map_err(write_error)?;
                }
            }
            else => return Ok(()),
        }
    }
}

fn write_error(error: LinesCodecError) -> io::Error {
    match error {
        LinesCodecError::Io(error) => error,
        LinesCodecError::MaxLineLengthExceeded => io::Error::other(error),
    }
}

/// Lines that the editor has not taken yet, oldest first.
#[derive(Default)]
struct WaitingLines(VecDeque<WaitingLine>);

enum WaitingLine {
    /// A `session/update` notification.
    Update(Value),
    /// A request or an answer: no update is moved across it.
    Other(String),
}

impl WaitingLines {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn push(&mut self, line: String) {
        let message = serde_json::from_str::<Value>(&line).ok();
        let Some(update) = message.filter(|message| message["method"] == "session/update") else {
            self.0.push_back(WaitingLine::Other(line));
            return;
        };
        let session = &update["params"]["sessionId"];
        let updates = self.0.iter_mut().rev().map_while(|line| match line {
            WaitingLine::Update(earlier) => Some(earlier),
            WaitingLine::Other(_) => None,
        });
        let newest_of_session = updates.into_iter().find(|earlier| earlier["params"]["sessionId"] == *session);
        if !newest_of_session.is_some_and(|earlier| merge(earlier, &update)) {
            self.0.push_back(WaitingLine::Update(update));
        }
    }

    fn pop(&mut self) -> Option<String> {
        Some(match self.0.pop_front()? {
            WaitingLine::Update(update) => update.to_string(),
            WaitingLine::Other(line) => line,
        })
    }
}

/// Adds an update to the one before it; false if the editor has to see both.
fn merge(earlier: &mut Value, next: &Value) -> bool {
    let (earlier, next) = (&mut earlier["params"]["update"], &next["params"]["update"]);
    if earlier["sessionUpdate"] != next["sessionUpdate"] {
        return false;
    }
    match next["sessionUpdate"].as_str() {
        Some("agent_message_chunk" | "agent_thought_chunk") => merge_text(earlier, next),
        Some("tool_call_update") if earlier["toolCallId"] == next["toolCallId"] => merge_fields(earlier, next),
        _ => false,
    }
}

/// Appends the text of a chunk to that of a chunk which differs in nothing else.
fn merge_text(earlier: &mut Value, next: &Value) -> bool {
    let Some(added) = next["content"]["text"].as_str() else { return false };
    let Some(Value::String(place)) = earlier.pointer_mut("/content/text") else { return false };
    let mut text = std::mem::take(place);
    let mut without_text = next.clone();
    without_text["content"]["text"] = "".into();
    let merges = *earlier == without_text && text.len() < MAX_MERGED_BYTES;
    if merges {
        text.push_str(added);
    }
    earlier["content"]["text"] = text.into();
    merges
}

/// Each field of an update replaces what the editor knew of it.
fn merge_fields(earlier: &mut Value, next: &Value) -> bool {
    let (Some(earlier), Some(next)) = (earlier.as_object_mut(), next.as_object()) else { return false };
    earlier.extend(next.iter().map(|(key, value)| (key.clone(), value.clone())));
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncBufReadExt as _, BufReader, DuplexStream};
    use tokio::sync::mpsc;

    use super::*;

    fn update(session: &str, update: Value) -> Value {
        json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}})
    }

    fn chunk(session: &str, text: &str) -> Value {
        let content = json!({"type": "text", "text": text});
        update(session, json!({"sessionUpdate": "agent_message_chunk", "content": content}))
    }

    fn call_update(id: &str, fields: Value) -> Value {
        let mut fields = fields;
        fields["sessionUpdate"] = "tool_call_update".into();
        fields["toolCallId"] = id.into();
        update("s", fields)
    }

    fn merged(lines: &[Value]) -> Vec<Value> {
        let mut waiting = WaitingLines::default();
        lines.iter().for_each(|line| waiting.push(line.to_string()));
        std::iter::from_fn(|| waiting.pop()).map(|line| serde_json::from_str(&line).unwrap()).collect()
    }

    #[test]
    fn pieces_of_each_session_become_one_text() {
        let lines = [chunk("a", "1 "), chunk("b", "x "), chunk("a", "2 "), chunk("b", "y")];
        assert_eq!(merged(&lines), [chunk("a", "1 2 "), chunk("b", "x y")]);
    }

    #[test]
    fn no_piece_is_moved_across_another_update_or_an_answer() {
        let call = update("a", json!({"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "ls"}));
        let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {"stopReason": "end_turn"}});
        let lines = [chunk("a", "1"), call, chunk("a", "2"), answer, chunk("a", "3")];
        assert_eq!(merged(&lines), lines);
        let mut thought = chunk("a", "2");
        thought["params"]["update"]["sessionUpdate"] = "agent_thought_chunk".into();
        let mut other_message = chunk("a", "3");
        other_message["params"]["update"]["messageId"] = "m2".into();
        let lines = [chunk("a", "1"), thought, chunk("a", "2"), other_message];
        assert_eq!(merged(&lines), lines);
    }

    #[test]
    fn states_of_a_call_become_the_newest() {
        let lines = [
            call_update("c1", json!({"status": "in_progress", "content": ["old"]})),
            call_update("c1", json!({"content": ["new"]})),
            call_update("c2", json!({"status": "completed"})),
        ];
        let newest = call_update("c1", json!({"status": "in_progress", "content": ["new"]}));
        assert_eq!(merged(&lines), [newest, lines[2].clone()]);
    }

    #[test]
    fn a_long_text_takes_in_no_more() {
        let long = "x".repeat(MAX_MERGED_BYTES);
        let lines = [chunk("a", &long), chunk("a", "y")];
        assert_eq!(merged(&lines), lines);
    }

    /// An editor that does not read gets few lines in the end, and the whole text.
    #[tokio::test]
    async fn lines_are_merged_while_the_editor_does_not_read() {
        const PIECES: usize = 10_000;
        let (editor, output): (DuplexStream, DuplexStream) = tokio::io::duplex(1024);
        let (send, lines) = mpsc::unbounded_channel();
        for piece in 0..PIECES {
            send.send(chunk("a", &format!("{piece} ")).to_string()).unwrap();
        }
        drop(send);
        let reading = async {
            let mut lines = BufReader::new(editor).lines();
            let (mut count, mut text) = (0, String::new());
            while let Some(line) = lines.next_line().await.unwrap() {
                let line: Value = serde_json::from_str(&line).unwrap();
                text.push_str(line["params"]["update"]["content"]["text"].as_str().unwrap());
                count += 1;
            }
            (count, text)
        };
        let (written, (count, text)) = tokio::join!(write_lines(lines, output), reading);
        written.unwrap();
        assert_eq!(text, (0..PIECES).map(|piece| format!("{piece} ")).collect::<String>());
        assert!(count <= 2, "{count} lines");
    }

    #[tokio::test]
    async fn a_closed_pipe_is_an_error() {
        let (editor, output) = tokio::io::duplex(1024);
        drop(editor);
        let (send, lines) = mpsc::unbounded_channel();
        send.send("{}".to_owned()).unwrap();
        assert!(write_lines(lines, output).await.is_err());
    }
}
