package access

import (
	"context"
	"net/url"
	"regexp"
	"strings"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/listener/delivery"
)

// MySQL is mysql.Target with the keys of a data source.
func MySQL(dsn string, a *Access) (delivery.Target, error) {
	t, err := mysql.Target(dsn)
	if err != nil || a == nil {
		return t, err
	}
	cfg, err := driver.ParseDSN(dsn)
	if err != nil {
		return t, err
	}
	said := ""
	switch {
	case cfg.TLSConfig != "":
		said = "the parameter tls"
	case cfg.Net == "unix":
		said = "a Unix socket"
	}
	if err := a.Check(said, cfg.Passwd != ""); err != nil {
		return t, err
	}
	if err := cfg.Apply(driver.BeforeConnect(func(ctx context.Context, c *driver.Config) error { return a.BeforeConnect(ctx, c) })); err != nil {
		return t, err
	}
	return mysql.TargetOf(cfg, "")
}

// keyword finds a parameter in keywords and values.
var keyword = regexp.MustCompile(`(?i)(?:^|\s)(ssl\w+|password)\s*=`)

// Postgres is postgres.Target with the keys of a data source.
func Postgres(dsn string, a *Access) (delivery.Target, error) {
	t, err := postgres.Target(dsn)
	if err != nil || a == nil {
		return t, err
	}
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return t, err
	}
	said, password := "", false
	for _, name := range parameters(dsn) {
		if name == "password" {
			password = true
		} else if strings.HasPrefix(name, "ssl") {
			said = "the parameter " + name
		}
	}
	if strings.HasPrefix(cfg.Host, "/") {
		said = "a Unix socket"
	}
	if err := a.Check(said, password); err != nil {
		return t, err
	}
	return postgres.TargetOf(cfg, "", stdlib.OptionBeforeConnect(func(ctx context.Context, c *pgx.ConnConfig) error {
		if now, err := pgx.ParseConfig(dsn); err == nil { // the file of passwords, as in postgres.Target
			c.Password = now.Password
		}
		return a.BeforeConnect(ctx, c)
	})), nil
}

// parameters returns the names of a DSN's parameters, as far as Postgres needs them.
func parameters(dsn string) (names []string) {
	if !strings.Contains(dsn, "://") {
		for _, m := range keyword.FindAllStringSubmatch(dsn, -1) {
			names = append(names, strings.ToLower(m[1]))
		}
		return names
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return nil
	}
	if _, has := u.User.Password(); has {
		names = append(names, "password")
	}
	for name := range u.Query() {
		names = append(names, name)
	}
	return names
}
