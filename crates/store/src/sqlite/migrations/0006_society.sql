-- Schema 6: agents that were made at run time.

CREATE TABLE agents (
    id         TEXT PRIMARY KEY NOT NULL,
    -- As it would stand in the configuration, in JSON.
    config     TEXT NOT NULL,
    created_at TEXT NOT NULL,
    created_by TEXT NOT NULL
) STRICT;
