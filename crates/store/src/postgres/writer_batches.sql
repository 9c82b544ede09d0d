-- The newest batch that each start has committed: its own word on a commit whose answer was lost. The id of a transaction
-- cannot tell, because a server that has crashed gives the id of a lost transaction to another one.
CREATE TABLE writer_batches (writer bigint PRIMARY KEY, batch bigint NOT NULL) WITH (fillfactor = 50);
