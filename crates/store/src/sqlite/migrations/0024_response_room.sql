-- Schema 24: a running total of the room of each owner, so that a request does not sum it.

-- The room that the responses and conversations of an owner take together, counted by the triggers below.
CREATE TABLE response_room (
    owner TEXT PRIMARY KEY NOT NULL,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO response_room (owner, bytes)
SELECT owner, sum(bytes) FROM (
    SELECT owner, bytes FROM responses
    UNION ALL SELECT owner, bytes FROM conversations
    UNION ALL SELECT conversations.owner, items.bytes FROM conversations
        JOIN conversation_items AS items ON items.conversation = conversations.id
) GROUP BY owner;

CREATE TRIGGER response_added AFTER INSERT ON responses BEGIN
    INSERT INTO response_room (owner, bytes) VALUES (new.owner, new.bytes)
    ON CONFLICT (owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER response_changed AFTER UPDATE ON responses BEGIN
    UPDATE response_room SET bytes = bytes + new.bytes - old.bytes WHERE owner = new.owner;
END;

CREATE TRIGGER response_gone AFTER DELETE ON responses BEGIN
    UPDATE response_room SET bytes = bytes - old.bytes WHERE owner = old.owner;
END;

CREATE TRIGGER conversation_added AFTER INSERT ON conversations BEGIN
    INSERT INTO response_room (owner, bytes) VALUES (new.owner, new.bytes)
    ON CONFLICT (owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER conversation_changed AFTER UPDATE ON conversations BEGIN
    UPDATE response_room SET bytes = bytes + new.bytes - old.bytes WHERE owner = new.owner;
END;

-- Before, because its items go with it, and then nothing says whose they were.
CREATE TRIGGER conversation_goes BEFORE DELETE ON conversations BEGIN
    UPDATE response_room SET bytes = bytes
        - (SELECT bytes FROM conversations WHERE id = old.id)
        - (SELECT ifnull(sum(bytes), 0) FROM conversation_items WHERE conversation = old.id)
    WHERE owner = old.owner;
END;

CREATE TRIGGER conversation_item_added AFTER INSERT ON conversation_items BEGIN
    UPDATE response_room SET bytes = bytes + new.bytes
    WHERE owner = (SELECT owner FROM conversations WHERE id = new.conversation);
END;

CREATE TRIGGER conversation_item_gone AFTER DELETE ON conversation_items BEGIN
    UPDATE response_room SET bytes = bytes - old.bytes
    WHERE owner = (SELECT owner FROM conversations WHERE id = old.conversation);
END;
