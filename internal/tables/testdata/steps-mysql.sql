-- step 1

CREATE TABLE IF NOT EXISTS transaction_log (
  id                       VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  transaction_type         VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  data_source              VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  `sql`                    LONGTEXT NOT NULL,
  parameters               LONGTEXT NOT NULL,
  creation_time            BIGINT NOT NULL,
  async_delivery_try_times INT NOT NULL,
  transaction_id           VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  statement_no             INT NOT NULL,
  statement_count          INT NOT NULL,
  settings                 TEXT NOT NULL,
  not_replayable           TEXT NOT NULL,
  receipt                  VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  fingerprint              VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  in_doubt                 SMALLINT NOT NULL,
  next_try_time            BIGINT NOT NULL,
  last_error               TEXT NULL,
  parked                   SMALLINT NOT NULL,
  lease_token              VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NULL,
  lease_until              BIGINT NULL,
  PRIMARY KEY (id),
  KEY transaction_log_due (parked, data_source, next_try_time),
  KEY transaction_log_keys (fingerprint)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS bed_log (
  name  VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  value VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS bed_attempt (
  unit_id       VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  id            VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  creation_time BIGINT NOT NULL,
  origin        VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  class         VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  error         TEXT NOT NULL,
  PRIMARY KEY (unit_id, id),
  KEY bed_attempt_age (creation_time)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS bed_activity (
  minute      BIGINT NOT NULL,
  data_source VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  at_once     BIGINT NOT NULL,
  sync_retry  BIGINT NOT NULL,
  async_job   BIGINT NOT NULL,
  pending     BIGINT NOT NULL,
  parked      BIGINT NOT NULL,
  refused     BIGINT NOT NULL,
  PRIMARY KEY (minute, data_source)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS bed_audit (
  id            VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  creation_time BIGINT NOT NULL,
  who           VARCHAR(255) NOT NULL,
  action        VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  what          LONGTEXT NOT NULL,
  units         BIGINT NOT NULL,
  reason        TEXT NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS bed_data_source (
  data_source VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  job         VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
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
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS bed_receipt (
  id            VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  unit_id       VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  log_id        VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  void          SMALLINT NOT NULL,
  creation_time BIGINT NOT NULL,
  keep_until    BIGINT NOT NULL,
  fingerprint   VARCHAR(64) NULL,
  result        MEDIUMTEXT NULL,
  log_gone      SMALLINT NOT NULL DEFAULT 0,
  PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COMMENT='made by bed (github.com/bedsql/bed), which tells by it what was applied: leave it out of migrations';

-- step 2

CREATE TABLE IF NOT EXISTS bed_order_key (
  id      VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  last    BIGINT NOT NULL,
  head    VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  waiting BIGINT NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS bed_order_queue (
  key_id  VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  number  BIGINT NOT NULL,
  unit_id VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  skipped SMALLINT NOT NULL,
  PRIMARY KEY (key_id, number),
  KEY bed_order_queue_unit (unit_id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS bed_order (
  id         VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  log_id     VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  last       BIGINT NOT NULL,
  keep_until BIGINT NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COMMENT='made by bed (github.com/bedsql/bed), which keeps order by it: leave it out of migrations';

