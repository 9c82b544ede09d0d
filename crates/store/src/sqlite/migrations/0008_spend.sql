-- Schema 8: what agents spend in a day.

CREATE TABLE spend (
    agent  TEXT NOT NULL,
    -- UTC, YYYY-MM-DD.
    day    TEXT NOT NULL,
    input  INTEGER NOT NULL,
    output INTEGER NOT NULL,
    PRIMARY KEY (agent, day)
) STRICT, WITHOUT ROWID;

-- What of a run is in the table above, so that an end that is stored again counts only what is new.
ALTER TABLE runs ADD COLUMN counted_input INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN counted_output INTEGER NOT NULL DEFAULT 0;
