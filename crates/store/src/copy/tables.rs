//! The tables that are copied, with their columns. Both schemas have them; a column that is added to one is added here.

use crate::{Note, StoreError};

#[derive(Debug)]
pub(crate) struct CopiedTable {
    pub(crate) name: &'static str,
    /// The first one is numbered by the database in a [`TableKind::Numbered`] table.
    pub(crate) columns: &'static [CopiedColumn],
    pub(crate) kind: TableKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableKind {
    Plain,
    Numbered,
    /// Numbered, and with a search index of its words, which each store makes by its own rules.
    Notes,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct CopiedColumn {
    pub(crate) name: &'static str,
    pub(crate) kind: ColumnKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    /// An id, a time, a word of a list: PostgreSQL stores it as it is.
    Id,
    /// A text that may contain any character: PostgreSQL stores it encoded.
    Text,
    Number,
    Flag,
    Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CopiedValue {
    Null,
    Number(i64),
    Flag(bool),
    Text(String),
    Bytes(Vec<u8>),
}

impl CopiedValue {
    /// In bytes, more or less.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Null | Self::Number(_) | Self::Flag(_) => 8,
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

impl CopiedTable {
    /// The names of its columns, for a statement.
    pub(crate) fn column_list(&self) -> String {
        self.columns.iter().map(|column| column.name).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn number_column(&self) -> Option<&'static str> {
        self.columns.first().filter(|_| self.kind != TableKind::Plain).map(|column| column.name)
    }

    pub(crate) fn has_words(&self) -> bool {
        self.kind == TableKind::Notes
    }

    /// The text of a note whose words a search finds; `None` for a row of another table.
    pub(crate) fn searchable_text(&self, row: &[CopiedValue]) -> Result<Option<String>, StoreError> {
        use CopiedValue::Text;
        match (self.kind, row) {
            (TableKind::Notes, [_, _, Text(key), Text(category), Text(text), Text(at)]) => {
                let [key, category, text, at] = [key, category, text, at].map(Clone::clone);
                Ok(Some(Note { key, category, text, at }.searchable_text()))
            }
            (TableKind::Notes, _) => Err(StoreError::Corrupt("a note without a text".to_owned())),
            (TableKind::Plain | TableKind::Numbered, _) => Ok(None),
        }
    }
}

const fn id(name: &'static str) -> CopiedColumn {
    CopiedColumn { name, kind: ColumnKind::Id }
}

const fn text(name: &'static str) -> CopiedColumn {
    CopiedColumn { name, kind: ColumnKind::Text }
}

const fn number(name: &'static str) -> CopiedColumn {
    CopiedColumn { name, kind: ColumnKind::Number }
}

const fn flag(name: &'static str) -> CopiedColumn {
    CopiedColumn { name, kind: ColumnKind::Flag }
}

const fn plain(name: &'static str, columns: &'static [CopiedColumn]) -> CopiedTable {
    CopiedTable { name, columns, kind: TableKind::Plain }
}

const fn numbered(name: &'static str, columns: &'static [CopiedColumn]) -> CopiedTable {
    CopiedTable { name, columns, kind: TableKind::Numbered }
}

/// All tables but `boot`, each after those that it refers to.
pub(crate) const TABLES: &[CopiedTable] = &[
    plain(
        "sessions",
        &[
            id("key"),
            id("agent"),
            id("created_at"),
            id("last_used_at"),
            number("use_order"),
            number("turns"),
            text("config"),
            CopiedColumn { name: "secrets", kind: ColumnKind::Bytes },
            id("imported_at"),
            id("owner"),
            flag("private_base_url"),
            flag("private_mcp_url"),
            flag("shared"),
        ],
    ),
    numbered(
        "runs",
        &[
            number("seq"),
            id("id"),
            id("session"),
            id("agent"),
            id("principal"),
            text("fingerprint"),
            id("state"),
            id("steered_into"),
            id("accepted_at"),
            text("view"),
            number("counted_input"),
            number("counted_output"),
            number("counted_cost"),
        ],
    ),
    numbered("history", &[number("seq"), id("session"), id("run"), text("turn"), id("reset_at")]),
    plain("hold", &[flag("held"), text("reason"), id("since"), id("set_by"), number("revision")]),
    plain(
        "tokens",
        &[
            text("name"),
            id("scope"),
            id("created_at"),
            id("sha256"),
            flag("approve"),
            flag("endpoints"),
            flag("read_all"),
            flag("write_all"),
            flag("stop_all"),
            id("expires_at"),
            id("rotated_at"),
            id("previous_sha256"),
            id("previous_until"),
            id("restrictions"),
        ],
    ),
    plain("journal", &[id("run"), number("number"), text("line")]),
    numbered(
        "file_changes",
        &[
            number("seq"),
            id("run"),
            id("tree"),
            id("lineage"),
            text("workdir"),
            text("path"),
            number("owner"),
            id("at"),
            id("before_sha256"),
            number("before_mode"),
            CopiedColumn { name: "content", kind: ColumnKind::Bytes },
            id("after_sha256"),
            id("undone_at"),
            id("node"),
        ],
    ),
    numbered(
        "hook_outbox",
        &[
            number("number"),
            text("url"),
            text("id"),
            id("event"),
            text("body"),
            number("queued_at"),
            number("attempts"),
        ],
    ),
    numbered("note_scopes", &[number("id"), id("kind"), text("name"), id("session")]),
    CopiedTable {
        name: "notes",
        columns: &[number("id"), number("scope"), text("key"), text("category"), text("text"), id("at")],
        kind: TableKind::Notes,
    },
    plain("agents", &[id("id"), text("config"), id("created_at"), id("created_by")]),
    plain("schedules", &[id("id"), id("owner"), number("revision"), text("definition")]),
    numbered(
        "audit",
        &[
            number("seq"),
            id("at"),
            id("principal"),
            id("surface"),
            text("origin"),
            id("action"),
            text("target"),
            text("detail"),
        ],
    ),
    plain(
        "responses",
        &[
            id("id"),
            id("owner"),
            id("run"),
            id("previous"),
            id("conversation"),
            flag("background"),
            number("boot"),
            flag("ended"),
            number("created_at"),
            number("expires_at"),
            text("response"),
            text("input"),
            text("events"),
        ],
    ),
    plain("conversations", &[id("id"), id("owner"), number("created_at"), text("metadata")]),
    numbered("conversation_items", &[number("seq"), id("conversation"), text("id"), text("item")]),
    numbered(
        "push_targets",
        &[
            number("seq"),
            id("run"),
            id("owner"),
            text("id"),
            CopiedColumn { name: "sealed", kind: ColumnKind::Bytes },
            number("boot"),
            flag("settled"),
        ],
    ),
    plain("spend", &[id("agent"), id("day"), number("input"), number("output")]),
    plain("key_spend", &[id("principal"), id("day"), id("node"), number("input"), number("output"), number("cost")]),
    plain("page_cookies", &[id("sha256"), id("token"), number("expires"), flag("verified_person")]),
    plain("channel_cursors", &[text("channel"), text("cursor")]),
    plain(
        "channel_traces",
        &[
            id("run"),
            number("boot"),
            text("channel"),
            text("target"),
            text("thread"),
            text("asked"),
            text("draft"),
            flag("told"),
        ],
    ),
    numbered("obeyed_commands", &[number("number"), text("command")]),
    plain(
        "receipts",
        &[
            id("run"),
            id("session"),
            id("agent"),
            id("principal"),
            text("fingerprint"),
            id("accepted_at"),
            id("deleted_at"),
            text("view"),
        ],
    ),
];
