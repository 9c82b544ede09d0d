-- Schema 18: schedules.

CREATE TABLE schedules (
    id         TEXT PRIMARY KEY NOT NULL,
    owner      TEXT NOT NULL,
    -- Raised by each change, so that of two at the same time one is refused.
    revision   INTEGER NOT NULL,
    -- JSON.
    definition TEXT NOT NULL
) STRICT;
