-- Rises with each change, so that a node which stores its hold late does not replace a newer word of another node.
ALTER TABLE hold ADD COLUMN revision bigint NOT NULL DEFAULT 1;

-- Always empty. A row fills a page, so an insert shows whether the server has room for one more page.
CREATE TABLE room_probe (filler text NOT NULL);
ALTER TABLE room_probe ALTER COLUMN filler SET STORAGE PLAIN;
