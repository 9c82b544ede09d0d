-- What each node has spent, so that nodes do not wait for each other's rows. `spend` keeps what was there before, and what
-- a copy has brought.
CREATE TABLE node_spend (
    agent  text COLLATE "C" NOT NULL,
    -- UTC, YYYY-MM-DD.
    day    text COLLATE "C" NOT NULL,
    -- Empty for a daemon without a cluster.
    node   text COLLATE "C" NOT NULL,
    input  bigint NOT NULL,
    output bigint NOT NULL,
    PRIMARY KEY (day, agent, node)
);

CREATE VIEW total_spend AS
    SELECT agent, day, sum(input)::bigint AS input, sum(output)::bigint AS output
    FROM (SELECT agent, day, input, output FROM spend
          UNION ALL SELECT agent, day, input, output FROM node_spend) AS parts
    GROUP BY agent, day;
