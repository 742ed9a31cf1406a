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
  settings                 TEXT NOT NULL,                                                   -- what the DSN says of values and names
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
  name  VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- identity
  value VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- a UUID, given to the log when it is opened for the first time
  PRIMARY KEY (name)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4;
