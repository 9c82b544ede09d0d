-- What a token may use, as JSON. NULL: all that its scopes allow.
ALTER TABLE tokens ADD COLUMN restrictions text;

-- The part of its cost that is in `key_spend`.
ALTER TABLE runs ADD COLUMN counted_cost bigint NOT NULL DEFAULT 0;

-- What the runs of each token have used.
CREATE TABLE key_spend (
    -- The name of the token.
    principal text COLLATE "C" NOT NULL,
    -- UTC, YYYY-MM-DD.
    day       text COLLATE "C" NOT NULL,
    -- Empty for a daemon without a cluster.
    node      text COLLATE "C" NOT NULL,
    input     bigint NOT NULL,
    output    bigint NOT NULL,
    -- In billionths of the currency of the prices.
    cost      bigint NOT NULL,
    PRIMARY KEY (day, principal, node)
);
