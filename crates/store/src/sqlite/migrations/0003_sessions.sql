-- Schema 3: sessions that are made without a message, and what they are configured with.

-- The order of use, free of clocks: one more than the highest at each use.
ALTER TABLE sessions RENAME COLUMN last_run TO use_order;
-- JSON of what the session says itself; NULL for one that a message made.
ALTER TABLE sessions ADD COLUMN config TEXT;
-- Its keys, sealed with the key in the data directory.
ALTER TABLE sessions ADD COLUMN secrets BLOB;
