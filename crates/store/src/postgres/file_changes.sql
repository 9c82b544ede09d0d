-- Files as they were before the file tools of a run changed them.
CREATE TABLE file_changes (
    -- The order of the changes.
    seq           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run           text COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    -- The root of the tree of runs.
    tree          text COLLATE "C" NOT NULL,
    -- The runs from the root to this one, one a line.
    lineage       text COLLATE "C" NOT NULL,
    workdir       text NOT NULL,
    -- Relative to the workdir, or absolute outside of it.
    path          text NOT NULL,
    owner         bigint,
    at            text COLLATE "C" NOT NULL,
    -- Hashes in hexadecimal. NULL: there is no file.
    before_sha256 text,
    before_mode   bigint,
    -- NULL: not kept.
    content       bytea,
    after_sha256  text,
    undone_at     text,
    CHECK ((before_sha256 IS NULL) = (before_mode IS NULL))
);

CREATE INDEX file_changes_by_run ON file_changes (run);
CREATE INDEX file_changes_by_tree ON file_changes (tree, seq);
