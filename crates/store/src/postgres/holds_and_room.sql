-- Rises with each change, so that a node which stores its hold late does not replace a newer word of another node.
ALTER TABLE hold ADD COLUMN revision bigint NOT NULL DEFAULT 1;

-- Has no row. A row fills a page, so an insert after a TRUNCATE, which begins a new file, shows whether the server has
-- room for one more page; both are rolled back.
CREATE TABLE room_probe (filler text NOT NULL);
ALTER TABLE room_probe ALTER COLUMN filler SET STORAGE PLAIN;
