//! A chat network in memory: what is said in it is heard as soon as the flow reads it, and what the flow says there is told to the
//! bench with the moment at which it was said.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_surfaces::channels::format::{Form, Markup, Measure, Piece};
use quell_surfaces::channels::seam::{
    Drafts, Ear, Heard, Lost, Manners, MessageId, Network, NotSent, Own, Place, Reactions, Trouble, Typing,
};
use tokio::sync::{Mutex, mpsc};

/// The network.
pub(crate) struct Memory {
    arrivals: Mutex<mpsc::UnboundedReceiver<Arrival>>,
    told: mpsc::UnboundedSender<Told>,
    sent: AtomicU64,
}

/// What a listener reads.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A message.
    Message(Box<Heard>),
    /// The end of a batch: the listener waits until all before it is in the database or refused, as networks do that let their own
    /// copy go then.
    EndOfBatch,
}

/// What happened in the network, and when.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) at: Instant,
    pub(crate) what: What,
}

/// What happened in the network.
#[derive(Debug)]
pub(crate) enum What {
    /// The flow listens.
    Connected,
    /// A batch is in the database or refused.
    Settled,
    /// The flow sent a message.
    Sent { place: Place, text: String },
    /// The flow changed a message.
    Edited,
    /// The flow put a sign on a message.
    Sign(String),
}

impl Memory {
    /// The network, where to put what is said in it, and what happens in it.
    pub(crate) fn new() -> (Self, mpsc::UnboundedSender<Arrival>, mpsc::UnboundedReceiver<Told>) {
        let (letters, arrivals) = mpsc::unbounded_channel();
        let (told, happened) = mpsc::unbounded_channel();
        (Self { arrivals: Mutex::new(arrivals), told, sent: AtomicU64::new(0) }, letters, happened)
    }

    fn tell(&self, what: What) {
        // The bench may have seen what it waits for and be gone.
        let _ = self.told.send(Told { at: Instant::now(), what });
    }
}

impl Network for Memory {
    /// As Telegram wants to be written to.
    fn manners(&self) -> Manners {
        let form = Form { markup: Markup::TelegramHtml, longest: 4096, measure: Measure::Utf16 };
        Manners { form, edit_every: Duration::from_secs(1), typing_every: Duration::from_secs(4) }
    }

    fn listen<'a>(&'a self, ear: &'a dyn Ear) -> BoxFuture<'a, Lost> {
        async move {
            let mut arrivals = self.arrivals.lock().await;
            ear.connected(Own { id: "quell".to_owned(), name: "Quell".to_owned() });
            self.tell(What::Connected);
            while let Some(arrival) = arrivals.recv().await {
                match arrival {
                    Arrival::Message(heard) => ear.hear(*heard),
                    Arrival::EndOfBatch => {
                        ear.settled().await;
                        self.tell(What::Settled);
                    }
                }
            }
            Lost::Connection("the bench is over".to_owned())
        }
        .boxed()
    }

    fn send<'a>(&'a self, place: &'a Place, piece: &'a Piece, _: &'a str) -> BoxFuture<'a, Result<MessageId, NotSent>> {
        self.tell(What::Sent { place: place.clone(), text: piece.plain.clone() });
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        async move { Ok(MessageId(number.to_string())) }.boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Trouble>> {
        async { Ok("memory".to_owned()) }.boxed()
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
}

impl Drafts for Memory {
    fn edit<'a>(&'a self, _: &'a Place, _: &'a MessageId, _: &'a Piece) -> BoxFuture<'a, Result<(), NotSent>> {
        self.tell(What::Edited);
        async { Ok(()) }.boxed()
    }
}

impl Typing for Memory {
    fn show<'a>(&'a self, _: &'a Place) -> BoxFuture<'a, Result<(), NotSent>> {
        async { Ok(()) }.boxed()
    }

    fn hide<'a>(&'a self, _: &'a Place) -> BoxFuture<'a, Result<(), NotSent>> {
        async { Ok(()) }.boxed()
    }
}

impl Reactions for Memory {
    fn add<'a>(&'a self, _: &'a Place, _: &'a MessageId, sign: &'a str) -> BoxFuture<'a, Result<(), NotSent>> {
        self.tell(What::Sign(sign.to_owned()));
        async { Ok(()) }.boxed()
    }

    fn remove<'a>(&'a self, _: &'a Place, _: &'a MessageId, _: &'a str) -> BoxFuture<'a, Result<(), NotSent>> {
        async { Ok(()) }.boxed()
    }
}
