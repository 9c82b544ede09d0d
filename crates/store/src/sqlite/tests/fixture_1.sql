-- A database of schema 1 as text.
PRAGMA application_id = 1366648172;
PRAGMA user_version = 1;
BEGIN;
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

INSERT INTO runs VALUES
    (1, 'r1', 'agent:main:main', 'main', 'admin', 'f1', 'ended', NULL, '2026-11-20T10:00:00.000000Z', '{"runId":"r1"}'),
    (2, 'r2', 'agent:main:main', 'main', 'admin', 'f2', 'ended', NULL, '2026-11-20T11:01:00.000000Z', '{"runId":"r2"}'),
    (3, 'r3', 'agent:main:main', 'main', 'ci', 'f3', 'steered', 'r2', '2026-11-20T11:02:00.000000Z', '{"runId":"r3"}'),
    (4, 'r4', 'agent:main:main', 'main', 'ci', 'f4', 'started', NULL, '2026-11-20T11:03:00.000000Z', '{"runId":"r4"}');
INSERT INTO sessions VALUES
    ('agent:main:main', 'main', '2026-11-20T10:00:00.000000Z', '2026-11-20T11:03:00.000000Z', 4, 1);
INSERT INTO history VALUES
    (1, 'agent:main:main', 'r1', '{"v":1,"runId":"r1"}', NULL),
    (2, 'agent:main:main', NULL, NULL, '2026-11-20T11:00:00.000000Z'),
    (3, 'agent:main:main', 'r2', '{"v":1,"runId":"r2"}', NULL);
INSERT INTO hold VALUES (1, 1, 'upgrade', '2026-11-20T11:04:00.000000Z', 'admin');
INSERT INTO tokens VALUES
    ('ci', 'write', '2026-11-20T10:00:00.000000Z', '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08');
COMMIT;
