-- Receivers of the notifications of runs.
CREATE TABLE push_targets (
    -- The order of the targets.
    seq     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run     text COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    owner   text COLLATE "C" NOT NULL,
    id      text COLLATE "C" NOT NULL,
    -- Where it is, with its secrets, encrypted.
    sealed  bytea NOT NULL,
    -- Number of the start of the daemon that notifies it.
    boot    bigint NOT NULL,
    -- True: it got the end of the run, or was given up.
    settled boolean NOT NULL,
    UNIQUE (run, owner, id)
);

CREATE INDEX push_targets_by_owner ON push_targets (owner);
CREATE INDEX push_targets_open ON push_targets (seq) WHERE NOT settled;
