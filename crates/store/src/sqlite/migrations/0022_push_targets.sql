-- Schema 22: receivers of the notifications of runs.

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
