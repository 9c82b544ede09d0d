//! A network on paper: what people write is handed to the ear at once, what the flow writes is kept, and each call can be made to
//! fail, to hang, or to lose its answer.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_protocol::Attachment;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::PATIENCE;
use crate::channels::format::{Form, Markup, Measure, Piece};
use crate::channels::seam::{
    Drafts, Ear, Files, Heard, Lost, Manners, MessageId, Network, NotSent, Own, Place, Reactions, Trouble, Typing,
};

/// The network.
pub(super) struct Paper {
    page: watch::Sender<Page>,
    letters: mpsc::Sender<Heard>,
    arrivals: tokio::sync::Mutex<mpsc::Receiver<Heard>>,
    faults: watch::Sender<VecDeque<(Call, Fault)>>,
    numbers: Mutex<u64>,
}

/// What stands on it.
#[derive(Debug, Clone, Default)]
pub(super) struct Page {
    pub(super) connected: usize,
    pub(super) written: Vec<Written>,
    /// The message that each key was sent with.
    pub(super) keys: HashMap<String, String>,
    /// Signs on people's messages, with whether each was taken off again.
    pub(super) signs: Vec<(String, String, bool)>,
    pub(super) typing: Vec<(Place, bool)>,
    /// Files that are being fetched and never come.
    pub(super) fetching: usize,
    /// Messages that were handed to the ear.
    pub(super) told: usize,
}

/// One message of the account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) id: String,
    pub(super) place: Place,
    pub(super) text: String,
    pub(super) edits: usize,
}

/// A call of the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Send,
    Edit,
}

/// What goes wrong with one call.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    Fails(NotSent),
    /// It has its effect, and its answer is lost.
    LosesAnswer,
    /// The same, where sending again with the same key shows it once.
    LosesAnswerOnce,
    /// Nothing happens until the caller gives up.
    Hangs,
}

impl Page {
    pub(super) fn texts(&self) -> Vec<&str> {
        self.written.iter().map(|written| written.text.as_str()).collect()
    }

    pub(super) fn says(&self, part: &str) -> bool {
        self.written.iter().any(|written| written.text.contains(part))
    }

    /// The signs that are on a message now.
    pub(super) fn signs_on(&self, message: &str) -> Vec<&str> {
        let on = |(id, _, off): &&(String, String, bool)| id == message && !off;
        self.signs.iter().filter(on).map(|(_, sign, _)| sign.as_str()).collect()
    }

    pub(super) fn is_typing(&self) -> bool {
        self.typing.last().is_some_and(|(_, shown)| *shown)
    }
}

impl Paper {
    pub(super) fn new() -> Self {
        let (letters, arrivals) = mpsc::channel(100_000);
        let arrivals = tokio::sync::Mutex::new(arrivals);
        Self {
            page: watch::Sender::default(),
            letters,
            arrivals,
            faults: watch::Sender::default(),
            numbers: Mutex::default(),
        }
    }

    /// The same network for the next daemon: with what stands on it.
    pub(super) fn after(page: Page) -> Self {
        let paper = Self::new();
        *paper.numbers.lock().unwrap() = 1000;
        paper.page.send_replace(Page { connected: 0, told: 0, ..page });
        paper
    }

    pub(super) async fn connected(&self) {
        self.wait_for("the connection", |page| page.connected > 0).await;
    }

    pub(super) fn page(&self) -> Page {
        self.page.borrow().clone()
    }

    pub(super) async fn wait_for(&self, what: &str, condition: impl Fn(&Page) -> bool) -> Page {
        let mut page = self.page.subscribe();
        match timeout(PATIENCE, page.wait_for(condition)).await {
            Ok(Ok(page)) => page.clone(),
            _ => panic!("{what} did not come: {:#?}", self.page()),
        }
    }

    /// The next call of this kind goes wrong.
    pub(super) fn fault(&self, call: Call, fault: Fault) {
        self.faults.send_modify(|faults| faults.push_back((call, fault)));
    }

