package sqlite

import (
	"errors"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener/delivery"
	"modernc.org/sqlite"
)

// dataSourceParam names the data source in a DSN. The driver never sees it.
const dataSourceParam = "bedDataSource"

// Names of data sources that are in no file.
const (
	memoryName    = ":memory:"
	temporaryName = ":temporary:"
)

// Target reads a DSN of modernc.org/sqlite's form, a path or a file: URI with
// parameters after a question mark, and returns the bare driver's connector
// with all that bed knows of the data source. bedDataSource (escaped as a query
// parameter) names it in the log; without it the name is the file's absolute
// path, or ":memory:".
//
// A database in memory belongs to one connection alone (NoSideConnection):
// what failed there cannot be tried again on another. Only one that is shared
// (cache=shared, or the memdb VFS) is the same to all connections of the
// process.
func Target(dsn string) (delivery.Target, error) {
	where, bare, name, err := readDSN(dsn)
	if err != nil {
		return delivery.Target{}, err
	}
	return target(where, bare, name)
}

func target(where location, bare, name string) (delivery.Target, error) {
	connector, err := sqlite.NewConnector(bare)
	if err != nil {
		return delivery.Target{}, errors.New("sqlite: the DSN's parameters cannot be used: vfs has two different values")
	}
	if name == "" {
		name = where.name
	}
	return delivery.Target{
		Connector:        connector,
		Dialect:          dialect,
		DataSource:       name,
		Settings:         settings(where.query),
		OlderSettings:    olderSettings(where.query),
		With:             func(settings string) (delivery.Target, error) { return with(bare, name, settings) },
		NoSideConnection: where.private,
		File:             where.file,
	}, nil
}

// readDSN gives where a DSN leads, the DSN for the driver, and the name in its
// bedDataSource.
func readDSN(dsn string) (where location, bare, name string, err error) {
	name, bare, err = splitDataSource(dsn)
	if err != nil {
		return location{}, "", "", err
	}
	_, rawQuery := cutQuery(bare)
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return location{}, "", "", errors.New("sqlite: the DSN's parameters cannot be read: escape them as in a URL")
	}
	for key := range query {
		if strings.EqualFold(key, attempt.SchemaParam) {
			return location{}, "", "", errors.New("sqlite: " + attempt.SchemaParam + " in the DSN: SQLite has no schemas to keep receipts in, leave it out")
		}
	}
	where, err = locate(bare, query)
	where.query = query
	return where, bare, name, err
}

// splitDataSource takes bedDataSource out of a DSN and leaves everything else
// byte for byte. The driver does not export its parser.
func splitDataSource(dsn string) (name, bare string, err error) {
	head, rawQuery := cutQuery(dsn)
	if head == dsn {
		return "", dsn, nil
	}
	params := strings.Split(rawQuery, "&")
	kept := params[:0:0]
	for _, p := range params {
		rawKey, rawValue, _ := strings.Cut(p, "=")
		if key, err := url.QueryUnescape(rawKey); err != nil || key != dataSourceParam {
			kept = append(kept, p)
			continue
		}
		value, err := url.QueryUnescape(rawValue)
		if err != nil {
			return "", "", errors.New("sqlite: " + dataSourceParam + " in the DSN is not escaped as a query parameter: use url.QueryEscape")
		}
		if value == "" {
			return "", "", errors.New("sqlite: " + dataSourceParam + " in the DSN is empty: name the data source or leave the parameter out")
		}
		if name != "" && value != name {
			return "", "", errors.New("sqlite: the DSN has two different values of " + dataSourceParam + ": leave one")
		}
		name = value
	}
	switch {
	case len(kept) == len(params):
		return "", dsn, nil
	case len(kept) == 0:
		return name, head, nil
	default:
		return name, head + "?" + strings.Join(kept, "&"), nil
	}
}

// cutQuery splits a DSN where the driver does: at the first question mark,
// unless that is its first byte.
func cutQuery(dsn string) (head, query string) {
	if i := strings.IndexByte(dsn, '?'); i >= 1 {
		return dsn[:i], dsn[i+1:]
	}
	return dsn, ""
}

type location struct {
	// name is the file's absolute path, or what stands for it.
	name string
	// file is the same; empty for a database in no file.
	file string
	// private is whether each connection has a database of its own.
	private bool
	// query holds the DSN's parameters.
	query url.Values
}

func locate(dsn string, query url.Values) (location, error) {
	head, _ := cutQuery(dsn)
	path, uri := strings.CutPrefix(head, "file:")
	shared := false
	if uri {
		var err error
		if path, err = uriPath(path); err != nil {
			return location{}, err
		}
		shared = query.Get("cache") == "shared"
	}
	switch {
	case query.Get("vfs") == "memdb" && strings.HasPrefix(path, "/"),
		uri && shared && (path == memoryName || query.Get("mode") == "memory") && path != "":
		return location{name: ":memory:" + strings.TrimPrefix(path, memoryName)}, nil
	case path == memoryName, uri && query.Get("mode") == "memory", query.Get("vfs") == "memdb":
		return location{name: memoryName, private: true}, nil
	case path == "":
		return location{name: temporaryName, private: true}, nil
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return location{}, errors.New("sqlite: the database's path cannot be made absolute, because the working directory " +
			"is not known: give an absolute path or " + dataSourceParam)
	}
	return location{name: abs, file: abs}, nil
}

// uriPath reads the path of a file: URI as SQLite does: an authority may only
// be empty or localhost, a fragment is ignored, escapes are decoded.
func uriPath(rest string) (string, error) {
	rest, _, _ = strings.Cut(rest, "#")
	if authority, ok := strings.CutPrefix(rest, "//"); ok {
		i := strings.IndexByte(authority, '/')
		if i < 0 {
			i = len(authority)
		}
		if host := authority[:i]; host != "" && host != "localhost" {
			return "", errors.New("sqlite: the DSN's file: URI names a host: use file:///absolute/path or file:relative/path")
		}
		rest = authority[i:]
	}
	path, err := url.PathUnescape(rest)
	if err != nil {
		// SQLite takes a malformed escape as it stands.
		return rest, nil //nolint:nilerr // it is no error to SQLite
	}
	return path, nil
}
