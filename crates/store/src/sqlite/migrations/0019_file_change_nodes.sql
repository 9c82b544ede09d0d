-- Schema 19: the node of a cluster that has a changed file.
ALTER TABLE file_changes ADD COLUMN node TEXT;
