-- Runs whose end is not told in their chats yet, and what may be shown of them there: a sign on the message that was asked, a
-- draft. What a daemon left here that was killed is put right by the next one.
CREATE TABLE channel_traces (
    run     TEXT PRIMARY KEY,
    -- The daemon that shows it.
    boot    INTEGER NOT NULL,
    channel TEXT NOT NULL,
    -- All of these in the network's own words.
    target  TEXT NOT NULL,
    thread  TEXT,
    asked   TEXT NOT NULL,
    draft   TEXT,
    -- 1: what became of it is said; signs may be left to be put right.
    told    INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
