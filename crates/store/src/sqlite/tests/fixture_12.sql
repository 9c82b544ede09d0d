-- A database of schema 12 as text.
PRAGMA application_id = 1366648172;
PRAGMA user_version = 12;
BEGIN;
CREATE TABLE sessions (
    key              TEXT PRIMARY KEY NOT NULL,
    agent            TEXT NOT NULL,
    created_at       TEXT NOT NULL,
    last_used_at     TEXT NOT NULL,
    use_order        INTEGER NOT NULL,
    turns            INTEGER NOT NULL DEFAULT 0,
    config           TEXT,
    secrets          BLOB,
    imported_at      TEXT
) STRICT;

CREATE INDEX sessions_by_use ON sessions (use_order);

CREATE TABLE runs (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT NOT NULL UNIQUE,
    session        TEXT NOT NULL REFERENCES sessions (key) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    agent          TEXT NOT NULL,
    principal      TEXT NOT NULL,
    fingerprint    TEXT NOT NULL,
    state          TEXT NOT NULL CHECK (state IN ('accepted', 'started', 'ended', 'steered')),
    steered_into   TEXT,
    accepted_at    TEXT NOT NULL,
    view           TEXT NOT NULL,
    counted_input  INTEGER NOT NULL DEFAULT 0,
    counted_output INTEGER NOT NULL DEFAULT 0,
    CHECK ((state = 'steered') = (steered_into IS NOT NULL))
) STRICT;

CREATE INDEX runs_by_session ON runs (session, seq);
CREATE INDEX runs_by_principal ON runs (principal, seq);
CREATE INDEX runs_open ON runs (seq) WHERE state IN ('accepted', 'started');

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
    set_by TEXT
) STRICT;

CREATE TABLE tokens (
    name       TEXT PRIMARY KEY NOT NULL,
    scope      TEXT NOT NULL CHECK (scope IN ('read', 'write', 'admin')),
    created_at TEXT NOT NULL,
    sha256     TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE journal (
    run    TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    line   TEXT NOT NULL,
    PRIMARY KEY (run, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE boot (
    only   INTEGER PRIMARY KEY CHECK (only = 1),
    number INTEGER NOT NULL
) STRICT;

INSERT INTO boot (only, number) VALUES (1, 7);

CREATE TABLE hook_outbox (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    url       TEXT NOT NULL,
    id        TEXT NOT NULL,
    event     TEXT NOT NULL,
    body      TEXT NOT NULL,
    queued_at INTEGER NOT NULL,
    attempts  INTEGER NOT NULL DEFAULT 0,
    UNIQUE (url, id)
) STRICT;

CREATE INDEX hook_outbox_url ON hook_outbox (url, number);

CREATE TABLE note_scopes (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    kind    TEXT NOT NULL CHECK (kind IN ('session', 'agent', 'sender')),
    name    TEXT NOT NULL,
    session TEXT REFERENCES sessions (key) ON DELETE CASCADE,
    CHECK (session IS CASE kind WHEN 'session' THEN name END),
    UNIQUE (kind, name)
) STRICT;

CREATE INDEX note_scopes_by_session ON note_scopes (session) WHERE session IS NOT NULL;

CREATE TABLE notes (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    scope    INTEGER NOT NULL REFERENCES note_scopes (id) ON DELETE CASCADE,
    key      TEXT NOT NULL,
    category TEXT NOT NULL,
    text     TEXT NOT NULL,
    at       TEXT NOT NULL,
    UNIQUE (scope, key)
) STRICT;

CREATE INDEX notes_by_scope ON notes (scope, id);

CREATE VIRTUAL TABLE note_words USING fts5 (
    scope, words, content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 2'
);

CREATE TRIGGER notes_gone AFTER DELETE ON notes BEGIN
    DELETE FROM note_words WHERE rowid = old.id;
END;

CREATE TABLE agents (
    id         TEXT PRIMARY KEY NOT NULL,
    config     TEXT NOT NULL,
    created_at TEXT NOT NULL,
    created_by TEXT NOT NULL
) STRICT;

CREATE TABLE audit (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    at        TEXT NOT NULL,
    principal TEXT NOT NULL,
    surface   TEXT NOT NULL,
    origin    TEXT,
    action    TEXT NOT NULL,
    target    TEXT,
    detail    TEXT
) STRICT;

CREATE TABLE spend (
    agent  TEXT NOT NULL,
    day    TEXT NOT NULL,
    input  INTEGER NOT NULL,
    output INTEGER NOT NULL,
    PRIMARY KEY (agent, day)
) STRICT, WITHOUT ROWID;

CREATE TABLE page_cookies (
    sha256  TEXT PRIMARY KEY NOT NULL,
    token   TEXT NOT NULL,
    expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE channel_cursors (
    channel TEXT PRIMARY KEY,
    cursor  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE channel_traces (
    run     TEXT PRIMARY KEY,
    boot    INTEGER NOT NULL,
    channel TEXT NOT NULL,
    target  TEXT NOT NULL,
    thread  TEXT,
    asked   TEXT NOT NULL,
    draft   TEXT,
    told    INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE obeyed_commands (
    number  INTEGER PRIMARY KEY,
    command TEXT NOT NULL UNIQUE
) STRICT;

INSERT INTO runs VALUES
    (1, 'r1', 'agent:main:main', 'main', 'admin', 'f1', 'ended', NULL, '2026-11-20T10:00:00.000000Z', '{"runId":"r1"}', 5, 2),
    (2, 'r2', 'agent:main:main', 'main', 'ci', 'f2', 'ended', NULL, '2026-11-20T11:01:00.000000Z', '{"runId":"r2"}', 0, 0),
    (3, 'r3', 'agent:main:main', 'main', 'ci', 'f3', 'steered', 'r2', '2026-11-20T11:02:00.000000Z', '{"runId":"r3"}', 0, 0),
    (4, 'r4', 'agent:main:main', 'main', 'ci', 'f4', 'started', NULL, '2026-11-20T11:03:00.000000Z', '{"runId":"r4"}', 0, 0);
INSERT INTO sessions VALUES
    ('agent:main:main', 'main', '2026-11-20T10:00:00.000000Z', '2026-11-20T11:03:00.000000Z', 2, 1, NULL, NULL, NULL),
    ('imported', 'main', '2026-11-20T09:00:00.000000Z', '2026-11-20T09:00:00.000000Z', 1, 0, NULL, NULL, '2026-11-20T12:00:00.000000Z');
INSERT INTO history VALUES
    (1, 'agent:main:main', 'r1', '{"v":1,"runId":"r1"}', NULL),
    (2, 'agent:main:main', NULL, NULL, '2026-11-20T11:00:00.000000Z'),
    (3, 'agent:main:main', 'r2', '{"v":1,"runId":"r2"}', NULL);
INSERT INTO journal VALUES ('r4', 0, 'a line');
INSERT INTO hold VALUES (1, 1, 'upgrade', '2026-11-20T11:04:00.000000Z', 'admin');
INSERT INTO tokens VALUES
    ('ci', 'write', '2026-11-20T10:00:00.000000Z', '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08');
INSERT INTO note_scopes VALUES (1, 'session', 'agent:main:main', 'agent:main:main');
INSERT INTO notes VALUES (1, 1, 'tea', 'fact', 'likes green tea', '2026-11-20T11:00:00.000000Z');
INSERT INTO note_words (rowid, scope, words) VALUES (1, '1', 'tea likes green tea');
INSERT INTO spend VALUES ('main', '2026-11-20', 5, 2);
INSERT INTO channel_cursors VALUES ('tg', '77');
COMMIT;
