//! A connection that reads. It is opened by the thread that uses it, so that the start of the daemon does not wait for
//! it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, InterruptHandle};

use super::schema::{self, WalIndex};
use crate::StoreError;

pub(super) struct ReadConnection {
    path: PathBuf,
    index: WalIndex,
    connection: Option<Connection>,
    interrupt: ReadInterrupt,
}

/// Interrupts the statement that a connection runs at the moment. Does nothing while the connection is not open.
#[derive(Clone, Default)]
pub(super) struct ReadInterrupt(Arc<Mutex<Option<InterruptHandle>>>);

impl ReadConnection {
    pub(super) fn new(path: PathBuf, index: WalIndex) -> Self {
        Self { path, index, connection: None, interrupt: ReadInterrupt::default() }
    }

    pub(super) fn interrupt(&self) -> ReadInterrupt {
        self.interrupt.clone()
    }

    /// Opens the connection, unless it is open. After an error the next call tries again.
    pub(super) fn open(&mut self) -> Result<&mut Connection, StoreError> {
        let connection = match self.connection.take() {
            Some(open) => open,
            None => schema::open_reader(&self.path, self.index)?,
        };
        let mut interrupt = self.interrupt.0.lock().unwrap_or_else(PoisonError::into_inner);
        interrupt.get_or_insert_with(|| connection.get_interrupt_handle());
        Ok(self.connection.insert(connection))
    }
}

impl ReadInterrupt {
    pub(super) fn interrupt(&self) {
        if let Some(open) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            open.interrupt();
        }
    }
}
