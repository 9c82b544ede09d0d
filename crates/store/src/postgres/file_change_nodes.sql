-- The node of a cluster that has a changed file.
ALTER TABLE file_changes ADD COLUMN node text COLLATE "C";
