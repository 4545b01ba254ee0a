"""Changes of stored rows behind the broker's back, and the sentence with which `stepwire db check` names each."""

from typing import Final

# Every database accepts these changes.
FORGED: Final = [
    ("UPDATE steps SET attempt = 7 WHERE state = 'completed'", r"step charge: attempt is 7, and 0 by its history"),
    ("UPDATE steps SET output = '{\"total\":9.5}' WHERE state = 'completed'", "output_crc32 is "),
    ("DELETE FROM steps WHERE state = 'held'", "steps is 0, and 1 by its history"),
    ("DELETE FROM tasks WHERE state = 'completed'", "of steps refers to a row of tasks that does not exist"),
    ("DELETE FROM tasks WHERE state = 'completed'", "the history has rows of task .*, which does not exist"),
    ("DELETE FROM workflows WHERE id > 0", "of tasks refers to a row of workflows that does not exist"),
    ("DELETE FROM history WHERE position >= 0", "its history does not begin with its submission"),
    ("DELETE FROM keys", "has the idempotency key .*, which belongs to no task"),
    (
        "INSERT INTO keys (namespace, key, digest, task_id) SELECT 'shop', 'theirs', digest, 999 FROM keys LIMIT 1",
        "the idempotency key 'theirs' of shop belongs to task 999",
    ),
    (
        "INSERT INTO controls (kind, name, value, position, revision) VALUES ('rule', 'a::**', '{', 1, 9)",
        "the control 'a::\\*\\*' of the kind rule has a value that is not JSON",
    ),
    ("UPDATE blocks SET reserved = 1 WHERE number = 0", "the last reserved id of block 0 is 1, but the (task|step) "),
    ("UPDATE blocks SET lane = 7 WHERE number = 0", "task .* is in lane 1, to which the block of its id does not"),
    ("UPDATE blocks SET lane = 7 WHERE number = 0", "the block of ids 0 belongs to lane 7, which does not exist"),
    ("UPDATE blocks SET number = 70 WHERE number = 0", "step .* is not in a block of ids of the lane of its task"),
    ("DELETE FROM attention WHERE kind = 'held'", "step .* is held, and the table of attention does not"),
    ("DELETE FROM attention WHERE kind = 'task_held'", "task .* has the attention 'held', and the table"),
    ("UPDATE steps SET state = 'waiting', batch_id = NULL WHERE state = 'held'", "the table of attention has held for"),
    ("UPDATE workflows SET document = '{}'", "workflow shop::.* cannot be read"),
    ("DELETE FROM meta WHERE name = 'deployment'", "has no deployment identity"),
    ("UPDATE tasks SET attention = NULL WHERE attention IS NOT NULL", "attention is nothing, and 'held' by"),
    ("DELETE FROM audit WHERE n = 1", "audit row 1 of lane 1: missing"),
]

# Only SQLite can be told to accept the first, and only SQLite has the counter of the second.
FORGED_AGAINST_CHECKS: Final = [
    ("UPDATE steps SET state = 'lost' WHERE state = 'held'", "row .* of steps breaks its constraint state_fits"),
    ("UPDATE lanes SET seq = 0", "the history of lane 1 ends at"),
]

# Rows that only PostgreSQL has.
FORGED_ON_SERVER: Final = [
    ("DELETE FROM commits WHERE lane = 1", "lane 1 has no row in commits, so no group can be written in it"),
    ("UPDATE commits SET seq = 1 WHERE lane = 1", "the history of lane 1 ends at sequence .* last commit has sequence"),
    ("INSERT INTO commits (lane, seq, epoch) VALUES (2, 5, 0)", "lane 2 has 2 of 6 consecutive commits"),
    ("UPDATE commits SET epoch = 99 WHERE lane = 1", "lane 1 has epoch .*, and a commit of epoch 99"),
    ("UPDATE lanes SET owner = 'b7', owner_epoch = 7 WHERE id = 1", "lane 1 is owned by the broker 'b7', which has no"),
    ("UPDATE history SET lane_id = 70", "the history has rows of lane 70, which does not exist"),
    ("SELECT setval('workflows_id_seq', 1, false)", "the id .* of workflows is beyond the sequence"),
]
