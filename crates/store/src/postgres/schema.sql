-- Schema 1. Texts are compared by their bytes, as in SQLite. A zero byte, which PostgreSQL has not, is encoded
-- (`columns.rs`).

CREATE TABLE sessions (
    key              text COLLATE "C" PRIMARY KEY,
    agent            text COLLATE "C" NOT NULL,
    created_at       text COLLATE "C" NOT NULL,
    last_used_at     text COLLATE "C" NOT NULL,
    -- Order of use without a clock: one more than the highest at each use.
    use_order        bigint NOT NULL,
    -- Turns after the last reset.
    turns            bigint NOT NULL DEFAULT 0,
    -- JSON of the session's own settings; NULL for one that a message created.
    config           text,
    -- Its keys, encrypted.
    secrets          bytea,
    -- RFC 3339, for imported sessions.
    imported_at      text COLLATE "C",
    -- The principal that created or imported it, where known.
    owner            text COLLATE "C",
    -- Whether its own endpoints may have private addresses: that is checked when they are set.
    private_base_url boolean NOT NULL DEFAULT false,
    private_mcp_url  boolean NOT NULL DEFAULT false,
    -- Every token may read it and send to it.
    shared           boolean NOT NULL DEFAULT false
);

CREATE INDEX sessions_by_use ON sessions (use_order);
CREATE INDEX sessions_by_idle_time ON sessions (greatest(last_used_at, coalesce(imported_at, '')), key);

CREATE TABLE runs (
    -- The order of acceptance.
    seq            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id             text COLLATE "C" NOT NULL UNIQUE,
    -- Deferred, because a new session is written after its first run.
    session        text COLLATE "C" NOT NULL REFERENCES sessions (key) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    agent          text COLLATE "C" NOT NULL,
    principal      text COLLATE "C" NOT NULL,
    fingerprint    text NOT NULL,
    state          text NOT NULL CHECK (state IN ('accepted', 'started', 'ended', 'steered')),
    steered_into   text COLLATE "C",
    accepted_at    text COLLATE "C" NOT NULL,
    view           text NOT NULL,
    -- The part of its usage that is in `spend`, so that an end that is stored again counts only what is new.
    counted_input  bigint NOT NULL DEFAULT 0,
    counted_output bigint NOT NULL DEFAULT 0,
    CHECK ((state = 'steered') = (steered_into IS NOT NULL))
);

CREATE INDEX runs_by_session ON runs (session, seq);
CREATE INDEX runs_by_principal ON runs (principal, seq);
CREATE INDEX runs_open ON runs (seq) WHERE state IN ('accepted', 'started');
CREATE INDEX runs_open_by_session ON runs (session) WHERE state IN ('accepted', 'started');

-- A row is a sealed turn or a reset mark.
CREATE TABLE history (
    seq      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session  text COLLATE "C" NOT NULL REFERENCES sessions (key) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    run      text COLLATE "C" UNIQUE REFERENCES runs (id) ON DELETE CASCADE,
    turn     text,
    reset_at text COLLATE "C",
    CHECK ((run IS NULL) = (turn IS NULL)),
    CHECK ((turn IS NULL) <> (reset_at IS NULL))
);

CREATE INDEX history_by_session ON history (session, seq);
CREATE INDEX history_resets ON history (session, seq) WHERE reset_at IS NOT NULL;

CREATE TABLE hold (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    held     boolean NOT NULL,
    reason   text,
    since    text,
    set_by   text
);

CREATE TABLE tokens (
    name            text COLLATE "C" PRIMARY KEY,
    scope           text NOT NULL CHECK (scope IN ('read', 'write', 'admin')),
    created_at      text NOT NULL,
    -- Hash of the secret, hexadecimal.
    sha256          text COLLATE "C" NOT NULL UNIQUE,
    approve         boolean NOT NULL,
    endpoints       boolean NOT NULL,
    read_all        boolean NOT NULL,
    write_all       boolean NOT NULL,
    stop_all        boolean NOT NULL,
    -- Times are RFC 3339. NULL: it never expires, was never rotated.
    expires_at      text,
    rotated_at      text,
    -- Hash of the secret before the last rotation, and the end of that secret.
    previous_sha256 text COLLATE "C",
    previous_until  text
);

-- Lines of live runs, for recovery after a crash. Deleted with the sealed turn.
CREATE TABLE journal (
    run    text COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    number bigint NOT NULL,
    line   text NOT NULL,
    PRIMARY KEY (run, number)
);

-- Number of the last start. A daemon with an older number must not write.
CREATE TABLE boot (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    number   bigint NOT NULL
);

INSERT INTO boot (number) VALUES (0);

