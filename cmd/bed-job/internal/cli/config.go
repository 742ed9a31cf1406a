package cli

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/cmd/bed-job/internal/access"
	"github.com/bedsql/bed/console"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/txlog"
)

// DefaultListen is the address of `bed-job console` when its section has none.
const DefaultListen = "127.0.0.1:8390"

// DefaultConfig is the default configuration file, in the working directory.
const DefaultConfig = "bed-job.yaml"

// ConfigVariable is the environment variable with the name of the configuration file.
const ConfigVariable = "BED_JOB_CONFIG"

// A dataSource is a database as the configuration names it.
type dataSource struct {
	name   string
	driver string
	dsn    string
	// access has the certificates and passwords beside the DSN; nil for none.
	access *access.Access
	at     ast.Node // where it stands, for problems found later
	// noActivity is config.noActivity, for the log.
	noActivity bool
	// problem is why the data source is unusable; it is set only if problems do not invalidate the
	// whole configuration.
	problem error
}

// A config is the content of a configuration file.
type config struct {
	// log is the log of the command: the first, or the one named by --log.
	log dataSource
	// logs are all of them, or the one named by --log.
	logs    []dataSource
	targets []dataSource
	job     asyncjob.Config
	// console is the section console. run serves a console only with an address in it.
	console console.Config
	// metrics is the section metrics: where run serves the metrics alone.
	metrics struct {
		Listen text `yaml:"listen"`
	}
	// exitIfLogUnavailable makes run end instead of waiting for a log that is down.
	exitIfLogUnavailable bool
	// noActivity turns off the counts of writes per minute.
	noActivity bool
}

// part is the part of a configuration that a command needs. The rest may lack its environment
// variables.
type part uint8

const (
	// logAndTargets takes each target as far as it is readable, and reports the problems of the
	// others. There may be no targets.
	logAndTargets part = iota
	// logTargetsAndConsole is logAndTargets with the section console.
	logTargetsAndConsole
	wholeFile
)

// parseConfig parses src; a *ConfigError lists the problems of each section and data source.
func parseConfig(file string, src []byte, lookup func(string) (string, bool), p part) (c *config, err error) {
	d := &decoder{yaml.NewDecoder(strings.NewReader(""), yaml.Strict()), file, context.WithValue(context.Background(), lookupKey{}, lookup)}
	defer func() {
		// A parser panic on odd input must not crash the process.
		if recover() != nil {
			err = d.at(nil, "this cannot be read as YAML")
		}
		if err != nil {
			c, err = nil, &ConfigError{err}
		}
	}()
	var top struct {
		Targets ast.Node `yaml:"targetDataSource"`
		Log     ast.Node `yaml:"transactionLogDataSource"`
		Job     ast.Node `yaml:"jobConfig"`
		Console ast.Node `yaml:"console"`
		Metrics ast.Node `yaml:"metrics"`
	}
	docs, err := documents(src)
	switch {
	case err != nil:
		return nil, d.placed(err)
	case len(docs) == 0:
		return nil, d.at(nil, "the file is empty")
	case len(docs) > 1:
		return nil, d.at(docs[1], "a second YAML document; the configuration is one")
	}
	if err = d.DecodeFromNodeContext(d.ctx, docs[0], &top); err != nil && !errors.As(err, new(*yaml.UnknownFieldError)) {
		return nil, d.placed(err)
	}
	c = &config{}
	errs := [6]error{4: d.placed(err)}
	if p == wholeFile {
		errs[2] = d.job(top.Job, c)
		errs[5] = d.decode(top.Metrics, &c.metrics)
	} else if whole := new(config); d.job(top.Job, whole) == nil {
		c.job = whole.job // commands that only look use the job's times if they can be read
	}
	if c.logs, errs[1] = d.logs(top.Log, p == wholeFile); len(c.logs) > 0 {
		for i := range c.logs {
			c.logs[i].noActivity = c.noActivity
		}
		c.log = c.logs[0]
	}
	c.targets, errs[0] = d.targets(top.Targets, p == wholeFile)
	if p != logAndTargets {
		errs[3] = d.console(top.Console, &c.console)
	}
	if err := errors.Join(errs[:]...); err != nil || p != wholeFile {
		return c, err
	}
	return c, d.sharedFile(c)
}

