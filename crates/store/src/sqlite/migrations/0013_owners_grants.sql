-- Schema 13: who began a session, what tokens may do besides their scope, what came from elsewhere, and receipts that outlive
-- their sessions.

-- The principal that began or imported it; NULL where nobody knows.
ALTER TABLE sessions ADD COLUMN owner TEXT;
UPDATE sessions SET owner = (SELECT principal FROM runs WHERE runs.session = sessions.key ORDER BY seq LIMIT 1)
WHERE imported_at IS NULL;
-- Whether its own endpoints may be at private addresses: who may bring such ones is asked when they are brought.
ALTER TABLE sessions ADD COLUMN private_base_url INTEGER NOT NULL DEFAULT 0 CHECK (private_base_url IN (0, 1));
ALTER TABLE sessions ADD COLUMN private_mcp_url INTEGER NOT NULL DEFAULT 0 CHECK (private_mcp_url IN (0, 1));

ALTER TABLE tokens ADD COLUMN approve INTEGER NOT NULL DEFAULT 0 CHECK (approve IN (0, 1));
ALTER TABLE tokens ADD COLUMN endpoints INTEGER NOT NULL DEFAULT 0 CHECK (endpoints IN (0, 1));

-- What is left of the runs of a deleted session: the view with the receipt, without texts.
CREATE TABLE receipts (
    run         TEXT PRIMARY KEY NOT NULL,
    session     TEXT NOT NULL,
    agent       TEXT NOT NULL,
    principal   TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    accepted_at TEXT NOT NULL,
    deleted_at  TEXT NOT NULL,
    view        TEXT NOT NULL
) STRICT;

CREATE INDEX receipts_by_age ON receipts (deleted_at);
