-- step 1

CREATE TABLE IF NOT EXISTS transaction_log (
  id                       VARCHAR(40) COLLATE "C" NOT NULL PRIMARY KEY,
  transaction_type         VARCHAR(40) NOT NULL,
  data_source              VARCHAR(255) COLLATE "C" NOT NULL,
  "sql"                    TEXT NOT NULL,
  parameters               TEXT NOT NULL,
  creation_time            BIGINT NOT NULL,
  async_delivery_try_times INT NOT NULL,
  transaction_id           VARCHAR(40) NOT NULL,
  statement_no             INT NOT NULL,
  statement_count          INT NOT NULL,
  settings                 TEXT NOT NULL,
  not_replayable           TEXT NOT NULL,
  receipt                  VARCHAR(80) NOT NULL,
  fingerprint              VARCHAR(64) NOT NULL,
  in_doubt                 SMALLINT NOT NULL,
  next_try_time            BIGINT NOT NULL,
  last_error               TEXT NULL,
  parked                   SMALLINT NOT NULL,
  lease_token              VARCHAR(40) NULL,
  lease_until              BIGINT NULL
);

CREATE INDEX IF NOT EXISTS transaction_log_due ON transaction_log (parked, data_source, next_try_time, id);

CREATE INDEX IF NOT EXISTS transaction_log_keys ON transaction_log (receipt) WHERE fingerprint > '';

CREATE TABLE IF NOT EXISTS bed_log (
  name  VARCHAR(40) COLLATE "C" NOT NULL PRIMARY KEY,
  value VARCHAR(80) NOT NULL
);

CREATE TABLE IF NOT EXISTS bed_attempt (
  unit_id       VARCHAR(40) COLLATE "C" NOT NULL,
  id            VARCHAR(40) COLLATE "C" NOT NULL,
  creation_time BIGINT NOT NULL,
  origin        VARCHAR(20) NOT NULL,
  class         VARCHAR(20) NOT NULL,
  error         TEXT NOT NULL,
  PRIMARY KEY (unit_id, id)
);

CREATE INDEX IF NOT EXISTS bed_attempt_age ON bed_attempt (creation_time);

CREATE TABLE IF NOT EXISTS bed_activity (
  minute      BIGINT NOT NULL,
  data_source VARCHAR(255) COLLATE "C" NOT NULL,
  at_once     BIGINT NOT NULL,
  sync_retry  BIGINT NOT NULL,
  async_job   BIGINT NOT NULL,
  pending     BIGINT NOT NULL,
  parked      BIGINT NOT NULL,
  refused     BIGINT NOT NULL,
  PRIMARY KEY (minute, data_source)
);

CREATE TABLE IF NOT EXISTS bed_audit (
  id            VARCHAR(40) COLLATE "C" NOT NULL,
  creation_time BIGINT NOT NULL,
  who           VARCHAR(255) NOT NULL,
  action        VARCHAR(20) NOT NULL,
  what          TEXT NOT NULL,
  units         BIGINT NOT NULL,
  reason        TEXT NOT NULL,
  PRIMARY KEY (id)
);

CREATE TABLE IF NOT EXISTS bed_data_source (
  data_source VARCHAR(255) COLLATE "C" NOT NULL,
  job         VARCHAR(40) COLLATE "C" NOT NULL,
  name        VARCHAR(255) NOT NULL,
  paused      SMALLINT NOT NULL,
  per_second  BIGINT NOT NULL,
  next_slot   BIGINT NOT NULL,
  reachable   SMALLINT NOT NULL,
  since       BIGINT NOT NULL,
  last_error  TEXT NULL,
  heartbeat   BIGINT NOT NULL,
  alive_until BIGINT NOT NULL,
  PRIMARY KEY (data_source, job)
);

CREATE TABLE IF NOT EXISTS bed_receipt (
  id            VARCHAR(80) COLLATE "C" NOT NULL,
  unit_id       VARCHAR(40) NOT NULL,
  log_id        VARCHAR(40) NOT NULL,
  void          SMALLINT NOT NULL,
  creation_time BIGINT NOT NULL,
  keep_until    BIGINT NOT NULL,
  fingerprint   VARCHAR(64) NULL,
  result        TEXT NULL,
  log_gone      SMALLINT NOT NULL DEFAULT 0,
  CONSTRAINT bed_receipt_id PRIMARY KEY (id)
);

-- step 2

CREATE TABLE IF NOT EXISTS bed_order_key (
  id      VARCHAR(80) COLLATE "C" NOT NULL PRIMARY KEY,
  last    BIGINT NOT NULL,
  head    VARCHAR(40) COLLATE "C" NOT NULL,
  waiting BIGINT NOT NULL
);

CREATE TABLE IF NOT EXISTS bed_order_queue (
  key_id  VARCHAR(80) COLLATE "C" NOT NULL,
  number  BIGINT NOT NULL,
  unit_id VARCHAR(40) COLLATE "C" NOT NULL,
  skipped SMALLINT NOT NULL,
  PRIMARY KEY (key_id, number)
);

CREATE INDEX IF NOT EXISTS bed_order_queue_unit ON bed_order_queue (unit_id);

CREATE TABLE IF NOT EXISTS bed_order (
  id         VARCHAR(80) COLLATE "C" NOT NULL,
  log_id     VARCHAR(40) NOT NULL,
  last       BIGINT NOT NULL,
  keep_until BIGINT NOT NULL,
  PRIMARY KEY (id)
);