-- Webhooks that are not delivered yet.
CREATE TABLE hook_outbox (
    -- The order of delivery.
    number    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    url       text COLLATE "C" NOT NULL,
    -- Id of the event: a receiver gets each event once, and a repeat has the same id.
    id        text COLLATE "C" NOT NULL,
    event     text NOT NULL,
    body      text NOT NULL,
    -- Seconds since 1970.
    queued_at bigint NOT NULL,
    attempts  bigint NOT NULL DEFAULT 0,
    UNIQUE (url, id)
);

CREATE INDEX hook_outbox_url ON hook_outbox (url, number);

CREATE TABLE note_scopes (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind    text NOT NULL CHECK (kind IN ('session', 'agent', 'sender')),
    name    text COLLATE "C" NOT NULL,
    -- The name again if it is a session's, so that its notes are deleted with it.
    session text COLLATE "C" REFERENCES sessions (key) ON DELETE CASCADE,
    CHECK (session IS NOT DISTINCT FROM CASE kind WHEN 'session' THEN name END),
    UNIQUE (kind, name)
);

CREATE INDEX note_scopes_by_session ON note_scopes (session) WHERE session IS NOT NULL;

CREATE TABLE notes (
    -- The order in which they were saved.
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope    bigint NOT NULL REFERENCES note_scopes (id) ON DELETE CASCADE,
    key      text COLLATE "C" NOT NULL,
    category text NOT NULL,
    text     text NOT NULL,
    at       text NOT NULL,
    -- The words that a search finds, with their places.
    words    tsvector NOT NULL,
    UNIQUE (scope, key)
);

CREATE INDEX notes_by_scope ON notes (scope, id);
CREATE INDEX notes_by_word ON notes USING gin (words);

-- Agents that were created at run time.
CREATE TABLE agents (
    id         text COLLATE "C" PRIMARY KEY,
    -- JSON, as in the configuration.
    config     text NOT NULL,
    created_at text NOT NULL,
    created_by text NOT NULL
);

CREATE TABLE audit (
    seq       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        text COLLATE "C" NOT NULL,
    principal text COLLATE "C" NOT NULL,
    surface   text NOT NULL,
    -- Origin of the request, as far as it is known.
    origin    text COLLATE "C",
    action    text COLLATE "C" NOT NULL,
    target    text,
    detail    text
);

CREATE INDEX audit_origins ON audit (action, principal, origin) WHERE origin IS NOT NULL;

CREATE TABLE spend (
    agent  text COLLATE "C" NOT NULL,
    -- UTC, YYYY-MM-DD.
    day    text COLLATE "C" NOT NULL,
    input  bigint NOT NULL,
    output bigint NOT NULL,
    PRIMARY KEY (agent, day)
);

CREATE TABLE page_cookies (
    -- Hash of the cookie's value, hexadecimal.
    sha256          text COLLATE "C" PRIMARY KEY,
    -- Hash of the token that signed it in.
    token           text COLLATE "C" NOT NULL,
    -- Seconds since 1970.
    expires         bigint NOT NULL,
    -- Signed in by a link that only a person had.
    verified_person boolean NOT NULL
);

-- Where each channel continues after a restart, in its network's own format.
CREATE TABLE channel_cursors (
    channel text COLLATE "C" PRIMARY KEY,
    cursor  text NOT NULL
);

-- Replies in chats whose outcome is not sent yet. The next daemon finishes what a killed one left.
CREATE TABLE channel_traces (
    run     text COLLATE "C" PRIMARY KEY,
    -- Number of the start of the daemon that shows it.
    boot    bigint NOT NULL,
    channel text COLLATE "C" NOT NULL,
    -- The following are in the network's own format.
    target  text NOT NULL,
    thread  text,
    asked   text NOT NULL,
    draft   text,
    -- The outcome was sent; reactions may still have to be corrected.
    told    boolean NOT NULL DEFAULT false
);

-- The newest commands of chats that were executed, so that a repeat after a restart does nothing.
CREATE TABLE obeyed_commands (
    number  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    command text COLLATE "C" NOT NULL UNIQUE
);

-- Runs of deleted sessions: their views with the receipts, without texts.
CREATE TABLE receipts (
    run         text COLLATE "C" PRIMARY KEY,
    session     text COLLATE "C" NOT NULL,
    agent       text COLLATE "C" NOT NULL,
    principal   text COLLATE "C" NOT NULL,
    fingerprint text NOT NULL,
    accepted_at text COLLATE "C" NOT NULL,
    deleted_at  text COLLATE "C" NOT NULL,
    view        text NOT NULL
);

CREATE INDEX receipts_by_age ON receipts (deleted_at);