// choose selects the log for a command by its name.
func (c *config) choose(name string) error {
	if len(c.logs) < 2 {
		if name != "" {
			return usagef("--log names one of several logs, and transactionLogDataSource has one")
		}
		return nil
	}
	names := make([]string, len(c.logs))
	for i, l := range c.logs {
		if names[i] = l.name; l.name == name {
			c.log, c.logs = l, c.logs[i:i+1]
			return nil
		}
	}
	known := strings.Join(names, ", ")
	if name == "" {
		return usagef("transactionLogDataSource has several logs: name one with --log (%s)", known)
	}
	return usagef("no log named %s; known: %s", name, known)
}

// targets reads the section of the data sources. Unless it is strict, problems belong to one data
// source, or to the section, and not to the configuration.
func (d *decoder) targets(n ast.Node, strict bool) (all []dataSource, err error) {
	const section = "targetDataSource"
	named := map[string]ast.Node{}
	switch err = d.decode(n, &named); {
	case err != nil:
	case n == nil && strict:
		err = d.at(n, "the configuration has no %s", section)
	case n != nil && len(named) == 0:
		err = d.at(n, "%s names no data source", section)
	}
	if err != nil && !strict {
		return []dataSource{{problem: &ConfigError{err}}}, nil
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		s, serr := d.dataSource(named[name], name, true, drivers)
		if named[name] == nil {
			serr = d.at(keyIn(n, name), "data source %s is empty: it needs a driver and a dsn", safeName(name))
		}
		if name == "" {
			serr = errors.Join(serr, d.at(named[name], "a data source has no name"))
		}
		if strict {
			err = errors.Join(err, serr)
		} else if serr != nil {
			s.problem = &ConfigError{serr}
		}
		all = append(all, s)
	}
	return all, err
}

// logs reads the section of the log: one data source, or a list of several, each
// with a name.
func (d *decoder) logs(n ast.Node, check bool) (all []dataSource, err error) {
	const section = "transactionLogDataSource"
	list, several := n.(*ast.SequenceNode)
	switch {
	case n == nil:
		return nil, d.at(n, "the configuration has no %s", section)
	case !several:
		s, err := d.dataSource(n, section, check, databases)
		return []dataSource{s}, err
	case len(list.Values) == 0:
		return nil, d.at(n, "%s names no log", section)
	}
	for _, n := range list.Values {
		s, serr := d.dataSource(n, "", check, databases)
		switch err = errors.Join(err, serr); {
		case serr == nil && s.name == "":
			err = errors.Join(err, d.at(n, "%s: each log of a list needs a name", section))
		case slices.ContainsFunc(all, func(other dataSource) bool { return other.name == s.name }):
			err = errors.Join(err, d.at(n, "%s: two logs have the same name", section))
		}
		all = append(all, s)
	}
	return all, err
}

// dataSource reads {driver, dsn} and the keys of its access, and its name if it is in a list, where
// name is empty. With check it also has the driver parse the DSN.
func (d *decoder) dataSource(n ast.Node, name string, check bool, drivers map[string]targetOf) (s dataSource, err error) {
	var is sourceKeys
	err = d.decode(n, &is)
	s = dataSource{name: cmp.Or(name, string(is.Name)), driver: string(is.Driver), dsn: string(is.DSN), at: n}
	if flavor := sqltext.FlavorOf(s.driver); flavor != 0 { // "mariadb" is "mysql" from here on
		s.driver = flavor.String()
	}
	what := safeName(s.name)
	if err == nil {
		s.access, err = d.access(n, what, is)
	}
	switch {
	case err != nil:
	case name != "" && is.Name != "":
		err = d.at(n, "data source %s: only the logs of a list have a key name", what)
	case drivers[s.driver] == nil: // not quoted: somebody may have swapped driver and dsn
		err = d.at(n, "data source %s: unknown driver, it must be %s", what, namesOf(drivers))
	case s.dsn == "":
		err = d.at(n, "data source %s has no dsn", what)
	case check:
		if _, terr := s.target(); terr != nil {
			err = d.at(n, "%s", redact(terr.Error(), s.dsn))
		}
	}
	return s, err
}

