-- Responses of the Responses API that clients read again.
CREATE TABLE responses (
    id           text COLLATE "C" PRIMARY KEY,
    owner        text COLLATE "C" NOT NULL,
    run          text COLLATE "C" NOT NULL,
    -- The response that it continues.
    previous     text COLLATE "C",
    conversation text COLLATE "C",
    background   boolean NOT NULL,
    -- Number of the start of the daemon that has its run.
    boot         bigint NOT NULL,
    -- True: it never changes any more.
    ended        boolean NOT NULL,
    -- Seconds since 1970.
    created_at   bigint NOT NULL,
    expires_at   bigint NOT NULL,
    -- JSON: the object, the items of the request, the events of its stream.
    response     text NOT NULL,
    input        text NOT NULL,
    events       text
);

CREATE INDEX responses_by_expiry ON responses (expires_at);

CREATE TABLE conversations (
    id         text COLLATE "C" PRIMARY KEY,
    owner      text COLLATE "C" NOT NULL,
    -- Seconds since 1970.
    created_at bigint NOT NULL,
    -- JSON.
    metadata   text NOT NULL
);

CREATE TABLE conversation_items (
    -- The order in which they were said.
    seq          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    conversation text COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    id           text NOT NULL,
    -- JSON.
    item         text NOT NULL
);

CREATE INDEX conversation_items_by_conversation ON conversation_items (conversation, seq);
