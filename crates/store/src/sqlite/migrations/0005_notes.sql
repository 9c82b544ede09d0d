-- Schema 5: what is remembered, and the words by which it is found.

CREATE TABLE note_scopes (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    kind    TEXT NOT NULL CHECK (kind IN ('session', 'agent', 'sender')),
    name    TEXT NOT NULL,
    -- The name once more where it is a session's, so that its notes go with it.
    session TEXT REFERENCES sessions (key) ON DELETE CASCADE,
    CHECK (session IS CASE kind WHEN 'session' THEN name END),
    UNIQUE (kind, name)
) STRICT;

CREATE INDEX note_scopes_by_session ON note_scopes (session) WHERE session IS NOT NULL;

CREATE TABLE notes (
    -- The order in which they were remembered.
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    scope    INTEGER NOT NULL REFERENCES note_scopes (id) ON DELETE CASCADE,
    key      TEXT NOT NULL,
    category TEXT NOT NULL,
    text     TEXT NOT NULL,
    at       TEXT NOT NULL,
    UNIQUE (scope, key)
) STRICT;

CREATE INDEX notes_by_scope ON notes (scope, id);

-- The words of each note under its id, without their text: that is in notes, written otherwise. `scope` is the number of the
-- note's scope as a word, so that a search reads only the words of one scope, however many others there are.
CREATE VIRTUAL TABLE note_words USING fts5 (
    scope, words, content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 2'
);

-- However a note goes, its words go in the same transaction.
CREATE TRIGGER notes_gone AFTER DELETE ON notes BEGIN
    DELETE FROM note_words WHERE rowid = old.id;
END;
