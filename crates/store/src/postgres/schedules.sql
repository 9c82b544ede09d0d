CREATE TABLE schedules (
    id         text COLLATE "C" PRIMARY KEY,
    owner      text COLLATE "C" NOT NULL,
    -- Raised by each change, so that of two at the same time one is refused.
    revision   bigint NOT NULL,
    -- JSON.
    definition text NOT NULL
);
