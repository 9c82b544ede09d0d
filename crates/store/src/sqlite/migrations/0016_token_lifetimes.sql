-- Schema 16: tokens expire and are rotated. Those of today never expire.

ALTER TABLE tokens ADD COLUMN expires_at TEXT;
ALTER TABLE tokens ADD COLUMN rotated_at TEXT;
ALTER TABLE tokens ADD COLUMN previous_sha256 TEXT;
ALTER TABLE tokens ADD COLUMN previous_until TEXT;
