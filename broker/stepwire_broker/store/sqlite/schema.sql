CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE meta (
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (name)
)
 STRICT

;
CREATE TABLE controls (
	kind TEXT NOT NULL, 
	name TEXT NOT NULL, 
	value TEXT, 
	position INTEGER, 
	revision INTEGER NOT NULL, 
	PRIMARY KEY (kind, name), 
	CONSTRAINT revision_counts CHECK (revision > 0), 
	CONSTRAINT value_is_given CHECK (value IS NOT NULL OR kind = 'removed')
)
 WITHOUT ROWID,
 STRICT

;
CREATE INDEX controls_newest ON controls (revision);
CREATE TABLE brokers (
	id TEXT NOT NULL, 
	epoch INTEGER NOT NULL, 
	lease_until_ms INTEGER NOT NULL, 
	lease_ms INTEGER NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT epoch_is_given CHECK (epoch > 0)
)
 STRICT

;
CREATE TABLE workflows (
	id INTEGER NOT NULL, 
	namespace TEXT NOT NULL, 
	name TEXT NOT NULL, 
	version TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	document TEXT NOT NULL, 
	created_ms INTEGER NOT NULL, 
	active INTEGER NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT workflows_version UNIQUE (namespace, name, version), 
	CONSTRAINT active_is_yes_or_no CHECK (active IN (0, 1))
)
 STRICT

;
CREATE UNIQUE INDEX workflows_active ON workflows (namespace, name) WHERE active = 1;
CREATE TABLE steps (
	id INTEGER NOT NULL, 
	task_id INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	handler_class TEXT NOT NULL, 
	state TEXT NOT NULL, 
	attempt INTEGER DEFAULT 0 NOT NULL, 
	delivery INTEGER DEFAULT 0 NOT NULL, 
	accept_from INTEGER DEFAULT 0 NOT NULL, 
	batch_id TEXT, 
	worker TEXT, 
	granted INTEGER DEFAULT 0 NOT NULL, 
	lost_sessions INTEGER DEFAULT 0 NOT NULL, 
	ready_ms INTEGER, 
	dispatched_ms INTEGER, 
	started_ms INTEGER, 
	not_before_ms INTEGER, 
	finished_ms INTEGER, 
	deadline_ms INTEGER, 
	run_ms INTEGER, 
	error TEXT, 
	reason TEXT, 
	key_number INTEGER DEFAULT 0 NOT NULL, 
	earlier TEXT, 
	handle TEXT, 
	output_bytes INTEGER DEFAULT 0 NOT NULL, 
	output TEXT, 
	PRIMARY KEY (id), 
	CONSTRAINT state_fits CHECK (CASE state
 WHEN 'dispatched' THEN batch_id IS NOT NULL AND worker IS NOT NULL AND delivery > 0 AND dispatched_ms IS NOT NULL
  AND finished_ms IS NULL
 WHEN 'completed' THEN batch_id IS NULL AND finished_ms IS NOT NULL AND output IS NOT NULL
 WHEN 'waiting' THEN batch_id IS NULL AND finished_ms IS NULL
 WHEN 'ready' THEN batch_id IS NULL AND finished_ms IS NULL AND ready_ms IS NOT NULL
 WHEN 'retry_wait' THEN batch_id IS NULL AND finished_ms IS NULL AND not_before_ms IS NOT NULL
 WHEN 'held' THEN finished_ms IS NULL
 WHEN 'failed' THEN batch_id IS NULL AND finished_ms IS NOT NULL
 WHEN 'cancelled' THEN batch_id IS NULL AND finished_ms IS NOT NULL
 WHEN 'skipped' THEN batch_id IS NULL AND finished_ms IS NOT NULL
 ELSE FALSE END), 
	CONSTRAINT granted_is_yes_or_no CHECK (granted = 0 OR granted = 1), 
	FOREIGN KEY(task_id) REFERENCES tasks (id)
)
 STRICT

;
CREATE UNIQUE INDEX steps_of_task ON steps (task_id, position);
CREATE TABLE step_stderr (
	id INTEGER NOT NULL, 
	delivery INTEGER NOT NULL, 
	text TEXT NOT NULL, 
	PRIMARY KEY (id)
)
 STRICT

;
CREATE TABLE keys (
	namespace TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	digest BLOB NOT NULL, 
	task_id INTEGER NOT NULL, 
	PRIMARY KEY (namespace, "key")
)
 WITHOUT ROWID,
 STRICT

;
CREATE TABLE history (
	lane_id INTEGER NOT NULL, 
	seq INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	task_id INTEGER NOT NULL, 
	at_ms INTEGER NOT NULL, 
	facts TEXT NOT NULL, 
	PRIMARY KEY (lane_id, seq, position)
)
 WITHOUT ROWID,
 STRICT

;
CREATE INDEX history_of_task ON history (task_id);
CREATE TABLE parked (
	id INTEGER NOT NULL, 
	at_ms INTEGER NOT NULL, 
	task_id INTEGER, 
	step_id INTEGER, 
	code TEXT NOT NULL, 
	source TEXT NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (id)
)
 STRICT

