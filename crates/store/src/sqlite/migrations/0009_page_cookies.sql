-- Schema 9: browsers that are signed in to the page, so that a restart signs nobody out.

CREATE TABLE page_cookies (
    -- Hash of the cookie's value, hexadecimal; the value itself is with the browser alone.
    sha256  TEXT PRIMARY KEY NOT NULL,
    -- Hash of the token that signed it in: a cookie is worth nothing without its token.
    token   TEXT NOT NULL,
    -- Seconds since 1970.
    expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
