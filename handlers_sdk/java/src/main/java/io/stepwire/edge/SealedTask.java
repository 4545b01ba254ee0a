package io.stepwire.edge;

/** The task to which a sealed payload belongs: its namespace, workflow and idempotency key. */
record SealedTask(String namespace, String workflow, String key) {}