;
CREATE TABLE audit (
	lane INTEGER NOT NULL, 
	n INTEGER NOT NULL, 
	at_ms INTEGER NOT NULL, 
	principal TEXT NOT NULL, 
	via TEXT NOT NULL, 
	action TEXT NOT NULL, 
	target TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	outcome TEXT NOT NULL, 
	request_id TEXT, 
	hash TEXT NOT NULL, 
	PRIMARY KEY (lane, n), 
	CONSTRAINT n_counts CHECK (n > 0), 
	CONSTRAINT hash_is_whole CHECK (length(hash) = 64)
)
 WITHOUT ROWID,
 STRICT

;
CREATE TABLE audit_chains (
	lane INTEGER NOT NULL, 
	n INTEGER NOT NULL, 
	hash TEXT NOT NULL, 
	cut_n INTEGER NOT NULL, 
	cut_hash TEXT NOT NULL, 
	PRIMARY KEY (lane), 
	CONSTRAINT cut_is_before_the_end CHECK (n >= cut_n AND cut_n >= 0), 
	CONSTRAINT hashes_are_whole CHECK (length(hash) = 64 AND length(cut_hash) = 64)
)
 STRICT

;
CREATE TABLE lanes (
	id INTEGER NOT NULL, 
	owner TEXT, 
	owner_epoch INTEGER, 
	epoch INTEGER NOT NULL, 
	seq INTEGER NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT seq_counts CHECK (seq >= 0 AND epoch >= 0), 
	CONSTRAINT owner_is_whole CHECK ((owner IS NULL) = (owner_epoch IS NULL))
)
 STRICT

;
CREATE TABLE tasks (
	id INTEGER NOT NULL, 
	uid TEXT NOT NULL, 
	workflow_id INTEGER NOT NULL, 
	lane INTEGER NOT NULL, 
	namespace TEXT NOT NULL, 
	"key" TEXT, 
	state TEXT NOT NULL, 
	attention TEXT, 
	cancelling INTEGER NOT NULL, 
	priority INTEGER NOT NULL, 
	labels TEXT, 
	context_bytes INTEGER NOT NULL, 
	created_ms INTEGER NOT NULL, 
	finished_ms INTEGER, 
	deadline_ms INTEGER, 
	rank_ms INTEGER NOT NULL, 
	stored INTEGER NOT NULL, 
	wake_ms INTEGER, 
	wants TEXT, 
	context TEXT NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT state_fits CHECK (CASE state
 WHEN 'running' THEN finished_ms IS NULL
 WHEN 'completed' THEN finished_ms IS NOT NULL
 WHEN 'pending' THEN finished_ms IS NULL AND stored = 1
 WHEN 'paused' THEN finished_ms IS NULL
 WHEN 'failed' THEN finished_ms IS NOT NULL
 WHEN 'cancelled' THEN finished_ms IS NOT NULL
 ELSE FALSE END), 
	CONSTRAINT cancelling_is_yes_or_no CHECK (cancelling IN (0, 1)), 
	CONSTRAINT stored_is_found CHECK (stored = 0 OR stored = 1 AND (wake_ms IS NOT NULL OR wants IS NOT NULL)), 
	CONSTRAINT uid_is_whole CHECK (length(uid) = 32), 
	FOREIGN KEY(workflow_id) REFERENCES workflows (id)
)
 STRICT

;
CREATE INDEX tasks_left ON tasks (lane, rank_ms, id) WHERE finished_ms IS NULL AND stored = 0;
CREATE INDEX tasks_wanting ON tasks (lane, wants, rank_ms, id) WHERE finished_ms IS NULL AND stored = 1 AND wants IS NOT NULL;
CREATE INDEX tasks_due ON tasks (lane, wake_ms, rank_ms, id, wants) WHERE finished_ms IS NULL AND stored = 1 AND wake_ms IS NOT NULL;
CREATE INDEX tasks_ended ON tasks (state, finished_ms) WHERE finished_ms IS NOT NULL;
CREATE TABLE blocks (
	number INTEGER NOT NULL, 
	lane INTEGER NOT NULL, 
	reserved INTEGER NOT NULL, 
	PRIMARY KEY (number), 
	CONSTRAINT ids_fit_every_language CHECK (number BETWEEN 0 AND 8589934591), 
	CONSTRAINT reserved_fits CHECK (reserved BETWEEN 0 AND 1048576)
)
 STRICT

;
CREATE INDEX blocks_of_lane ON blocks (lane, number);
CREATE INDEX tasks_listed ON tasks (created_ms, id);
CREATE INDEX tasks_by_state ON tasks (workflow_id, state, created_ms, id);
CREATE TABLE attention (
	id INTEGER NOT NULL, 
	task_id INTEGER NOT NULL, 
	lane INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	at_ms INTEGER NOT NULL, 
	handler_class TEXT, 
	PRIMARY KEY (id), 
	CONSTRAINT kind_fits CHECK (CASE kind WHEN 'held' THEN id <> task_id WHEN 'failed' THEN id <> task_id WHEN 'task_held' THEN id = task_id ELSE FALSE END), 
	CONSTRAINT handler_is_of_a_step CHECK ((id = task_id) = (handler_class IS NULL))
)
 STRICT

;
CREATE INDEX attention_listed ON attention (kind, at_ms, id);
