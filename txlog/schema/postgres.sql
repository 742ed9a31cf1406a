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
  settings                 TEXT NOT NULL,                                -- what the DSN says of values and names
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
  name  VARCHAR(40) COLLATE "C" NOT NULL PRIMARY KEY, -- identity
  value VARCHAR(80) NOT NULL                          -- a UUID, given to the log when it is opened for the first time
);
