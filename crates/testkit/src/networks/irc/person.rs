//! A person in a room: a plain client that keeps all it reads.

use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{IrcServer, PATIENCE};

/// A line that a person read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IrcLine {
    /// The nick, or the server's name.
    pub from: String,
    /// `PRIVMSG`, `JOIN`, `366`, ...
    pub command: String,
    /// What stands before the text; for a message the room or nick that it was sent to.
    pub words: Vec<String>,
    /// The last parameter.
    pub text: String,
}

/// Somebody with a client. Dropping it closes the connection.
#[derive(Debug)]
pub struct IrcPerson {
    nick: String,
    read: Arc<watch::Sender<Vec<IrcLine>>>,
    say: mpsc::UnboundedSender<String>,
    _tasks: JoinSet<()>,
}

impl IrcPerson {
    /// Connects under a nick that nobody has.
    ///
    /// # Cancel safety
    /// Safe: the connection is closed.
    ///
    /// # Panics
    /// When the server does not take it.
    pub async fn connect(server: &IrcServer, nick: &str) -> Self {
        let stream = match TcpStream::connect(server.address()).await {
            Ok(stream) => stream,
            Err(error) => panic!("{nick} cannot connect: {error}"),
        };
        let (reader, writer) = stream.into_split();
        let read = Arc::new(watch::Sender::new(Vec::new()));
        let (say, said) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(write(writer, said));
        tasks.spawn(keep(reader, Arc::clone(&read), say.clone()));
        let person = Self { nick: nick.to_owned(), read, say, _tasks: tasks };
        if let Some(password) = server.password() {
            person.raw(&format!("PASS {password}"));
        }
        person.raw(&format!("NICK {nick}"));
        person.raw(&format!("USER {nick} 0 * :a person"));
        person.wait_for("a welcome", |lines| lines.iter().any(|line| line.command == "376")).await;
        person
    }

    /// The nick.
    #[must_use]
    pub fn nick(&self) -> &str {
        &self.nick
    }

    /// Enters a room, and returns when it is in it.
    ///
    /// # Cancel safety
    /// The wish to enter stands.
    ///
    /// # Panics
    /// When it is not let in.
    pub async fn join(&self, room: &str) {
        let is_end = |line: &&IrcLine| line.command == "366" && line.words.last().is_some_and(|word| word == room);
        let before = self.lines().iter().filter(is_end).count();
        self.raw(&format!("JOIN {room}"));
        self.wait_for("the room", |lines| lines.iter().filter(is_end).count() > before).await;
    }

    /// Waits until somebody is seen to come into a room.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When nobody of that nick comes in time.
    pub async fn sees_join(&self, nick: &str, room: &str) {
        let joins = |line: &IrcLine| line.command == "JOIN" && line.from == nick && line.text == room;
        self.wait_for("somebody to join", |lines| lines.iter().any(joins)).await;
    }

    /// Says a line in a room or to somebody.
    pub fn say(&self, target: &str, text: &str) {
        self.raw(&format!("PRIVMSG {target} :{text}"));
    }

    /// Sends a line as it is.
    pub fn raw(&self, line: &str) {
        // A connection that is closed is seen by who waits for an answer.
        let _ = self.say.send(format!("{line}\r\n"));
    }

    /// All that it read so far.
    #[must_use]
    pub fn lines(&self) -> Vec<IrcLine> {
        self.read.borrow().clone()
    }

    /// What it read of somebody: the texts of messages.
    #[must_use]
    pub fn heard_of(&self, nick: &str) -> Vec<String> {
        texts_of(&self.read.borrow(), nick)
    }

    /// Waits until it has read so many messages of somebody, and returns their texts.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When they do not come in time.
    pub async fn hears(&self, nick: &str, count: usize) -> Vec<String> {
        let lines = self.wait_for("messages", |lines| texts_of(lines, nick).len() >= count).await;
        texts_of(&lines, nick)
    }

    /// Waits until what it read fulfils a condition.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not in time.
    pub async fn wait_for(&self, what: &str, condition: impl Fn(&[IrcLine]) -> bool) -> Vec<IrcLine> {
        let mut read = self.read.subscribe();
        match timeout(PATIENCE, read.wait_for(|lines| condition(lines))).await {
            Ok(Ok(lines)) => lines.clone(),
            _ => panic!("{} waits for {what}: {:#?}", self.nick, self.lines()),
        }
    }
}

fn texts_of(lines: &[IrcLine], nick: &str) -> Vec<String> {
    let said = lines.iter().filter(|line| line.command == "PRIVMSG" && line.from == nick);
    said.map(|line| line.text.clone()).collect()
}

async fn write(mut writer: OwnedWriteHalf, mut said: mpsc::UnboundedReceiver<String>) {
    while let Some(line) = said.recv().await {
        if writer.write_all(line.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn keep(reader: OwnedReadHalf, read: Arc<watch::Sender<Vec<IrcLine>>>, say: mpsc::UnboundedSender<String>) {
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let line = parsed(&line);
        if line.command == "PING" {
            let _ = say.send(format!("PONG :{}\r\n", line.text));
        }
        read.send_modify(|lines| lines.push(line));
    }
}

pub(super) fn parsed(line: &str) -> IrcLine {
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
