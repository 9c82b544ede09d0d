-- Commands of chats that have acted, the newest last: told again after a restart, they act no more.
CREATE TABLE obeyed_commands (
    number  INTEGER PRIMARY KEY,
    command TEXT NOT NULL UNIQUE
) STRICT;
