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
