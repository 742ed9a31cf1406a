package sqlite

import (
	"errors"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bedsql/bed/bedsql/internal/dialects"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener/delivery"
	"modernc.org/sqlite"
)

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
// process; it is gone with the last of them.
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
		Connector:  connector,
		Dialect:    dialect,
		DataSource: name,
		Settings:   settings(where.query),
		With: func(settings string) (delivery.Target, error) {
			return dialects.Apply(settings, func(list []dialects.Setting) (delivery.Target, error) { return with(bare, name, list) })
		},
		NoSideConnection: where.private,
		InMemory:         where.file == "",
		File:             where.file,
	}, nil
}

// readDSN gives where a DSN leads, the DSN for the driver, and the name in its
// bedDataSource.
func readDSN(dsn string) (where location, bare, name string, err error) {
	head, rawQuery := cutQuery(dsn)
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return location{}, "", "", errors.New("sqlite: the DSN's parameters cannot be read: escape them as in a URL")
	}
	for key := range query {
		if strings.EqualFold(key, attempt.SchemaParam) {
			return location{}, "", "", errors.New("sqlite: " + attempt.SchemaParam + " in the DSN: SQLite has no schemas to keep receipts in, leave it out")
		}
	}
	bare = dsn
	if query.Has(dialects.DataSourceParam) {
		if name = query.Get(dialects.DataSourceParam); name == "" {
			return location{}, "", "", errors.New("sqlite: " + dialects.DataSourceParam + " in the DSN is empty: give it a value or leave it out")
		}
		query.Del(dialects.DataSourceParam)
		params := slices.DeleteFunc(strings.Split(rawQuery, "&"), func(p string) bool { return strings.HasPrefix(p, dialects.DataSourceParam+"=") })
		bare = strings.TrimSuffix(head+"?"+strings.Join(params, "&"), "?")
	}
	where, err = locate(head, query)
	where.query = query
	return where, bare, name, err
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

func locate(head string, query url.Values) (location, error) {
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
			"is not known: give an absolute path or " + dialects.DataSourceParam)
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
