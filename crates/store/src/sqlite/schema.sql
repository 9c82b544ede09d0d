-- The schema of a new database, version 21. `migrations/` brings databases of older versions to the same one.

CREATE TABLE sessions (
    key              TEXT PRIMARY KEY NOT NULL,
    agent            TEXT NOT NULL,
    created_at       TEXT NOT NULL,
    last_used_at     TEXT NOT NULL,
    -- Order of use without a clock: one more than the highest at each use.
    use_order        INTEGER NOT NULL,
    -- Turns after the last reset.
    turns            INTEGER NOT NULL DEFAULT 0,
    -- JSON of the session's own settings; NULL for one that a message created.
    config           TEXT,
    -- Its keys, encrypted with the key in the data directory.
    secrets          BLOB,
    -- RFC 3339, for imported sessions.
    imported_at      TEXT,
    -- The principal that created or imported it, where known.
    owner            TEXT,
    -- Whether its own endpoints may have private addresses: that is checked when they are set.
    private_base_url INTEGER NOT NULL DEFAULT 0 CHECK (private_base_url IN (0, 1)),
    private_mcp_url  INTEGER NOT NULL DEFAULT 0 CHECK (private_mcp_url IN (0, 1)),
    -- 1: every token may read it and send to it; 0: its owner, and tokens with rights over all sessions.
    shared           INTEGER NOT NULL DEFAULT 0 CHECK (shared IN (0, 1))
) STRICT;

CREATE INDEX sessions_by_use ON sessions (use_order);

CREATE TABLE runs (
    -- The order of acceptance.
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT NOT NULL UNIQUE,
    -- Deferred, because a new session is written after its first run.
    session        TEXT NOT NULL REFERENCES sessions (key) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    agent          TEXT NOT NULL,
    principal      TEXT NOT NULL,
    fingerprint    TEXT NOT NULL,
    state          TEXT NOT NULL CHECK (state IN ('accepted', 'started', 'ended', 'steered')),
    steered_into   TEXT,
    accepted_at    TEXT NOT NULL,
    view           TEXT NOT NULL,
    -- The part of its usage that is in `spend`, so that an end that is stored again counts only what is new.
    counted_input  INTEGER NOT NULL DEFAULT 0,
    counted_output INTEGER NOT NULL DEFAULT 0,
    -- The part of its cost that is in `key_spend`.
    counted_cost   INTEGER NOT NULL DEFAULT 0,
    CHECK ((state = 'steered') = (steered_into IS NOT NULL))
) STRICT;

CREATE INDEX runs_by_session ON runs (session, seq);
CREATE INDEX runs_by_principal ON runs (principal, seq);
CREATE INDEX runs_open ON runs (seq) WHERE state IN ('accepted', 'started');

-- A row is a sealed turn or a reset mark.
CREATE TABLE history (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    session  TEXT NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    run      TEXT UNIQUE REFERENCES runs (id) ON DELETE CASCADE,
    turn     TEXT,
    reset_at TEXT,
    CHECK ((run IS NULL) = (turn IS NULL)),
    CHECK ((turn IS NULL) <> (reset_at IS NULL))
) STRICT;

CREATE INDEX history_by_session ON history (session, seq);
CREATE INDEX history_resets ON history (session, seq) WHERE reset_at IS NOT NULL;

CREATE TABLE hold (
    only   INTEGER PRIMARY KEY CHECK (only = 1),
    held   INTEGER NOT NULL CHECK (held IN (0, 1)),
    reason TEXT,
    since  TEXT,
    set_by TEXT,
    -- Rises with each change, so that a hold which is stored late does not replace a newer word.
    revision INTEGER NOT NULL DEFAULT 1
) STRICT;

CREATE TABLE tokens (
    name       TEXT PRIMARY KEY NOT NULL,
    scope      TEXT NOT NULL CHECK (scope IN ('read', 'write', 'admin')),
    created_at TEXT NOT NULL,
    -- Hash of the secret, hexadecimal.
    sha256     TEXT NOT NULL UNIQUE,
    approve    INTEGER NOT NULL DEFAULT 0 CHECK (approve IN (0, 1)),
    endpoints  INTEGER NOT NULL DEFAULT 0 CHECK (endpoints IN (0, 1)),
    read_all   INTEGER NOT NULL DEFAULT 0 CHECK (read_all IN (0, 1)),
    write_all  INTEGER NOT NULL DEFAULT 0 CHECK (write_all IN (0, 1)),
    stop_all   INTEGER NOT NULL DEFAULT 0 CHECK (stop_all IN (0, 1)),
    -- Times are RFC 3339. NULL: it never expires, was never rotated.
    expires_at TEXT,
    rotated_at TEXT,
    -- Hash of the secret before the last rotation, and the end of that secret.
    previous_sha256 TEXT,
    previous_until  TEXT,
    -- What it may use, as JSON. NULL: all that its scopes allow.
    restrictions    TEXT
) STRICT;

