-- Schema 2: the journal of runs at work, and the number of the daemon's start.

-- What a run has gone through, for the recovery after a crash. Gone with the sealed turn.
CREATE TABLE journal (
    run    TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    line   TEXT NOT NULL,
    PRIMARY KEY (run, number)
) STRICT, WITHOUT ROWID;

-- Rises with every start; whoever holds an older number may write no more.
CREATE TABLE boot (
    only   INTEGER PRIMARY KEY CHECK (only = 1),
    number INTEGER NOT NULL
) STRICT;

INSERT INTO boot (only, number) VALUES (1, 0);
