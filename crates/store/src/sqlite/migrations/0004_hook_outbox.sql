-- Schema 4: webhooks that have not been delivered yet.

CREATE TABLE hook_outbox (
    -- The order in which they are delivered.
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    url       TEXT NOT NULL,
    -- The event's id: the same event goes to one receiver once, and a repeat has the same id.
    id        TEXT NOT NULL,
    event     TEXT NOT NULL,
    body      TEXT NOT NULL,
    -- Seconds since 1970.
    queued_at INTEGER NOT NULL,
    attempts  INTEGER NOT NULL DEFAULT 0,
    UNIQUE (url, id)
) STRICT;

CREATE INDEX hook_outbox_url ON hook_outbox (url, number);