-- Lines of live runs, for recovery after a crash. Deleted with the sealed turn.
CREATE TABLE journal (
    run    TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    line   TEXT NOT NULL,
    PRIMARY KEY (run, number)
) STRICT, WITHOUT ROWID;

-- Number of the last start. A daemon with an older number must not write.
CREATE TABLE boot (
    only   INTEGER PRIMARY KEY CHECK (only = 1),
    number INTEGER NOT NULL
) STRICT;

INSERT INTO boot (only, number) VALUES (1, 0);

-- Webhooks that are not delivered yet.
CREATE TABLE hook_outbox (
    -- The order of delivery.
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    url       TEXT NOT NULL,
    -- Id of the event: a receiver gets each event once, and a repeat has the same id.
    id        TEXT NOT NULL,
    event     TEXT NOT NULL,
    body      TEXT NOT NULL,
    -- Seconds since 1970.
    queued_at INTEGER NOT NULL,
    attempts  INTEGER NOT NULL DEFAULT 0,
    UNIQUE (url, id)
) STRICT;

CREATE INDEX hook_outbox_url ON hook_outbox (url, number);

CREATE TABLE note_scopes (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    kind    TEXT NOT NULL CHECK (kind IN ('session', 'agent', 'sender')),
    name    TEXT NOT NULL,
    -- The name again if it is a session's, so that its notes are deleted with it.
    session TEXT REFERENCES sessions (key) ON DELETE CASCADE,
    CHECK (session IS CASE kind WHEN 'session' THEN name END),
    UNIQUE (kind, name)
) STRICT;

CREATE INDEX note_scopes_by_session ON note_scopes (session) WHERE session IS NOT NULL;

CREATE TABLE notes (
    -- The order in which they were saved.
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    scope    INTEGER NOT NULL REFERENCES note_scopes (id) ON DELETE CASCADE,
    key      TEXT NOT NULL,
    category TEXT NOT NULL,
    text     TEXT NOT NULL,
    at       TEXT NOT NULL,
    UNIQUE (scope, key)
) STRICT;

CREATE INDEX notes_by_scope ON notes (scope, id);

-- The words of each note under its id, without the text. `scope` is the number of the note's scope as a word, so that
-- a search reads only the words of one scope.
CREATE VIRTUAL TABLE note_words USING fts5 (
    scope, words, content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 2'
);

-- Every deletion of a note deletes its words.
CREATE TRIGGER notes_gone AFTER DELETE ON notes BEGIN
    DELETE FROM note_words WHERE rowid = old.id;
END;

-- Agents that were created at run time.
CREATE TABLE agents (
    id         TEXT PRIMARY KEY NOT NULL,
    -- JSON, as in the configuration.
    config     TEXT NOT NULL,
    created_at TEXT NOT NULL,
    created_by TEXT NOT NULL
) STRICT;

CREATE TABLE schedules (
    id         TEXT PRIMARY KEY NOT NULL,
    owner      TEXT NOT NULL,
    -- Raised by each change, so that of two at the same time one is refused.
    revision   INTEGER NOT NULL,
    -- JSON.
    definition TEXT NOT NULL
) STRICT;

CREATE TABLE audit (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    at        TEXT NOT NULL,
    principal TEXT NOT NULL,
    surface   TEXT NOT NULL,
    -- Origin of the request, as far as it is known.
    origin    TEXT,
    action    TEXT NOT NULL,
    target    TEXT,
    detail    TEXT
) STRICT;

CREATE TABLE spend (
    agent  TEXT NOT NULL,
    -- UTC, YYYY-MM-DD.
    day    TEXT NOT NULL,
    input  INTEGER NOT NULL,
    output INTEGER NOT NULL,
    PRIMARY KEY (agent, day)
) STRICT, WITHOUT ROWID;

-- What the runs of each token have used.
CREATE TABLE key_spend (
    -- The name of the token.
    principal TEXT NOT NULL,
    -- UTC, YYYY-MM-DD.
    day       TEXT NOT NULL,
    -- The node of a cluster that has counted it; empty here.
    node      TEXT NOT NULL,
    input     INTEGER NOT NULL,
    output    INTEGER NOT NULL,
    -- In billionths of the currency of the prices.
    cost      INTEGER NOT NULL,
    PRIMARY KEY (day, principal, node)
) STRICT, WITHOUT ROWID;

CREATE TABLE page_cookies (
    -- Hash of the cookie's value, hexadecimal.
    sha256  TEXT PRIMARY KEY NOT NULL,
    -- Hash of the token that signed it in.
    token   TEXT NOT NULL,
    -- Seconds since 1970.
    expires INTEGER NOT NULL,
    -- 1: signed in by a link that only a person had.
    verified_person INTEGER NOT NULL DEFAULT 0 CHECK (verified_person IN (0, 1))
) STRICT, WITHOUT ROWID;

