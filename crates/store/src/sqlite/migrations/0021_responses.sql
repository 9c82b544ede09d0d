-- Schema 21: responses and conversations of the Responses API.

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
    events       TEXT
) STRICT;

CREATE INDEX responses_by_expiry ON responses (expires_at);

CREATE TABLE conversations (
    id         TEXT PRIMARY KEY NOT NULL,
    owner      TEXT NOT NULL,
    -- Seconds since 1970.
    created_at INTEGER NOT NULL,
    -- JSON.
    metadata   TEXT NOT NULL
) STRICT;

CREATE TABLE conversation_items (
    -- The order in which they were said.
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    id           TEXT NOT NULL,
    -- JSON.
    item         TEXT NOT NULL
) STRICT;

CREATE INDEX conversation_items_by_conversation ON conversation_items (conversation, seq);
