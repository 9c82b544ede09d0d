-- Schema 15: a session is private to its owner, or shared. Those of today were open to every token and stay so. Rights of
-- tokens over the sessions and runs of others.

ALTER TABLE sessions ADD COLUMN shared INTEGER NOT NULL DEFAULT 0 CHECK (shared IN (0, 1));
UPDATE sessions SET shared = 1;

ALTER TABLE tokens ADD COLUMN read_all INTEGER NOT NULL DEFAULT 0 CHECK (read_all IN (0, 1));
ALTER TABLE tokens ADD COLUMN write_all INTEGER NOT NULL DEFAULT 0 CHECK (write_all IN (0, 1));
ALTER TABLE tokens ADD COLUMN stop_all INTEGER NOT NULL DEFAULT 0 CHECK (stop_all IN (0, 1));
