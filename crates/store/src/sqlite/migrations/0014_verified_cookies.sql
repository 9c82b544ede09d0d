-- Schema 14: whether a browser was signed in by a link that only a person had. Nobody knows this of older cookies.

ALTER TABLE page_cookies ADD COLUMN verified_person INTEGER NOT NULL DEFAULT 0 CHECK (verified_person IN (0, 1));
