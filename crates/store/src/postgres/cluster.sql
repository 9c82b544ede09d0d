-- Several daemons on one database: memberships of nodes with their leases, and which node a session belongs to.

-- True once a daemon has opened the database as a node of a cluster; false again after one that is not.
ALTER TABLE boot ADD COLUMN cluster boolean NOT NULL DEFAULT false;

-- Memberships that are not settled yet. The epoch is the number of a start, see `boot`.
CREATE TABLE nodes (
    epoch      bigint PRIMARY KEY,
    name       text COLLATE "C" NOT NULL,
    -- Identifies the data directory: a later start with it proves that the earlier daemon is dead.
    directory  text COLLATE "C" NOT NULL,
    version    text NOT NULL,
    joined_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    renewed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    -- From then on the membership writes nothing and is not renewed.
    fenced     boolean NOT NULL DEFAULT false,
    -- The membership that seals the runs of this one.
    settler    bigint,
    -- JSON, what the node tells about itself.
    report     text NOT NULL DEFAULT '{}'
);

-- Sessions that are live on a node.
CREATE TABLE session_nodes (
    session text COLLATE "C" PRIMARY KEY,
    epoch   bigint NOT NULL REFERENCES nodes (epoch) ON DELETE CASCADE
);

CREATE INDEX session_nodes_by_epoch ON session_nodes (epoch);

-- The node that had a session last: its workdir is there.
CREATE TABLE session_homes (
    session text COLLATE "C" PRIMARY KEY,
    node    text COLLATE "C" NOT NULL
);

-- Work that one node does for all, such as listening to a chat network. The lease of a duty is shorter than that of a
-- node. A row stays when nobody has the duty, so that its epoch rises.
CREATE TABLE node_duties (
    name       text COLLATE "C" PRIMARY KEY,
    -- Rises with each holder.
    epoch      bigint NOT NULL,
    -- The membership that has the duty until the lease ends, or had it last.
    holder     bigint NOT NULL,
    expires_at timestamptz NOT NULL
);

-- Stops that a node has not carried out yet.
CREATE TABLE node_stops (
    number       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    epoch        bigint NOT NULL REFERENCES nodes (epoch) ON DELETE CASCADE,
    -- JSON.
    stop         text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX node_stops_by_epoch ON node_stops (epoch);

-- Letters between nodes, where the message bus does not carry them. They are lost with the server.
CREATE UNLOGGED TABLE node_letters (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node   text COLLATE "C" NOT NULL,
    letter bytea NOT NULL,
    sent_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX node_letters_by_node ON node_letters (node, number);

-- Counts the changes of what each node has in memory.
CREATE TABLE changes (
    topic  text COLLATE "C" PRIMARY KEY,
    number bigint NOT NULL DEFAULT 0
);

INSERT INTO changes (topic) VALUES ('tokens'), ('agents'), ('hold'), ('sharing');

CREATE FUNCTION quell_count_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE changes SET number = number + 1 WHERE topic = TG_ARGV[0];
    PERFORM pg_notify('quell', '*');
    RETURN NULL;
END $$;

CREATE TRIGGER count_change AFTER INSERT OR UPDATE OR DELETE ON tokens
    FOR EACH ROW EXECUTE FUNCTION quell_count_change('tokens');
CREATE TRIGGER count_change AFTER INSERT OR UPDATE OR DELETE ON page_cookies
    FOR EACH ROW EXECUTE FUNCTION quell_count_change('tokens');
CREATE TRIGGER count_change AFTER INSERT OR UPDATE OR DELETE ON agents
    FOR EACH ROW EXECUTE FUNCTION quell_count_change('agents');
CREATE TRIGGER count_change AFTER INSERT OR UPDATE OR DELETE ON hold
    FOR EACH ROW EXECUTE FUNCTION quell_count_change('hold');
CREATE TRIGGER count_change AFTER UPDATE OF shared, owner OR DELETE ON sessions
    FOR EACH ROW EXECUTE FUNCTION quell_count_change('sharing');
