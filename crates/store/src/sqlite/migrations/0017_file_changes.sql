-- Files as they were before the file tools of a run changed them.
CREATE TABLE file_changes (
    -- The order of the changes.
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    run           TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    -- The root of the tree of runs.
    tree          TEXT NOT NULL,
    -- The runs from the root to this one, one a line.
    lineage       TEXT NOT NULL,
    workdir       TEXT NOT NULL,
    -- Relative to the workdir, or absolute outside of it.
    path          TEXT NOT NULL,
    owner         INTEGER,
    at            TEXT NOT NULL,
    -- Hashes in hexadecimal. NULL: there is no file.
    before_sha256 TEXT,
    before_mode   INTEGER,
    -- NULL: not kept.
    content       BLOB,
    after_sha256  TEXT,
    undone_at     TEXT,
    CHECK ((before_sha256 IS NULL) = (before_mode IS NULL))
) STRICT;

CREATE INDEX file_changes_by_run ON file_changes (run);
CREATE INDEX file_changes_by_tree ON file_changes (tree, seq);
