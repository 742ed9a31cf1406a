package simulation

import (
	"maps"
	"slices"
	"strings"
)

// This file runs the statements parsed by sql_test.go.

func (p *parser) table() *table {
	database, name, ok := strings.Cut(p.name(), ".")
	if !ok {
		database, name = p.s.database, database
	}
	t := p.s.server.databases[database][name]
	if database == "information_schema" {
		panic("the simulated server has no " + database + "." + name) // not an error that bed could live with
	}
	if t == nil {
		panic(serverError(1146, "42S02", "Table '"+name+"' doesn't exist"))
	}
	if p.takes("FORCE", "INDEX") {
		p.want("(")
		p.next()
		p.want(")")
	}
	return t
}

func (t *table) sorted() []any {
	ids := slices.Collect(maps.Keys(t.cells))
	slices.SortFunc(ids, order)
	return ids
}

// order compares two values for ORDER BY.
func order(a, b any) int {
	switch {
	case isTrue(compare("<", a, b)):
		return -1
	case isTrue(compare(">", a, b)):
		return 1
	}
	return 0
}

// where returns the rows matching the next condition.
func (p *parser) where(t *table) []*cell {
	return p.those(t, func(c *cell) row { return c.seenBy(p.s) })
}

// those is where with another view than the session's.
func (p *parser) those(t *table, seen func(*cell) row) (found []*cell) {
	if !p.takes("WHERE") {
		for _, id := range t.sorted() {
			if c := t.cells[id]; seen(c) != nil {
				found = append(found, c)
			}
		}
		return found
	}
	from, args := p.at, p.args
	p.row = t.defaults
	p.expr() // to find its end
	end, rest := p.at, p.args
	for _, id := range t.sorted() {
		c := t.cells[id]
		if p.row = seen(c); p.row == nil {
			continue
		}
		p.at, p.args = from, args
		if isTrue(p.expr()) {
			found = append(found, c)
		}
	}
	p.at, p.args = end, rest
	return found
}

// lock makes the session the owner of rows; all or none.
func (p *parser) lock(cells []*cell) []*cell {
	for _, c := range cells {
		if c.owner != nil && c.owner != p.s {
			panic(errLockTimeout)
		}
	}
	for _, c := range cells {
		if c.owner == nil {
			c.owner, c.pending = p.s, maps.Clone(c.committed)
			p.s.owned = append(p.s.owned, c)
		}
	}
	return cells
}

// insert adds rows. It skips a row with an existing key if the statement handles that case: our
// statements then change no row.
func (p *parser) insert() *answer {
	t := p.table()
	var columns []string
	for p.want("("); !p.takes(")"); p.takes(",") {
		columns = append(columns, p.name())
	}
	if p.takes("SELECT") {
		return p.insertSelected(t, columns)
	}
	p.want("VALUES")
	var all []row
	for p.takes("(") {
		made := maps.Clone(t.defaults)
		for _, column := range columns {
			p.row = made
			made[column] = p.expr()
			p.takes(",")
		}
		p.want(")")
		p.takes(",")
		all = append(all, made)
	}
	return p.put(t, all)
}

// put adds rows. For an existing row it applies the following changes, if there are any.
func (p *parser) put(t *table, all []row) *answer {
	a := &answer{}
	upserts := p.takes("ON", "DUPLICATE", "KEY", "UPDATE")
	from := p.at
	for _, made := range all {
		key := t.keyOf(made)
		if t.cells[key] == nil {
			t.cells[key] = &cell{}
		}
		c := p.lock([]*cell{t.cells[key]})[0]
		was := maps.Clone(c.pending)
		switch {
		case was == nil:
			c.pending = made
			a.affected++
		case !upserts && !p.ignores:
			name := "bed_receipt." + t.key
			if p.s.server.isMariaDB() {
				name = t.key
			}
			panic(serverError(1062, "23000", "Duplicate entry '"+key.(string)+"' for key '"+name+"'"))
		}
		p.made, p.row, p.at = made, maps.Clone(c.pending), from // it assigns from left to right
		for upserts && p.at < len(p.tokens) && p.peek() != "RETURNING" {
			column := p.name()
			p.want("=")
			v := p.expr()
			if p.takes(","); was == nil {
				continue
			}
			if v == outOfRange {
				panic(outOfRange)
			}
			p.row[column[strings.LastIndex(column, ".")+1:]] = v
		}
		if was != nil && !maps.Equal(was, p.row) {
			c.pending = p.row
			a.affected += 2
		}
		if p.takes("RETURNING") {
			p.row = c.pending
			a.rows = append(a.rows, p.columns(len(p.tokens)))
			a.columns = make([]string, len(a.rows[0]))
		}
	}
	return a
}

