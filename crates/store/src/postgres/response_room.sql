-- The room that the responses and conversations of an owner take together, counted by the triggers below.
CREATE TABLE response_room (
    owner text COLLATE "C" PRIMARY KEY,
    bytes bigint NOT NULL
);

INSERT INTO response_room (owner, bytes)
SELECT owner, sum(bytes)::bigint FROM (
    SELECT owner, bytes FROM responses
    UNION ALL SELECT owner, bytes FROM conversations
    UNION ALL SELECT conversations.owner, items.bytes FROM conversations
        JOIN conversation_items AS items ON items.conversation = conversations.id
) AS stored GROUP BY owner;

CREATE FUNCTION quell_count_room() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO response_room AS room (owner, bytes) VALUES (NEW.owner, NEW.bytes)
        ON CONFLICT (owner) DO UPDATE SET bytes = room.bytes + excluded.bytes;
    ELSIF TG_OP = 'UPDATE' THEN
        UPDATE response_room SET bytes = bytes + NEW.bytes - OLD.bytes WHERE owner = NEW.owner;
    ELSE
        UPDATE response_room SET bytes = bytes - OLD.bytes WHERE owner = OLD.owner;
    END IF;
    RETURN NULL;
END $$;

-- Before the deletion, because the items go with their conversation, and then nothing says whose they were.
CREATE FUNCTION quell_uncount_items() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE response_room SET bytes = bytes
        - (SELECT coalesce(sum(items.bytes), 0)::bigint FROM conversation_items AS items WHERE conversation = OLD.id)
    WHERE owner = OLD.owner;
    RETURN OLD;
END $$;

CREATE FUNCTION quell_count_item() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        UPDATE response_room SET bytes = bytes + NEW.bytes
        WHERE owner = (SELECT owner FROM conversations WHERE id = NEW.conversation);
    ELSE
        UPDATE response_room SET bytes = bytes - OLD.bytes
        WHERE owner = (SELECT owner FROM conversations WHERE id = OLD.conversation);
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER count_room AFTER INSERT OR UPDATE OR DELETE ON responses
    FOR EACH ROW EXECUTE FUNCTION quell_count_room();
CREATE TRIGGER count_room AFTER INSERT OR UPDATE OR DELETE ON conversations
    FOR EACH ROW EXECUTE FUNCTION quell_count_room();
CREATE TRIGGER uncount_items BEFORE DELETE ON conversations
    FOR EACH ROW EXECUTE FUNCTION quell_uncount_items();
CREATE TRIGGER count_item AFTER INSERT OR DELETE ON conversation_items
    FOR EACH ROW EXECUTE FUNCTION quell_count_item();
