-- Schema 1: sessions, their runs and history, the hold, the tokens.
-- A file that has left the house is never edited: a change of the schema is the next file.

CREATE TABLE sessions (
    key          TEXT PRIMARY KEY NOT NULL,
    agent        TEXT NOT NULL,
    created_at   TEXT NOT NULL,
    last_used_at TEXT NOT NULL,
    -- runs.seq of the run accepted last: the order of the list, free of clocks.
    last_run     INTEGER NOT NULL,
    -- Turns after the last reset.
    turns        INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX sessions_by_use ON sessions (last_run);

CREATE TABLE runs (
    -- The order of acceptance.
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    id           TEXT NOT NULL UNIQUE,
    -- Deferred, because the row of a new session is written after the run whose seq it holds.
    session      TEXT NOT NULL REFERENCES sessions (key) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    agent        TEXT NOT NULL,
    principal    TEXT NOT NULL,
    fingerprint  TEXT NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('accepted', 'started', 'ended', 'steered')),
    steered_into TEXT,
    accepted_at  TEXT NOT NULL,
    view         TEXT NOT NULL,
    CHECK ((state = 'steered') = (steered_into IS NOT NULL))
) STRICT;

CREATE INDEX runs_by_session ON runs (session, seq);
CREATE INDEX runs_by_principal ON runs (principal, seq);
CREATE INDEX runs_open ON runs (seq) WHERE state IN ('accepted', 'started');

-- A row is a sealed turn, or the boundary that a reset left.
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
    -- Hexadecimal; the secret itself is nowhere.
    sha256     TEXT NOT NULL UNIQUE
) STRICT;