// sourceKeys are the keys of a data source.
type sourceKeys struct {
	Name   text `yaml:"name"`
	Driver text `yaml:"driver"`
	DSN    text `yaml:"dsn"`
	TLS    *struct {
		CA         text `yaml:"ca"`
		Cert       text `yaml:"cert"`
		Key        text `yaml:"key"`
		ServerName text `yaml:"serverName"`
	} `yaml:"tls"`
	PasswordFile    text     `yaml:"passwordFile"`
	PasswordCommand []text   `yaml:"passwordCommand"`
	PasswordTTL     ast.Node `yaml:"passwordTTLMillis"`

	Headers     map[string]text `yaml:"headers"`
	HeaderFiles map[string]text `yaml:"headerFiles"`
	Timeout     ast.Node        `yaml:"timeoutMillis"`
}

// access makes the access of the data source at n, which errors call what; nil without keys.
func (d *decoder) access(n ast.Node, what string, is sourceKeys) (*access.Access, error) {
	k := access.Keys{PasswordFile: string(is.PasswordFile)}
	if is.TLS != nil {
		k.TLS = &access.TLS{CA: string(is.TLS.CA), Cert: string(is.TLS.Cert), Key: string(is.TLS.Key), ServerName: string(is.TLS.ServerName)}
	}
	for _, arg := range is.PasswordCommand {
		k.PasswordCommand = append(k.PasswordCommand, string(arg))
	}
	if is.PasswordTTL != nil {
		if err := d.set("passwordTTLMillis", is.PasswordTTL, &k.PasswordTTL, false); err != nil {
			return nil, err
		}
	}
	if is.Timeout != nil {
		if err := d.set("timeoutMillis", is.Timeout, &k.Timeout, false); err != nil {
			return nil, err
		}
	}
	ofHTTP := len(is.Headers)+len(is.HeaderFiles) > 0 || k.Timeout > 0
	if ofHTTP && is.Driver != "http" {
		return nil, d.at(n, "data source %s: headers, headerFiles and timeoutMillis are keys of an HTTP service (driver: http)", what)
	}
	k.Headers, k.HeaderFiles = headers(is.Headers), headers(is.HeaderFiles)
	if k.TLS == nil && k.PasswordFile == "" && k.PasswordCommand == nil && k.PasswordTTL == 0 && !ofHTTP {
		return nil, nil
	}
	a, err := access.New(k, string(is.DSN))
	if err != nil {
		return nil, d.at(n, "data source %s: %w", what, err)
	}
	return a, nil
}

// headers are values by the names of headers.
func headers(of map[string]text) map[string]string {
	all := map[string]string{}
	for name, value := range of {
		all[http.CanonicalHeaderKey(name)] = string(value)
	}
	return all
}

// sharedFile refuses a SQLite log in a target's own file: each would wait for
// the other's lock.
func (d *decoder) sharedFile(c *config) (err error) {
	for _, l := range c.logs {
		log, _ := l.target()
		for _, s := range c.targets {
			if t, _ := s.target(); target.SameFile(t.File, log.File) {
				err = errors.Join(err, d.at(s.at, "data source %s: it is the SQLite file of the transaction log, which must be a file of its own", safeName(s.name)))
			}
		}
	}
	return err
}

