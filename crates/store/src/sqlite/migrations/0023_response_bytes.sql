-- Schema 23: the room that the responses and conversations of an owner take.

ALTER TABLE responses ADD COLUMN
    bytes INTEGER AS (500 + octet_length(response) + octet_length(input) + ifnull(octet_length(events), 0));
ALTER TABLE conversations ADD COLUMN bytes INTEGER AS (500 + octet_length(metadata));
ALTER TABLE conversation_items ADD COLUMN bytes INTEGER AS (200 + octet_length(id) + octet_length(item));

CREATE INDEX responses_by_owner ON responses (owner, bytes);
CREATE INDEX responses_in_progress ON responses (conversation) WHERE ended = 0;
CREATE INDEX conversations_by_owner ON conversations (owner, bytes);
CREATE INDEX conversation_items_by_bytes ON conversation_items (conversation, bytes);
