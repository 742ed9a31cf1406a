package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/txlog"
)

// pageSize is how many units are read from the log at once.
const pageSize = 500

// The widths that the last two columns of a list have at least.
const (
	sqlWidth   = 24
	errorWidth = 20
)

func listCommand(a *app) *cobra.Command {
	var (
		f      filters
		limit  int
		out    output
		verify bool
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the entries of the log, oldest first",
		Long: "List the entries of the log, oldest first: one line for each unit of delivery, with its SQL\nshortened and without parameters (see show). With --verify the targets are asked\nwhether each is applied.\n" +
			verdictHelp + "\n" + jsonHelp,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.read(cmd); err != nil {
				return err
			}
			if limit < 0 {
				return usagef(cmd, "--limit must not be negative")
			}
			need := onlyLog
			if verify {
				need = logAndTargets
			}
			return a.withConfig(cmd.Context(), need, func(st txlog.Storage, cfg *config) error {
				list := logList{app: a, storage: st, json: out.json(), cfg: cfg}
				if verify {
					list.verifier = newVerifier(a, st, cfg)
					defer list.verifier.Close()
				}
				return list.print(cmd.Context(), f, limit)
			})
		},
	}
	a.configFlag(cmd)
	outputFlag(a, cmd, &out)
	filterFlags(a, cmd, &f)
	cmd.Flags().IntVar(&limit, "limit", 0, "at most so many (0: all)")
	cmd.Flags().BoolVar(&verify, "verify", false, "ask the targets whether each is applied already")
	return cmd
}

// eachUnit pages through the units that f selects.
func eachUnit(ctx context.Context, st txlog.Storage, f txlog.Filter, limit int, do func([]*txlog.Unit) error) error {
	for {
		f.Limit = pageSize
		if limit > 0 {
			f.Limit = min(pageSize, limit)
		}
		units, err := st.List(ctx, f)
		if err != nil {
			return err
		}
		if len(units) > 0 {
			if err := do(units); err != nil {
				return err
			}
			f.After = units[len(units)-1].ID
		}
		if len(units) < f.Limit {
			return nil
		}
		if limit > 0 {
			if limit -= len(units); limit == 0 {
				return nil
			}
		}
	}
}

// A logList is one run of the command list.
type logList struct {
	*app
	storage  txlog.Storage
	verifier *ops.Verifier // nil: the targets are not asked
	json     bool
	cfg      *config
}

// page is a page of units with their verdicts, if these were asked for.
type page struct {
	units  []*txlog.Unit
	judged []ops.Judgement
}

func (p page) verdict(i int) *ops.Judgement {
	if p.judged == nil {
		return nil
	}
	return &p.judged[i]
}

func (l *logList) print(ctx context.Context, f filters, limit int) error {
	match := func(do func([]*txlog.Unit) error) error {
		plain, ok := f.plain()
		if ok {
			return eachUnit(ctx, l.storage, plain, limit, do)
		}
		store, err := openDesk(l.app, l.storage, l.cfg)
		if err != nil {
			return err
		}
		return eachMatch(ctx, store, f.Filter, limit, do)
	}
	each := func(do func(page) error) error {
		return match(func(units []*txlog.Unit) (err error) {
			p := page{units: units}
			if l.verifier != nil {
				if p.judged, err = l.verifier.Judge(ctx, units); err != nil {
					return err
				}
			}
			return do(p)
		})
	}
	if l.json {
		return l.printJSON(each)
	}
	return l.printTable(each)
}

func (l *logList) printTable(each func(func(page) error) error) error {
	found := false
	w := tabwriter.NewWriter(l.Out, 0, 0, 2, ' ', 0)
	told := map[string]bool{}
	var details []string
	err := each(func(p page) error {
		heading := "ID\tDATA SOURCE\tSTATE\t"
		if l.verifier != nil {
			heading += "VERDICT\t"
		}
		heading += "TRIES\tCREATED\tNEXT TRY"
		if !found {
			fmt.Fprintln(w, heading+"\tLAST ERROR\tSQL")
		}
		found = true
		rows := make([]row, 0, len(p.units))
		for i, u := range p.units {
			now, next := logClock(l.app, u), "-"
			if !u.Parked {
				next = until(now, dueAt(l.app, u))
			}
			state := string(ops.StateOf(u))
			if j := p.verdict(i); j != nil {
				state += "\t" + j.Short()
				if why := u.DataSource + ": " + j.Note(); j.Note() != "" && !told[why] {
					told[why] = true
					details = append(details, why)
				}
			}
			rows = append(rows, row{
				fmt.Sprintf("%s\t%s\t%s\t%d\t%s\t%s", printable(u.ID), printable(u.DataSource), state, u.Tries, when(now, u.CreatedAt), next),
				orDash(oneLine(u.LastError, math.MaxInt)), u})
		}
		errors, sqls := l.room(heading, rows)
		for _, r := range rows {
			fmt.Fprintf(w, "%s\t%s\t%s\n", r.head, oneLine(r.err, errors), sqlCell(r.unit, sqls))
		}
		return w.Flush()
	})
	for _, why := range details {
		l.complain("data source " + why)
	}
	if err == nil && !found {
		_, err = fmt.Fprintln(l.Err, "The log holds nothing of that kind.")
	}
	return err
}

// row is a line of the list: its cells that are never cut, and the others.
type row struct {
	head, err string
	unit      *txlog.Unit
}

// room is how wide the last two columns can be: as wide as their content unless a
// terminal limits them, else what the terminal leaves.
func (l *logList) room(heading string, rows []row) (errors, sqls int) {
	width := l.width()
	if width == 0 {
		return math.MaxInt, math.MaxInt
	}
	widths := map[int]int{}
	for _, line := range append([]row{{head: heading, err: "LAST ERROR"}}, rows...) {
		for i, cell := range strings.Split(line.head, "\t") {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
		errors = max(errors, utf8.RuneCountInString(line.err))
	}
	for _, n := range widths {
		width -= n + 2
	}
	errors = min(errors, max(errorWidth, width*2/5))
	return errors, max(sqlWidth, width-errors-2)
}

func sqlCell(u *txlog.Unit, width int) string {
	switch n := len(u.Statements); {
	case u.Unreadable != nil:
		return oneLine("(unreadable: "+u.Unreadable.Error()+")", width)
	case n == 0:
		return "-"
	case n == 1:
		return oneLine(u.Statements[0].SQL, width)
	default:
		more := fmt.Sprintf(" (and %d more)", n-1)
		return oneLine(u.Statements[0].SQL, max(width-len(more), sqlWidth-len(more))) + more
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// printJSON writes one array, page by page.
func (l *logList) printJSON(each func(func(page) error) error) error {
	sep := "[\n  "
	err := each(func(p page) error {
		for i, u := range p.units {
			text, err := marshal(viewOf(l.app, u, p.verdict(i)), "  ")
			if err != nil {
				return err
			}
			if _, err := io.WriteString(l.Out, sep+text); err != nil {
				return err
			}
			sep = ",\n  "
		}
		return nil
	})
	if err != nil {
		return err
	}
	end := "\n]\n"
	if sep == "[\n  " {
		end = "[]\n"
	}
	_, err = io.WriteString(l.Out, end)
	return err
}
