-- Rises with each change, so that a hold which is stored late does not replace a newer word.
ALTER TABLE hold ADD COLUMN revision INTEGER NOT NULL DEFAULT 1;
