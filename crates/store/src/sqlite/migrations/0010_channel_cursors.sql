-- Where each channel goes on listening after a restart, in its network's own words.
CREATE TABLE channel_cursors (
    channel TEXT PRIMARY KEY,
    cursor  TEXT NOT NULL
) STRICT, WITHOUT ROWID;
