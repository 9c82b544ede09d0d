//! An IRC user: a plain client that keeps every line that it reads.

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::IrcServer;
use crate::fake_server::SharedState;
use crate::or_fail::OrFail as _;

/// A line that a user received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IrcLine {
    /// The nick, or the server's name.
    pub from: String,
    /// `PRIVMSG`, `JOIN`, `366`, ...
    pub command: String,
    /// Parameters before the last; for a message the channel or nick that it was sent to.
    pub words: Vec<String>,
    /// The last parameter.
    pub text: String,
}

/// A connected user. Dropping it closes the connection.
#[derive(Debug)]
pub struct IrcTestUser {
    nick: String,
    received: SharedState<Vec<IrcLine>>,
    outgoing: mpsc::UnboundedSender<String>,
    _tasks: JoinSet<()>,
}

impl IrcTestUser {
    /// Connects with a free nick.
    pub async fn connect(server: &IrcServer, nick: &str) -> Self {
        let stream = TcpStream::connect(server.address()).await.or_fail(format_args!("{nick} cannot connect"));
        let (reader, writer) = stream.into_split();
        let read = SharedState::default();
        let (say, said) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(write_loop(writer, said));
        tasks.spawn(read_loop(reader, read.clone(), say.clone()));
        let person = Self { nick: nick.to_owned(), received: read, outgoing: say, _tasks: tasks };
        if let Some(password) = server.password() {
            person.send_raw(&format!("PASS {password}"));
        }
        person.send_raw(&format!("NICK {nick}"));
        person.send_raw(&format!("USER {nick} 0 * :a person"));
        person.wait_for("a welcome", |lines| lines.iter().any(|line| line.command == "376")).await;
        person
    }

    /// Joins a channel, and returns when it is in it.
    ///
    /// # Cancel safety
    /// Dropping it does not withdraw the JOIN.
    pub async fn join(&self, room: &str) {
        let is_end = |line: &&IrcLine| line.command == "366" && line.words.last().is_some_and(|word| word == room);
        let before = self.lines().iter().filter(is_end).count();
        self.send_raw(&format!("JOIN {room}"));
        self.wait_for("the room", |lines| lines.iter().filter(is_end).count() > before).await;
    }

    /// Waits until a user is seen joining a channel.
    pub async fn wait_join(&self, nick: &str, room: &str) {
        let joins = |line: &IrcLine| line.command == "JOIN" && line.from == nick && line.text == room;
        self.wait_for("somebody to join", |lines| lines.iter().any(joins)).await;
    }

    /// Sends a message to a channel or a user.
    pub fn send_message(&self, target: &str, text: &str) {
        self.send_raw(&format!("PRIVMSG {target} :{text}"));
    }

    pub fn send_raw(&self, line: &str) {
        // A closed connection is noticed by the next wait for an answer.
        let _ = self.outgoing.send(format!("{line}\r\n"));
    }

    pub fn lines(&self) -> Vec<IrcLine> {
        self.received.state()
    }

    /// Waits until it has received this many messages from a user; returns their texts.
    pub async fn wait_messages_from(&self, nick: &str, count: usize) -> Vec<String> {
        let lines = self.wait_for("messages", |lines| texts_of(lines, nick).len() >= count).await;
        texts_of(&lines, nick)
    }

    /// Waits until the received lines fulfil a condition.
    pub async fn wait_for(&self, what: &str, condition: impl Fn(&[IrcLine]) -> bool) -> Vec<IrcLine> {
        self.received.wait_for(&format!("{what} for {}", self.nick), |lines| condition(lines)).await
    }
}

fn texts_of(lines: &[IrcLine], nick: &str) -> Vec<String> {
    let said = lines.iter().filter(|line| line.command == "PRIVMSG" && line.from == nick);
    said.map(|line| line.text.clone()).collect()
}

async fn write_loop(mut writer: OwnedWriteHalf, mut said: mpsc::UnboundedReceiver<String>) {
    while let Some(line) = said.recv().await {
        if writer.write_all(line.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read_loop(reader: OwnedReadHalf, read: SharedState<Vec<IrcLine>>, say: mpsc::UnboundedSender<String>) {
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let line = parse_line(&line);
        if line.command == "PING" {
            let _ = say.send(format!("PONG :{}\r\n", line.text));
        }
        read.update(|lines| lines.push(line));
    }
}

fn parse_line(line: &str) -> IrcLine {
    let (from, rest) = match line.strip_prefix(':') {
        Some(rest) => rest.split_once(' ').unwrap_or((rest, "")),
        None => ("", line),
    };
    let (head, trailing) = match rest.split_once(" :") {
        Some((head, trailing)) => (head, Some(trailing.to_owned())),
        None => (rest, None),
    };
    let mut words: Vec<String> = head.split_whitespace().map(str::to_owned).collect();
    let command = if words.is_empty() { String::new() } else { words.remove(0) };
    let text = trailing.or_else(|| words.pop()).unwrap_or_default();
    let from = from.split('!').next().unwrap_or_default().to_owned();
    IrcLine { from, command, words, text }
}
