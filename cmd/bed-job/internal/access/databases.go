package access

import (
	"context"
	"net"
	"slices"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/listener/delivery"
)

// BeforeConnect sets certificates and password in a driver's configuration of one connection.
func (a *Access) BeforeConnect(ctx context.Context, cfg any) (err error) {
	switch c := cfg.(type) {
	case *driver.Config:
		if a.HasTLS() {
			host, _, _ := net.SplitHostPort(c.Addr)
			c.TLS = a.Config(host)
		}
		c.Passwd, err = a.Password(ctx, c.Passwd)
	case *pgx.ConnConfig:
		if a.HasTLS() {
			a.encrypt(c)
		}
		c.Password, err = a.Password(ctx, c.Password)
	}
	return err
}

// encrypt leaves only encrypted connections, one for each address.
func (a *Access) encrypt(c *pgx.ConnConfig) {
	var all []*pgconn.FallbackConfig
	for _, f := range append([]*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port}}, c.Fallbacks...) {
		if !slices.ContainsFunc(all, func(g *pgconn.FallbackConfig) bool { return g.Host == f.Host && g.Port == f.Port }) {
			all = append(all, &pgconn.FallbackConfig{Host: f.Host, Port: f.Port, TLSConfig: a.Config(f.Host)})
		}
	}
	c.TLSConfig, c.Fallbacks = all[0].TLSConfig, all[1:]
}

// MySQL is mysql.Target with an Access.
func MySQL(dsn string, a *Access) (delivery.Target, error) {
	t, err := mysql.Target(dsn)
	if err != nil || a == nil {
		return t, err
	}
	cfg, err := driver.ParseDSN(dsn)
	if err == nil {
		err = cfg.Apply(driver.BeforeConnect(func(ctx context.Context, c *driver.Config) error { return a.BeforeConnect(ctx, c) }))
	}
	if err != nil {
		return t, err
	}
	return mysql.TargetOf(cfg, "")
}

// Postgres is postgres.Target with an Access.
func Postgres(dsn string, a *Access) (delivery.Target, error) {
	t, err := postgres.Target(dsn)
	if err != nil || a == nil {
		return t, err
	}
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return t, err
	}
	return postgres.TargetOf(cfg, "", stdlib.OptionBeforeConnect(func(ctx context.Context, c *pgx.ConnConfig) error {
		if now, err := pgx.ParseConfig(dsn); err == nil { // the file of passwords, as in postgres.Target
			c.Password = now.Password
		}
		return a.BeforeConnect(ctx, c)
	})), nil
}
