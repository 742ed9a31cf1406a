package cli

import (
	"os"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// DefaultConfig is the configuration file in the working directory that is
// read when neither the flag nor the environment names one.
const DefaultConfig = "bed-job.yaml"

// ConfigVariable is the environment variable that names the configuration file.
const ConfigVariable = "BED_JOB_CONFIG"

// A dataSource is a database as the configuration names it.
type dataSource struct {
	name   string
	driver string
	dsn    string
	at     entry // where dsn stands, for problems found later
	// noActivity: see runConfig. Only of the log.
	noActivity bool
	// problem is why it cannot be used; it is set only where problems are no
	// reason to refuse the whole configuration.
	problem error
}

// A config is what a configuration file says.
type config struct {
	// log is the one that the command works on: the first, or the one named by
	// --log.
	log dataSource
	// logs are all of them.
	logs    []dataSource
	targets []dataSource
	job     jobConfig
	console consoleConfig
	runConfig
}

// A runConfig is the part of the section jobConfig that is not for the job
// itself.
type runConfig struct {
	// exitIfLogUnavailable says that run does not wait for a log that is down.
	exitIfLogUnavailable bool
	// noActivity says that what becomes of the writes of each minute is not kept.
	noActivity bool
}

// part says how much of a configuration a command needs. What it does not
// need may lack its environment variables.
type part uint8

const (
	onlyLog part = iota
	// logAndTargets takes each target as far as it can be read, and says what is
	// wrong with the others. There may be none.
	logAndTargets
	// logTargetsAndConsole is logAndTargets with the section console.
	logTargetsAndConsole
	wholeFile
)

// parseConfig reads src; a *ConfigError names every place that is wrong.
func parseConfig(file string, src []byte, lookup func(string) (string, bool), p part) (*config, error) {
	d := sections{&decoder{file: file, lookup: lookup}}
	c := &config{}
	if top := d.parse(src); top != nil {
		d.config(top, c, p)
	}
	if p == wholeFile && len(d.problems) == 0 {
		d.sharedFile(c)
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// choose makes the log of that name the one that a command works on.
func (c *config) choose(name string) error {
	names := make([]string, len(c.logs))
	for i, l := range c.logs {
		if names[i] = l.name; len(c.logs) > 1 && l.name == name {
			c.log = l
			return nil
		}
	}
	switch {
	case len(c.logs) < 2 && name != "":
		return usagef(nil, "--log names one of several logs, and transactionLogDataSource has one")
	case len(c.logs) < 2:
		return nil
	case name == "":
		return usagef(nil, "transactionLogDataSource has several logs: name one with --log (%s)", strings.Join(names, ", "))
	}
	return usagef(nil, "there is no log of the name that --log gives, there are %s", strings.Join(names, ", "))
}

// sections read the configuration and its sections of data sources.
type sections struct{ *decoder }

func (d sections) config(top ast.Node, c *config, p part) {
	given := map[string]bool{}
	ok := d.fields(top, top, "the configuration", map[string]func(entry){
		"targetDataSource": func(e entry) {
			given[e.key] = true
			switch p {
			case wholeFile:
				c.targets = d.targets(e)
			case logAndTargets, logTargetsAndConsole:
				c.targets = d.usableTargets(e)
			}
		},
		"transactionLogDataSource": func(e entry) {
			given[e.key] = true
			c.logs = d.logs(e, p == wholeFile)
		},
		"console": func(e entry) {
			if p == wholeFile || p == logTargetsAndConsole {
				consoleSection(d).read(e, &c.console)
			}
		},
		"jobConfig": func(e entry) {
			if p == wholeFile {
				jobSection(d).read(e, &c.job, &c.runConfig)
				return
			}
			// Commands that only look want to say when the job will come, if that
			// can be read.
			lenient := jobSection{d.apart()}
			if lenient.read(e, &c.job, new(runConfig)); len(lenient.problems) > 0 {
				c.job = jobConfig{}
			}
		},
	})
	if !ok {
		return
	}
	for i := range c.logs {
		c.logs[i].noActivity = c.noActivity
		c.log = c.logs[0]
	}
	for _, section := range []string{"targetDataSource", "transactionLogDataSource"} {
		if !given[section] && (p == wholeFile || section == "transactionLogDataSource") {
			d.failAt(nil, "the section %s is missing", section)
		}
	}
}

func (d sections) targets(e entry) []dataSource {
	entries, ok := d.mapping(e.at, e.node, e.key)
	if !ok {
		return nil
	}
	if len(entries) == 0 {
		d.fail(e.at, "%s names no data source", e.key)
	}
	var all []dataSource
	for _, t := range entries {
		if t.key == "" {
			d.fail(t.at, "a data source has no name")
			continue
		}
		if s, ok := d.dataSource(t, true); ok {
			all = append(all, s)
		}
	}
	return all
}

// usableTargets is targets for commands to which a problem is one data source's,
// or the section's, and not the configuration's.
func (d sections) usableTargets(e entry) []dataSource {
	own := sections{d.apart()}
	entries, ok := own.mapping(e.at, e.node, e.key)
	if !ok {
		return []dataSource{{problem: own.err()}}
	}
	all := make([]dataSource, len(entries))
	for i, t := range entries {
		own.problems = nil
		s, ok := own.dataSource(t, true)
		if all[i] = s; !ok {
			all[i].problem = own.err()
		}
	}
	return all
}

// logs reads the section of the log: one data source, or a list of several, each
// with a name.
func (d sections) logs(e entry, check bool) []dataSource {
	n, ok := d.resolve(e.node)
	if !ok {
		return nil
	}
	list, several := n.(*ast.SequenceNode)
	if !several {
		one, _ := d.dataSource(e, check)
		return []dataSource{one}
	}
	if len(list.Values) == 0 {
		d.fail(e.at, "%s names no log", e.key)
	}
	all := make([]dataSource, len(list.Values))
	seen := map[string]bool{}
	for i, v := range list.Values {
		all[i], _ = d.dataSource(entry{key: e.key, at: v, node: v}, check, true)
		switch name := all[i].name; {
		case name == "" || name == e.key:
			d.fail(v, "%s: each log of a list needs a name", e.key)
		case seen[name]:
			d.fail(v, "%s: two logs have the same name", e.key)
		default:
			seen[name] = true
		}
	}
	return all
}

// dataSource reads {driver, dsn}, of one of several logs also its name. With check the DSN is also shown to its
// driver's parser.
func (d sections) dataSource(e entry, check bool, oneOfLogs ...bool) (dataSource, bool) {
	s := dataSource{name: e.key}
	before := len(d.problems)
	given := map[string]bool{}
	known := map[string]func(entry){
		"driver": func(f entry) {
			given[f.key] = true
			// The text is not quoted: somebody may have swapped driver and dsn.
			if s.driver, _ = d.text(f); s.driver != "" && drivers[s.driver].target == nil {
				d.fail(f.node, "data source %s: unknown driver, it must be %s", safeName(e.key), driverNames())
				s.driver = ""
			}
		},
		"dsn": func(f entry) {
			given[f.key] = true
			s.at = f
			if text, ok := d.text(f); ok {
				if strings.TrimSpace(text) == "" {
					d.fail(f.node, "data source %s: the dsn is empty", safeName(e.key))
				}
				s.dsn = text
			}
		},
	}
	if oneOfLogs != nil {
		known["name"] = func(f entry) { s.name, _ = d.text(f) }
	}
	if ok := d.fields(e.at, e.node, "data source "+safeName(e.key), known); !ok {
		return s, false
	}
	for _, key := range []string{"driver", "dsn"} {
		if !given[key] {
			d.fail(e.at, "data source %s has no %s", safeName(e.key), key)
		}
	}
	if len(d.problems) == before && check {
		if _, err := s.target(); err != nil {
			d.fail(s.at.node, "%v", err)
		}
	}
	return s, len(d.problems) == before
}

// sharedFile refuses a SQLite log in a target's own file: each would wait for
// the other's lock.
func (d sections) sharedFile(c *config) {
	for _, l := range c.logs {
		log, err := l.target()
		if err != nil || log.File == "" {
			continue
		}
		for _, s := range c.targets {
			if t, err := s.target(); err == nil && sameFile(t.File, log.File) {
				d.fail(s.at.node, "data source %s: it is the SQLite file of the transaction log, which must be a file of its own", safeName(s.name))
			}
		}
	}
}

func sameFile(a, b string) bool {
	if a == b {
		return true
	}
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
