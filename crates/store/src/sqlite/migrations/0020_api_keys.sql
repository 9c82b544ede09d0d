-- Schema 20: what a token may use, and what its runs have used on each day.

ALTER TABLE tokens ADD COLUMN restrictions TEXT;
ALTER TABLE runs ADD COLUMN counted_cost INTEGER NOT NULL DEFAULT 0;

CREATE TABLE key_spend (
    principal TEXT NOT NULL,
    day       TEXT NOT NULL,
    node      TEXT NOT NULL,
    input     INTEGER NOT NULL,
    output    INTEGER NOT NULL,
    cost      INTEGER NOT NULL,
    PRIMARY KEY (day, principal, node)
) STRICT, WITHOUT ROWID;
