-- The room that the responses and conversations of an owner take.
ALTER TABLE responses ADD COLUMN bytes bigint GENERATED ALWAYS AS
    (500 + octet_length(response) + octet_length(input) + coalesce(octet_length(events), 0)) STORED;
ALTER TABLE conversations ADD COLUMN bytes bigint GENERATED ALWAYS AS (500 + octet_length(metadata)) STORED;
ALTER TABLE conversation_items ADD COLUMN bytes bigint GENERATED ALWAYS AS
    (200 + octet_length(id) + octet_length(item)) STORED;

CREATE INDEX responses_by_owner ON responses (owner) INCLUDE (bytes);
CREATE INDEX responses_in_progress ON responses (conversation) WHERE NOT ended;
CREATE INDEX conversations_by_owner ON conversations (owner) INCLUDE (bytes);
CREATE INDEX conversation_items_by_bytes ON conversation_items (conversation) INCLUDE (bytes);