// insertSelected adds the rows whose sources have one.
func (p *parser) insertSelected(t *table, columns []string) *answer {
	var all []row
	for {
		made := maps.Clone(t.defaults)
		for _, column := range columns {
			p.row = made
			made[column] = p.expr()
			p.takes(",")
		}
		there := true
		switch {
		case p.takes("FROM", "DUAL"):
			if p.takes("WHERE") {
				there = isTrue(p.expr())
			}
		case p.takes("FROM"):
			there = len(p.where(p.table())) == 1
		}
		if there {
			all = append(all, made)
		}
		if !p.takes("UNION", "ALL", "SELECT") {
			break
		}
	}
	if all == nil {
		return &answer{}
	}
	return p.put(t, all)
}

func (p *parser) deletes() *answer {
	found := p.lock(p.where(p.table()))
	a := &answer{affected: int64(len(found))}
	if p.takes("RETURNING") {
		name := p.name()
		a.columns = []string{name}
		for _, c := range found {
			a.rows = append(a.rows, []any{c.pending[name]})
		}
	}
	for _, c := range found {
		c.pending = nil
	}
	return a
}

func (p *parser) update() *answer {
	t := p.table()
	p.want("SET")
	from, all := p.at, p.args
	end := slices.Index(p.tokens, "WHERE")
	p.at, p.args = end, p.args[p.holes(from, end):]
	if at, args := p.at, p.args; !p.s.server.isLog {
		p.lock(p.those(t, func(c *cell) row { // a row as it was before another changed it
			if c.owner == nil || c.owner == p.s {
				return nil
			}
			return c.committed
		}))
		p.at, p.args = at, args
	}
	found := p.lock(p.where(t))
	for _, c := range found {
		old := maps.Clone(c.pending)
		if id, _ := old["id"].(int64); p.s.server.forbidden[int(id)] {
			panic(errConstraint)
		}
		for p.at, p.args = from, all; p.at < end; p.takes(",") {
			column := p.name()
			p.want("=")
			p.row = old
			c.pending[column] = p.expr()
		}
	}
	return &answer{affected: int64(len(found))}
}

// holes counts the placeholders between two places.
func (p *parser) holes(from, to int) (n int) {
	for _, t := range p.tokens[from:to] {
		if t == "?" {
			n++
		}
	}
	return n
}

func (p *parser) selects() *answer {
	from, args := p.at, p.args
	end := slices.Index(p.tokens, "FROM")
	if end < 0 {
		p.row = row{}
		values := p.columns(len(p.tokens))
		return &answer{rows: [][]any{values}, columns: make([]string, len(values))}
	}
	p.at, p.args = end, args[p.holes(from, end):]
	p.want("FROM")
	t := p.table()
	found := p.choose(t, p.where(t))
	if p.tokens[from] == "*" {
		return &answer{columns: slices.Sorted(maps.Keys(t.defaults))} // no row is ever asked for
	}
	a := &answer{}
	for _, c := range found {
		p.row, p.at, p.args = c.seenBy(p.s), from, args
		a.rows = append(a.rows, p.columns(end))
	}
	if len(a.rows) > 0 {
		a.columns = make([]string, len(a.rows[0]))
	} else {
		p.row, p.at, p.args = t.defaults, from, args
		a.columns = make([]string, len(p.columns(end)))
	}
	return a
}

// choose reads the clauses after the condition of a SELECT.
func (p *parser) choose(t *table, found []*cell) []*cell {
	if p.takes("ORDER", "BY") {
		by := []string{p.name()}
		for p.takes(",") {
			by = append(by, p.name())
		}
		slices.SortStableFunc(found, func(a, b *cell) int {
			for _, column := range by {
				if c := order(a.seenBy(p.s)[column], b.seenBy(p.s)[column]); c != 0 {
					return c
				}
			}
			return 0
		})
	}
	limit := len(found)
	if p.takes("LIMIT") {
		limit = int(p.expr().(int64))
	}
	if p.takes("FOR", "UPDATE") {
		if p.takes("SKIP", "LOCKED") {
			found = slices.DeleteFunc(found, func(c *cell) bool { return c.owner != nil && c.owner != p.s })
		}
		return p.lock(found[:min(limit, len(found))])
	}
	return found[:min(limit, len(found))]
}

func (p *parser) columns(end int) (values []any) {
	for p.at < end {
		values = append(values, p.expr())
		p.takes(",")
	}
	return values
}