func (d *decoder) job(n ast.Node, whole *config) error {
	c, activity := &whole.job, true
	known := map[string]any{
		"name": &c.Name, "cron": &c.Cron, "transactionLogFetchDataCount": &c.TransactionLogFetchDataCount,
		"maxDeliveryTryTimes": &c.MaxDeliveryTryTimes, "maxDeliveryTryDelayMillis": &c.MaxDeliveryTryDelay,
		"retryDelayMillis": &c.RetryDelay, "retryDelayMaxMillis": &c.RetryDelayMax, "retryMultiplier": &c.RetryMultiplier, "retryJitter": &c.RetryJitter,
		"deliveryTimeoutMillis": &c.DeliveryTimeout, "probeTimeoutMillis": &c.ProbeTimeout, "leaseMillis": &c.Lease,
		"concurrency": &c.Concurrency, "deliveryBatch": &c.DeliveryBatch, "unknownDataSourceDelayMillis": &c.UnknownDataSourceDelay,
		"shutdownTimeoutMillis": &c.ShutdownTimeout, "receiptRetentionMillis": &c.ReceiptRetention, "keyRetentionMillis": &c.KeyRetention,
		"purgeIntervalMillis": &c.PurgeInterval, "exitIfLogUnavailable": &whole.exitIfLogUnavailable, "activity": &activity,
	}
	values := map[string]ast.Node{}
	err := d.decode(n, &values)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		to := known[key]
		if to == nil {
			err = errors.Join(err, d.at(values[key], "unknown key %s in jobConfig; it knows %s", safeName(key), strings.Join(slices.Sorted(maps.Keys(known)), ", ")))
			continue
		}
		// NoDelay and NoJitter.
		zeroIsNone := to == &c.MaxDeliveryTryDelay || to == &c.RetryDelay || to == &c.RetryJitter
		err = errors.Join(err, d.set(key, values[key], to, zeroIsNone))
	}
	if whole.noActivity = !activity; err != nil {
		return err
	}
	// The job itself validates, so that the rules are in one place.
	job, err := asyncjob.New(txlog.NewMemory(), asyncjob.Targets{}, *c)
	if err == nil {
		_ = job.Close()
	}
	return d.eachAt(n, err, "asyncjob: ")
}

func (d *decoder) console(n ast.Node, c *console.Config) error {
	var is struct {
		Listen       text   `yaml:"listen"`
		Metrics      text   `yaml:"metrics"`
		AllowedHosts []text `yaml:"allowedHosts"`
		BasePath     text   `yaml:"basePath"`
		Proxies      []text `yaml:"trustedProxies"`
		ProxyAuth    struct {
			Header  text            `yaml:"header"`
			Groups  text            `yaml:"groups"`
			Roles   map[string]text `yaml:"roles"`
			Default text            `yaml:"default"`
		} `yaml:"proxyAuth"`
		Users []struct {
			Name text `yaml:"name"`
			Hash text `yaml:"passwordHash"`
			Role text `yaml:"role"`
		} `yaml:"users"`
		Tokens []struct {
			Name text `yaml:"name"`
			Hash text `yaml:"tokenHash"`
			Role text `yaml:"role"`
		} `yaml:"tokens"`
	}
	if err := d.decode(n, &is); err != nil || n == nil {
		return err
	}
	c.Listen, c.BasePath, c.OpenMetrics = string(is.Listen), string(is.BasePath), is.Metrics == "open"
	if is.Metrics != "" && !c.OpenMetrics {
		return d.at(n, "metrics is open, or left out: then /metrics takes the role read where there are users or tokens")
	}
	for _, host := range is.AllowedHosts {
		c.AllowedHosts = append(c.AllowedHosts, string(host))
	}
	for _, proxy := range is.Proxies {
		c.TrustedProxies = append(c.TrustedProxies, string(proxy))
	}
	auth := is.ProxyAuth
	c.ProxyAuth = console.ProxyAuth{Header: string(auth.Header), Groups: string(auth.Groups), Roles: map[string]console.Role{}}
	for name, role := range auth.Roles {
		c.ProxyAuth.Roles[name] = roleOf(role)
	}
	if c.ProxyAuth.Default = roleOf(auth.Default); c.ProxyAuth.Default == 0 && auth.Default != "" {
		return d.at(n, "proxyAuth: default is read, operate or reveal, or left out")
	}
	for _, u := range is.Users {
		c.Users = append(c.Users, console.User{Name: string(u.Name), PasswordHash: string(u.Hash), Role: roleOf(u.Role)})
	}
	for _, t := range is.Tokens {
		c.Tokens = append(c.Tokens, console.Token{Name: string(t.Name), TokenHash: string(t.Hash), Role: roleOf(t.Role)})
	}
	judged := *c
	judged.Listen = cmp.Or(judged.Listen, DefaultListen)
	return d.eachAt(n, judged.Validate(), "console: ")
}

// roleOf returns the role called name, or none, which Validate refuses.
func roleOf(name text) (role console.Role) {
	_ = role.UnmarshalText([]byte(name))
	return role
}