    /// Waits until everything has gone wrong that was to.
    pub(super) async fn faults_are_over(&self) {
        let mut faults = self.faults.subscribe();
        let over = timeout(PATIENCE, faults.wait_for(VecDeque::is_empty)).await;
        assert!(over.is_ok(), "a fault was never met");
    }

    /// Somebody writes in the room. Answers the id of the message.
    pub(super) fn say(&self, sender: &str, text: &str) -> String {
        self.say_in("room", sender, text)
    }

    pub(super) fn say_in(&self, room: &str, sender: &str, text: &str) -> String {
        let heard = self.heard(room, sender, text);
        let id = heard.id.clone();
        self.tell(heard);
        id
    }

    pub(super) fn tell(&self, heard: Heard) {
        self.letters.try_send(heard).unwrap();
    }

    pub(super) fn heard(&self, room: &str, sender: &str, text: &str) -> Heard {
        let id = format!("m{}", self.number());
        Heard {
            message: MessageId(id.clone()),
            id,
            sender: sender.to_owned(),
            sender_name: None,
            place: Place { target: room.to_owned(), thread: None },
            scope_id: None,
            text: text.to_owned(),
            addressed: true,
            group: false,
            attachments: Vec::new(),
        }
    }

    fn number(&self) -> u64 {
        let mut numbers = self.numbers.lock().unwrap();
        *numbers += 1;
        *numbers
    }

    fn next_fault(&self, call: Call) -> Option<Fault> {
        let mut next = None;
        self.faults.send_if_modified(|faults| {
            let at = faults.iter().position(|(of, _)| *of == call);
            next = at.and_then(|at| faults.remove(at)).map(|(_, fault)| fault);
            next.is_some()
        });
        next
    }

    /// Does something, or goes wrong as the test wants.
    async fn act<T>(&self, call: Call, act: impl FnOnce(&mut Page) -> T) -> Result<T, NotSent> {
        let lost = || NotSent::Unknown { why: "the answer was lost".to_owned(), repeatable: false };
        let mut act = Some(act);
        let mut done = || {
            let mut result = None;
            self.page.send_modify(|page| result = act.take().map(|act| act(page)));
            result
        };
        match self.next_fault(call) {
            None => done().ok_or_else(lost),
            Some(Fault::Fails(error)) => Err(error),
            Some(Fault::Hangs) => std::future::pending().await,
            Some(Fault::LosesAnswer) => {
                done();
                Err(lost())
            }
            Some(Fault::LosesAnswerOnce) => {
                done();
                Err(NotSent::Unknown { why: "the answer was lost".to_owned(), repeatable: true })
            }
        }
    }
}

impl Network for Paper {
    fn manners(&self) -> Manners {
        let form = Form { markup: Markup::Markdown, longest: 1000, measure: Measure::Chars };
        Manners { form, edit_every: Duration::from_millis(10), typing_every: Duration::from_secs(4) }
    }

    fn listen<'a>(&'a self, ear: &'a dyn Ear) -> BoxFuture<'a, Lost> {
        async move {
            let mut arrivals = self.arrivals.lock().await;
            ear.connected(Own { id: "quell".to_owned(), name: "Quell".to_owned() });
            self.page.send_modify(|page| page.connected += 1);
            while let Some(heard) = arrivals.recv().await {
                ear.hear(heard);
                self.page.send_modify(|page| page.told += 1);
            }
            Lost::Connection("the paper is gone".to_owned())
        }
        .boxed()
    }

