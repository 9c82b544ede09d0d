-- Schema 7: when a session came in from elsewhere, and the list of who did what.

-- RFC 3339; only of sessions that were imported. Retention counts from here when it is later than their last use.
ALTER TABLE sessions ADD COLUMN imported_at TEXT;

CREATE TABLE audit (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    at        TEXT NOT NULL,
    principal TEXT NOT NULL,
    surface   TEXT NOT NULL,
    -- Where the request came from, as far as it is known.
    origin    TEXT,
    action    TEXT NOT NULL,
    target    TEXT,
    detail    TEXT
) STRICT;