-- Where each channel continues after a restart, in its network's own format.
CREATE TABLE channel_cursors (
    channel TEXT PRIMARY KEY,
    cursor  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Replies in chats whose outcome is not sent yet. The next daemon finishes what a killed one left.
CREATE TABLE channel_traces (
    run     TEXT PRIMARY KEY,
    -- Number of the start of the daemon that shows it.
    boot    INTEGER NOT NULL,
    channel TEXT NOT NULL,
    -- The following are in the network's own format.
    target  TEXT NOT NULL,
    thread  TEXT,
    asked   TEXT NOT NULL,
    draft   TEXT,
    -- 1: the outcome was sent; reactions may still have to be corrected.
    told    INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- The newest commands of chats that were executed, so that a repeat after a restart does nothing.
CREATE TABLE obeyed_commands (
    number  INTEGER PRIMARY KEY,
    command TEXT NOT NULL UNIQUE
) STRICT;

-- Runs of deleted sessions: their views with the receipts, without texts.
CREATE TABLE receipts (
    run         TEXT PRIMARY KEY NOT NULL,
    session     TEXT NOT NULL,
    agent       TEXT NOT NULL,
    principal   TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    accepted_at TEXT NOT NULL,
    deleted_at  TEXT NOT NULL,
    view        TEXT NOT NULL
) STRICT;

CREATE INDEX receipts_by_age ON receipts (deleted_at);

-- Files as they were before the file tools of a run changed them.
CREATE TABLE file_changes (
    -- The order of the changes.
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    run           TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    -- The root of the tree of runs.
    tree          TEXT NOT NULL,
    -- The runs from the root to this one, one a line.
    lineage       TEXT NOT NULL,
    workdir       TEXT NOT NULL,
    -- Relative to the workdir, or absolute outside of it.
    path          TEXT NOT NULL,
    owner         INTEGER,
    at            TEXT NOT NULL,
    -- Hashes in hexadecimal. NULL: there is no file.
    before_sha256 TEXT,
    before_mode   INTEGER,
    -- NULL: not kept.
    content       BLOB,
    after_sha256  TEXT,
    undone_at     TEXT,
    -- The node of a cluster that has the file.
    node          TEXT,
    CHECK ((before_sha256 IS NULL) = (before_mode IS NULL))
) STRICT;

CREATE INDEX file_changes_by_run ON file_changes (run);
CREATE INDEX file_changes_by_tree ON file_changes (tree, seq);

-- Responses of the Responses API that clients read again.
CREATE TABLE responses (
    id           TEXT PRIMARY KEY NOT NULL,
    owner        TEXT NOT NULL,
    run          TEXT NOT NULL,
    -- The response that it continues.
    previous     TEXT,
    conversation TEXT,
    background   INTEGER NOT NULL CHECK (background IN (0, 1)),
    -- Number of the start of the daemon that has its run.
    boot         INTEGER NOT NULL,
    -- 1: it never changes any more.
    ended        INTEGER NOT NULL CHECK (ended IN (0, 1)),
    -- Seconds since 1970.
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    -- JSON: the object, the items of the request, the events of its stream.
    response     TEXT NOT NULL,
    input        TEXT NOT NULL,
    events       TEXT,
    -- The room that it takes, with that of its indices.
    bytes        INTEGER AS (500 + octet_length(response) + octet_length(input) + ifnull(octet_length(events), 0))
) STRICT;

CREATE INDEX responses_by_expiry ON responses (expires_at);

CREATE INDEX responses_by_owner ON responses (owner, bytes);

CREATE INDEX responses_in_progress ON responses (conversation) WHERE ended = 0;

CREATE TABLE conversations (
    id         TEXT PRIMARY KEY NOT NULL,
    owner      TEXT NOT NULL,
    -- Seconds since 1970.
    created_at INTEGER NOT NULL,
    -- JSON.
    metadata   TEXT NOT NULL,
    bytes      INTEGER AS (500 + octet_length(metadata))
) STRICT;

CREATE INDEX conversations_by_owner ON conversations (owner, bytes);

CREATE TABLE conversation_items (
    -- The order in which they were said.
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    id           TEXT NOT NULL,
    -- JSON.
    item         TEXT NOT NULL,
    bytes        INTEGER AS (200 + octet_length(id) + octet_length(item))
) STRICT;

CREATE INDEX conversation_items_by_conversation ON conversation_items (conversation, seq);

CREATE INDEX conversation_items_by_bytes ON conversation_items (conversation, bytes);

-- Receivers of the notifications of runs.
CREATE TABLE push_targets (
    -- The order of the targets.
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    run     TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    owner   TEXT NOT NULL,
    id      TEXT NOT NULL,
    -- Where it is, with its secrets, encrypted.
    sealed  BLOB NOT NULL,
    -- Number of the start of the daemon that notifies it.
    boot    INTEGER NOT NULL,
    -- 1: it got the end of the run, or was given up.
    settled INTEGER NOT NULL CHECK (settled IN (0, 1)),
    UNIQUE (run, owner, id)
) STRICT;

CREATE INDEX push_targets_by_owner ON push_targets (owner);
CREATE INDEX push_targets_open ON push_targets (seq) WHERE settled = 0;