    fn send<'a>(
        &'a self,
        place: &'a Place,
        piece: &'a Piece,
        key: &'a str,
    ) -> BoxFuture<'a, Result<MessageId, NotSent>> {
        async move {
            if let Some(known) = self.page.borrow().keys.get(key) {
                return Ok(MessageId(known.clone()));
            }
            let id = format!("q{}", self.number());
            let written = Written { id: id.clone(), place: place.clone(), text: piece.plain.clone(), edits: 0 };
            let keyed = (key.to_owned(), id.clone());
            self.act(Call::Send, |page| {
                page.written.push(written);
                page.keys.extend([keyed]);
            })
            .await?;
            Ok(MessageId(id))
        }
        .boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Trouble>> {
        async { Ok("paper".to_owned()) }.boxed()
    }

    fn drafts(&self) -> Option<&dyn Drafts> {
        Some(self)
    }

    fn typing(&self) -> Option<&dyn Typing> {
        Some(self)
    }

    fn reactions(&self) -> Option<&dyn Reactions> {
        Some(self)
    }

    fn files(&self) -> Option<&dyn Files> {
        Some(self)
    }
}

impl Drafts for Paper {
    fn edit<'a>(
        &'a self,
        _place: &'a Place,
        message: &'a MessageId,
        piece: &'a Piece,
    ) -> BoxFuture<'a, Result<(), NotSent>> {
        self.act(Call::Edit, |page| {
            if let Some(written) = page.written.iter_mut().find(|written| written.id == message.0) {
                written.text.clone_from(&piece.plain);
                written.edits += 1;
            }
        })
        .boxed()
    }
}

impl Typing for Paper {
    fn show<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), NotSent>> {
        self.page.send_modify(|page| page.typing.push((place.clone(), true)));
        async { Ok(()) }.boxed()
    }

    fn hide<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), NotSent>> {
        self.page.send_modify(|page| page.typing.push((place.clone(), false)));
        async { Ok(()) }.boxed()
    }
}

impl Reactions for Paper {
    fn add<'a>(
        &'a self,
        _place: &'a Place,
        message: &'a MessageId,
        sign: &'a str,
    ) -> BoxFuture<'a, Result<(), NotSent>> {
        async move {
            // As slow as a real one: whoever takes it off too early does not find it.
            tokio::task::yield_now().await;
            self.page.send_modify(|page| page.signs.push((message.0.clone(), sign.to_owned(), false)));
            Ok(())
        }
        .boxed()
    }

    fn remove<'a>(
        &'a self,
        _place: &'a Place,
        message: &'a MessageId,
        sign: &'a str,
    ) -> BoxFuture<'a, Result<(), NotSent>> {
        self.page.send_modify(|page| {
            let mut on = page.signs.iter_mut();
            if let Some((_, _, off)) = on.find(|(id, there, off)| *id == message.0 && there == sign && !off) {
                *off = true;
            }
        });
        async { Ok(()) }.boxed()
    }
}

impl Files for Paper {
    fn fetch<'a>(&'a self, attachment: &'a Attachment, _most: u64) -> BoxFuture<'a, Result<Vec<u8>, Trouble>> {
        async move {
            match attachment.source.as_str() {
                "slow" => {
                    self.page.send_modify(|page| page.fetching += 1);
                    let _given_up = Fetching(self);
                    std::future::pending().await
                }
                "gone" => Err(Trouble("it is gone".to_owned())),
                source => Ok(source.as_bytes().to_vec()),
            }
        }
        .boxed()
    }

    fn send<'a>(
        &'a self,
        place: &'a Place,
        attachment: &'a Attachment,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, Result<MessageId, NotSent>> {
        async move {
            let text = format!("file {}: {}", attachment.source, String::from_utf8_lossy(&bytes));
            let id = format!("q{}", self.number());
            let written = Written { id: id.clone(), place: place.clone(), text, edits: 0 };
            self.act(Call::Send, |page| page.written.push(written)).await?;
            Ok(MessageId(id))
        }
        .boxed()
    }
}

/// A file that is being fetched.
struct Fetching<'a>(&'a Paper);

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        self.0.page.send_modify(|page| page.fetching -= 1);
    }
}

/// A network that refuses for certain, for now.
pub(super) fn busy(after: Duration) -> Fault {
    Fault::Fails(NotSent::Undelivered { why: "too many requests".to_owned(), after: Some(after) })
}

pub(super) fn refused() -> Fault {
    Fault::Fails(NotSent::Refused { why: "blocked".to_owned() })
}
