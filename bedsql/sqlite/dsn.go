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

// Names of data sources without a file.
const (
	memoryName    = ":memory:"
	temporaryName = ":temporary:"
)

// Target reads a DSN of modernc.org/sqlite's form, a path or a file: URI with parameters
// after a question mark. It returns the bare driver's connector with bed's knowledge of the
// data source. bedDataSource (escaped as a query parameter) names it in the log; the default
// is the file's absolute path, or ":memory:".
//
// A database in memory belongs to one connection alone (NoSideConnection): a failed write
// cannot be tried again on another. Only a shared one (cache=shared, or the memdb VFS) is
// the same for all connections of the process; it vanishes with the last of them.
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
		Dialect:          sqliteDialect,
		DataSource:       name,
		Settings:         settings(where.query),
		With:             dialects.Applying(func(list []dialects.Setting) (delivery.Target, error) { return with(bare, name, list) }),
		NoSideConnection: where.private,
		InMemory:         where.file == "",
		File:             where.file,
	}, nil
}

// readDSN returns the location in a DSN, the DSN for the driver, and the name in its
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

// cutQuery splits a DSN like the driver: at the first question mark, unless that is its
// first byte.
func cutQuery(dsn string) (head, query string) {
	if i := strings.IndexByte(dsn, '?'); i >= 1 {
		return dsn[:i], dsn[i+1:]
	}
	return dsn, ""
}

type location struct {
	// name is the file's absolute path, or the name that replaces it.
	name string
	// file is the same; empty for a database without a file.
	file string
	// private is set if each connection has a database of its own.
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

// uriPath reads the path of a file: URI like SQLite: an authority is empty or localhost, a
// fragment is ignored, escapes are decoded.
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
		// SQLite keeps a malformed escape unchanged.
		return rest, nil //nolint:nilerr // it is no error to SQLite
	}
	return path, nil
}
