-- The transaction log of bed: the log, its identity, two tables that keep order by key, and
-- four for those who look after it, in the database that the log is kept in; and in each
-- target one for what is delivered exactly once, and one for its order by key.
--
-- The program creates them when they are absent, by exactly the text below. Run
-- the section of your database by hand where the program's account may not create
-- tables; it then needs SELECT, INSERT, UPDATE and DELETE on these.
-- The names of the tables, columns, keys and indexes are fixed.

-- ===== mysql: MySQL 8.0, MariaDB 10.6 and later =====

CREATE TABLE IF NOT EXISTS transaction_log (
  id                       VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,      -- UUIDv7; the last three digits count the statements of a unit
  transaction_type         VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,      -- BestEffortsDelivery
  data_source              VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, -- where to deliver
  `sql`                    LONGTEXT NOT NULL,                                               -- the statement
  parameters               LONGTEXT NOT NULL,                                               -- typed JSON
  creation_time            BIGINT NOT NULL,                                                 -- ms since 1970-01-01 UTC, as all times here
  async_delivery_try_times INT NOT NULL,                                                    -- tries of the job that failed
  transaction_id           VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,      -- the soft transaction
  statement_no             INT NOT NULL,                                                    -- place in the unit, from 0
  statement_count          INT NOT NULL,                                                    -- statements of the unit
  settings                 TEXT NOT NULL,                                                   -- what the DSN says of values and names; the parts of a compensation
  not_replayable           TEXT NOT NULL,                                                   -- why it must not be run again; empty: it may
  receipt                  VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,      -- of the receipt that attempts leave in the target; empty: none
  fingerprint              VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,  -- of the request, under a caller's key; else empty
  in_doubt                 SMALLINT NOT NULL,                                               -- 1: an earlier attempt may have been applied
  next_try_time            BIGINT NOT NULL,                                                 -- not before; while leased, the end of the lease
  last_error               TEXT NULL,                                                       -- of the last failure
  parked                   SMALLINT NOT NULL,                                               -- 1: waits for a person
  lease_token              VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NULL,          -- who owns it
  lease_until              BIGINT NULL,                                                     -- until when
  PRIMARY KEY (id),
  KEY transaction_log_due (parked, data_source, next_try_time),
  KEY transaction_log_keys (fingerprint)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS bed_log (
  name  VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- identity; receipts-… for a data source, by the hash of its name
  value VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- a UUID, given to the log when it is opened for the first time; the schema of its receipts, empty for none of their own
  PRIMARY KEY (name)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS bed_order_key (
  id      VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- the hash of an order key of a data source
  last    BIGINT NOT NULL,                                            -- the last number issued under it
  head    VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- the entry whose turn it is; empty: none
  waiting BIGINT NOT NULL,                                            -- how many wait behind it
  PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS bed_order_queue (
  key_id  VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- the key, in bed_order_key
  number  BIGINT NOT NULL,                                            -- the entry's place under it
  unit_id VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- the entry
  skipped SMALLINT NOT NULL,                                          -- 1: an operator has let the others pass; 0: it waits
  PRIMARY KEY (key_id, number),
  KEY bed_order_queue_unit (unit_id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS bed_attempt (
  unit_id       VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- the entry
  id            VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- UUIDv7
  creation_time BIGINT NOT NULL,                                            -- when the attempt failed
  origin        VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- caller, sync retry, async job; operator
  class         VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- what the error means; discarded
  error         TEXT NOT NULL,                                              -- the database's own; may quote values
  PRIMARY KEY (unit_id, id),
  KEY bed_attempt_age (creation_time)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS bed_activity (
  minute      BIGINT NOT NULL,                                                 -- when it began
  data_source VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, -- for which the writes were
  at_once     BIGINT NOT NULL,                                                 -- delivered by the first attempt
  sync_retry  BIGINT NOT NULL,                                                 -- delivered by a retry in the caller
  async_job   BIGINT NOT NULL,                                                 -- delivered by the job
  pending     BIGINT NOT NULL,                                                 -- left to the job
  parked      BIGINT NOT NULL,                                                 -- left to an operator
  refused     BIGINT NOT NULL,                                                 -- refused, and the caller told
  PRIMARY KEY (minute, data_source)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS bed_audit (
  id            VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- UUIDv7
  creation_time BIGINT NOT NULL,                                            -- when it was done
  who           VARCHAR(255) NOT NULL,                                      -- by whom
  action        VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- retry, park, discard, skip, amend, compensate, reveal, try, pause, resume or limit
  what          LONGTEXT NOT NULL,                                          -- the entry, the data source, or the filter or amendment as JSON
  units         BIGINT NOT NULL,                                            -- how many entries
  reason        TEXT NOT NULL,                                              -- why; may be empty
  PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS bed_data_source (
  data_source VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, -- empty: the row is a job's own
  job         VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,      -- whose view it is; empty: what operators decided
  name        VARCHAR(255) NOT NULL,                                           -- of the job, with host and process
  paused      SMALLINT NOT NULL,                                               -- 1: no job delivers
  per_second  BIGINT NOT NULL,                                                 -- deliveries by all jobs together; 0: no limit
  next_slot   BIGINT NOT NULL,                                                 -- microseconds: when the limit lets the next begin
  reachable   SMALLINT NOT NULL,                                               -- 1: the job could write there
  since       BIGINT NOT NULL,                                                 -- since when it is as it is
  last_error  TEXT NULL,                                                       -- why it is not reachable
  heartbeat   BIGINT NOT NULL,                                                 -- when the job last reported in
  alive_until BIGINT NOT NULL,                                                 -- considered dead after this
  PRIMARY KEY (data_source, job)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4;

-- ===== targets in mysql: the receipts of exactly-once deliveries, and the order of their keys =====

CREATE TABLE IF NOT EXISTS bed_receipt (
  id            VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- the unit's, or the hash of a caller's key
  unit_id       VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- the entry whose work this is, or the compensable group of a part
  log_id        VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- the identity of the transaction log that holds the entry (bed_log)
  void          SMALLINT NOT NULL,    -- 1: the work was not done and never will be
  creation_time BIGINT NOT NULL,      -- ms since 1970-01-01 UTC
  keep_until    BIGINT NOT NULL,      -- not purged before
  fingerprint   VARCHAR(64) NULL,     -- of the request, under a caller's key
  result        MEDIUMTEXT NULL, -- the answer, under a caller's key
  log_gone      SMALLINT NOT NULL DEFAULT 0, -- 1: a purge found that the unit is not in the log any more
  PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COMMENT='made by bed (github.com/bedsql/bed), which tells by it what was applied: leave it out of migrations';

CREATE TABLE IF NOT EXISTS bed_order (
  id         VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- the hash of an order key
  log_id     VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- the identity of the transaction log that numbers the writes (bed_log)
  last       BIGINT NOT NULL, -- the number of the last write delivered under it
  keep_until BIGINT NOT NULL, -- not purged before
  PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COMMENT='made by bed (github.com/bedsql/bed), which keeps order by it: leave it out of migrations';

-- ===== postgres: PostgreSQL =====

CREATE TABLE IF NOT EXISTS transaction_log (
  id                       VARCHAR(40) COLLATE "C" NOT NULL PRIMARY KEY, -- UUIDv7; the last three digits count the statements of a unit
  transaction_type         VARCHAR(40) NOT NULL,                         -- BestEffortsDelivery
  data_source              VARCHAR(255) COLLATE "C" NOT NULL,            -- where to deliver
  "sql"                    TEXT NOT NULL,                                -- the statement
  parameters               TEXT NOT NULL,                                -- typed JSON
  creation_time            BIGINT NOT NULL,                              -- ms since 1970-01-01 UTC, as all times here
  async_delivery_try_times INT NOT NULL,                                 -- tries of the job that failed
  transaction_id           VARCHAR(40) NOT NULL,                         -- the soft transaction
  statement_no             INT NOT NULL,                                 -- place in the unit, from 0
  statement_count          INT NOT NULL,                                 -- statements of the unit
  settings                 TEXT NOT NULL,                                -- what the DSN says of values and names; the parts of a compensation
  not_replayable           TEXT NOT NULL,                                -- why it must not be run again; empty: it may
  receipt                  VARCHAR(80) NOT NULL,                         -- of the receipt that attempts leave in the target; empty: none
  fingerprint              VARCHAR(64) NOT NULL,                         -- of the request, under a caller's key; else empty
  in_doubt                 SMALLINT NOT NULL,                            -- 1: an earlier attempt may have been applied
  next_try_time            BIGINT NOT NULL,                              -- not before; while leased, the end of the lease
  last_error               TEXT NULL,                                    -- of the last failure
  parked                   SMALLINT NOT NULL,                            -- 1: waits for a person
  lease_token              VARCHAR(40) NULL,                             -- who owns it
  lease_until              BIGINT NULL                                   -- until when
);
CREATE INDEX IF NOT EXISTS transaction_log_due ON transaction_log (parked, data_source, next_try_time, id);
CREATE INDEX IF NOT EXISTS transaction_log_keys ON transaction_log (receipt) WHERE fingerprint > '';

CREATE TABLE IF NOT EXISTS bed_log (
  name  VARCHAR(40) COLLATE "C" NOT NULL PRIMARY KEY, -- identity; receipts-… for a data source, by the hash of its name
  value VARCHAR(80) NOT NULL                          -- a UUID, given to the log when it is opened for the first time; the schema of its receipts, empty for none of their own
);

CREATE TABLE IF NOT EXISTS bed_order_key (
  id      VARCHAR(80) COLLATE "C" NOT NULL PRIMARY KEY, -- the hash of an order key of a data source
  last    BIGINT NOT NULL,                              -- the last number issued under it
  head    VARCHAR(40) COLLATE "C" NOT NULL,             -- the entry whose turn it is; empty: none
  waiting BIGINT NOT NULL                               -- how many wait behind it
);

CREATE TABLE IF NOT EXISTS bed_order_queue (
  key_id  VARCHAR(80) COLLATE "C" NOT NULL, -- the key, in bed_order_key
  number  BIGINT NOT NULL,                  -- the entry's place under it
  unit_id VARCHAR(40) COLLATE "C" NOT NULL, -- the entry
  skipped SMALLINT NOT NULL,                -- 1: an operator has let the others pass; 0: it waits
  PRIMARY KEY (key_id, number)
);
CREATE INDEX IF NOT EXISTS bed_order_queue_unit ON bed_order_queue (unit_id);

CREATE TABLE IF NOT EXISTS bed_attempt (
  unit_id       VARCHAR(40) COLLATE "C" NOT NULL, -- the entry
  id            VARCHAR(40) COLLATE "C" NOT NULL, -- UUIDv7
  creation_time BIGINT NOT NULL,                  -- when the attempt failed
  origin        VARCHAR(20) NOT NULL,             -- caller, sync retry, async job; operator
  class         VARCHAR(20) NOT NULL,             -- what the error means; discarded
  error         TEXT NOT NULL,                    -- the database's own; may quote values
  PRIMARY KEY (unit_id, id)
);
CREATE INDEX IF NOT EXISTS bed_attempt_age ON bed_attempt (creation_time);

CREATE TABLE IF NOT EXISTS bed_activity (
  minute      BIGINT NOT NULL,                   -- when it began
  data_source VARCHAR(255) COLLATE "C" NOT NULL, -- for which the writes were
  at_once     BIGINT NOT NULL,                   -- delivered by the first attempt
  sync_retry  BIGINT NOT NULL,                   -- delivered by a retry in the caller
  async_job   BIGINT NOT NULL,                   -- delivered by the job
  pending     BIGINT NOT NULL,                   -- left to the job
  parked      BIGINT NOT NULL,                   -- left to an operator
  refused     BIGINT NOT NULL,                   -- refused, and the caller told
  PRIMARY KEY (minute, data_source)
);

CREATE TABLE IF NOT EXISTS bed_audit (
  id            VARCHAR(40) COLLATE "C" NOT NULL, -- UUIDv7
  creation_time BIGINT NOT NULL,                  -- when it was done
  who           VARCHAR(255) NOT NULL,            -- by whom
  action        VARCHAR(20) NOT NULL,             -- retry, park, discard, skip, amend, compensate, reveal, try, pause, resume or limit
  what          TEXT NOT NULL,                    -- the entry, the data source, or the filter or amendment as JSON
  units         BIGINT NOT NULL,                  -- how many entries
  reason        TEXT NOT NULL,                    -- why; may be empty
  PRIMARY KEY (id)
);

CREATE TABLE IF NOT EXISTS bed_data_source (
  data_source VARCHAR(255) COLLATE "C" NOT NULL, -- empty: the row is a job's own
  job         VARCHAR(40) COLLATE "C" NOT NULL,  -- whose view it is; empty: what operators decided
  name        VARCHAR(255) NOT NULL,             -- of the job, with host and process
  paused      SMALLINT NOT NULL,                 -- 1: no job delivers
  per_second  BIGINT NOT NULL,                   -- deliveries by all jobs together; 0: no limit
  next_slot   BIGINT NOT NULL,                   -- microseconds: when the limit lets the next begin
  reachable   SMALLINT NOT NULL,                 -- 1: the job could write there
  since       BIGINT NOT NULL,                   -- since when it is as it is
  last_error  TEXT NULL,                         -- why it is not reachable
  heartbeat   BIGINT NOT NULL,                   -- when the job last reported in
  alive_until BIGINT NOT NULL,                   -- considered dead after this
  PRIMARY KEY (data_source, job)
);

-- ===== targets in postgres: the receipts of exactly-once deliveries, and the order of their keys =====

CREATE TABLE IF NOT EXISTS bed_receipt (
  id            VARCHAR(80) COLLATE "C" NOT NULL, -- the unit's, or the hash of a caller's key
  unit_id       VARCHAR(40) NOT NULL, -- the entry whose work this is, or the compensable group of a part
  log_id        VARCHAR(40) NOT NULL, -- the identity of the transaction log that holds the entry (bed_log)
  void          SMALLINT NOT NULL,    -- 1: the work was not done and never will be
  creation_time BIGINT NOT NULL,      -- ms since 1970-01-01 UTC
  keep_until    BIGINT NOT NULL,      -- not purged before
  fingerprint   VARCHAR(64) NULL,     -- of the request, under a caller's key
  result        TEXT NULL, -- the answer, under a caller's key
  log_gone      SMALLINT NOT NULL DEFAULT 0, -- 1: a purge found that the unit is not in the log any more
  CONSTRAINT bed_receipt_id PRIMARY KEY (id)
);

CREATE TABLE IF NOT EXISTS bed_order (
  id         VARCHAR(80) COLLATE "C" NOT NULL, -- the hash of an order key
  log_id     VARCHAR(40) NOT NULL, -- the identity of the transaction log that numbers the writes (bed_log)
  last       BIGINT NOT NULL, -- the number of the last write delivered under it
  keep_until BIGINT NOT NULL, -- not purged before
  PRIMARY KEY (id)
);

-- ===== sqlite: SQLite =====

CREATE TABLE IF NOT EXISTS transaction_log (
  id                       VARCHAR(40) NOT NULL PRIMARY KEY, -- UUIDv7; the last three digits count the statements of a unit
  transaction_type         VARCHAR(40) NOT NULL,             -- BestEffortsDelivery
  data_source              VARCHAR(255) NOT NULL,            -- where to deliver
  "sql"                    TEXT NOT NULL,                    -- the statement
  parameters               TEXT NOT NULL,                    -- typed JSON
  creation_time            BIGINT NOT NULL,                  -- ms since 1970-01-01 UTC, as all times here
  async_delivery_try_times INT NOT NULL,                     -- tries of the job that failed
  transaction_id           VARCHAR(40) NOT NULL,             -- the soft transaction
  statement_no             INT NOT NULL,                     -- place in the unit, from 0
  statement_count          INT NOT NULL,                     -- statements of the unit
  settings                 TEXT NOT NULL,                    -- what the DSN says of values and names; the parts of a compensation
  not_replayable           TEXT NOT NULL,                    -- why it must not be run again; empty: it may
  receipt                  VARCHAR(80) NOT NULL,             -- of the receipt that attempts leave in the target; empty: none
  fingerprint              VARCHAR(64) NOT NULL,             -- of the request, under a caller's key; else empty
  in_doubt                 SMALLINT NOT NULL,                -- 1: an earlier attempt may have been applied
  next_try_time            BIGINT NOT NULL,                  -- not before; while leased, the end of the lease
  last_error               TEXT NULL,                        -- of the last failure
  parked                   SMALLINT NOT NULL,                -- 1: waits for a person
  lease_token              VARCHAR(40) NULL,                 -- who owns it
  lease_until              BIGINT NULL                       -- until when
);
CREATE INDEX IF NOT EXISTS transaction_log_due ON transaction_log (parked, data_source, next_try_time, id);
CREATE INDEX IF NOT EXISTS transaction_log_keys ON transaction_log (receipt) WHERE fingerprint > '';

CREATE TABLE IF NOT EXISTS bed_log (
  name  VARCHAR(40) NOT NULL PRIMARY KEY, -- identity; receipts-… for a data source, by the hash of its name
  value VARCHAR(80) NOT NULL              -- a UUID, given to the log when it is opened for the first time; the schema of its receipts, empty for none of their own
);

CREATE TABLE IF NOT EXISTS bed_order_key (
  id      VARCHAR(80) NOT NULL PRIMARY KEY, -- the hash of an order key of a data source
  last    BIGINT NOT NULL,                  -- the last number issued under it
  head    VARCHAR(40) NOT NULL,             -- the entry whose turn it is; empty: none
  waiting BIGINT NOT NULL                   -- how many wait behind it
);

CREATE TABLE IF NOT EXISTS bed_order_queue (
  key_id  VARCHAR(80) NOT NULL, -- the key, in bed_order_key
  number  BIGINT NOT NULL,      -- the entry's place under it
  unit_id VARCHAR(40) NOT NULL, -- the entry
  skipped SMALLINT NOT NULL,    -- 1: an operator has let the others pass; 0: it waits
  PRIMARY KEY (key_id, number)
);
CREATE INDEX IF NOT EXISTS bed_order_queue_unit ON bed_order_queue (unit_id);

CREATE TABLE IF NOT EXISTS bed_attempt (
  unit_id       VARCHAR(40) NOT NULL, -- the entry
  id            VARCHAR(40) NOT NULL, -- UUIDv7
  creation_time BIGINT NOT NULL,      -- when the attempt failed
  origin        VARCHAR(20) NOT NULL, -- caller, sync retry, async job; operator
  class         VARCHAR(20) NOT NULL, -- what the error means; discarded
  error         TEXT NOT NULL,        -- the database's own; may quote values
  PRIMARY KEY (unit_id, id)
);
CREATE INDEX IF NOT EXISTS bed_attempt_age ON bed_attempt (creation_time);

CREATE TABLE IF NOT EXISTS bed_activity (
  minute      BIGINT NOT NULL,       -- when it began
  data_source VARCHAR(255) NOT NULL, -- for which the writes were
  at_once     BIGINT NOT NULL,       -- delivered by the first attempt
  sync_retry  BIGINT NOT NULL,       -- delivered by a retry in the caller
  async_job   BIGINT NOT NULL,       -- delivered by the job
  pending     BIGINT NOT NULL,       -- left to the job
  parked      BIGINT NOT NULL,       -- left to an operator
  refused     BIGINT NOT NULL,       -- refused, and the caller told
  PRIMARY KEY (minute, data_source)
);

CREATE TABLE IF NOT EXISTS bed_audit (
  id            VARCHAR(40) NOT NULL,  -- UUIDv7
  creation_time BIGINT NOT NULL,       -- when it was done
  who           VARCHAR(255) NOT NULL, -- by whom
  action        VARCHAR(20) NOT NULL,  -- retry, park, discard, skip, amend, compensate, reveal, try, pause, resume or limit
  what          TEXT NOT NULL,         -- the entry, the data source, or the filter or amendment as JSON
  units         BIGINT NOT NULL,       -- how many entries
  reason        TEXT NOT NULL,         -- why; may be empty
  PRIMARY KEY (id)
);

CREATE TABLE IF NOT EXISTS bed_data_source (
  data_source VARCHAR(255) NOT NULL, -- empty: the row is a job's own
  job         VARCHAR(40) NOT NULL,  -- whose view it is; empty: what operators decided
  name        VARCHAR(255) NOT NULL, -- of the job, with host and process
  paused      SMALLINT NOT NULL,     -- 1: no job delivers
  per_second  BIGINT NOT NULL,       -- deliveries by all jobs together; 0: no limit
  next_slot   BIGINT NOT NULL,       -- microseconds: when the limit lets the next begin
  reachable   SMALLINT NOT NULL,     -- 1: the job could write there
  since       BIGINT NOT NULL,       -- since when it is as it is
  last_error  TEXT NULL,             -- why it is not reachable
  heartbeat   BIGINT NOT NULL,       -- when the job last reported in
  alive_until BIGINT NOT NULL,       -- considered dead after this
  PRIMARY KEY (data_source, job)
);

-- ===== targets in sqlite: the receipts of exactly-once deliveries, and the order of their keys =====

CREATE TABLE IF NOT EXISTS bed_receipt (
  id            VARCHAR(80) NOT NULL, -- the unit's, or the hash of a caller's key
  unit_id       VARCHAR(40) NOT NULL, -- the entry whose work this is, or the compensable group of a part
  log_id        VARCHAR(40) NOT NULL, -- the identity of the transaction log that holds the entry (bed_log)
  void          SMALLINT NOT NULL,    -- 1: the work was not done and never will be
  creation_time BIGINT NOT NULL,      -- ms since 1970-01-01 UTC
  keep_until    BIGINT NOT NULL,      -- not purged before
  fingerprint   VARCHAR(64) NULL,     -- of the request, under a caller's key
  result        TEXT NULL, -- the answer, under a caller's key
  log_gone      SMALLINT NOT NULL DEFAULT 0, -- 1: a purge found that the unit is not in the log any more
  PRIMARY KEY (id)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS bed_order (
  id         VARCHAR(80) NOT NULL, -- the hash of an order key
  log_id     VARCHAR(40) NOT NULL, -- the identity of the transaction log that numbers the writes (bed_log)
  last       BIGINT NOT NULL, -- the number of the last write delivered under it
  keep_until BIGINT NOT NULL, -- not purged before
  PRIMARY KEY (id)
) WITHOUT ROWID;
