package service

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/httpkey"
	"github.com/bedsql/bed/internal/test/cases"
)

func TestAnswersMeanWhatTheTableSays(t *testing.T) {
	t.Parallel()
	cases.Check(t, "../internal/service/testdata/answers.txt", func(t *testing.T, in ...string) string {
		in = append(in, "", "")
		status, err := strconv.Atoi(in[0])
		if err != nil || in[1] != "any" && in[1] != "scoped" {
			t.Fatalf("%q: want a status, and any or scoped", in)
		}
		e := &StatusError{Status: status, Header: http.Header{}}
		for _, header := range strings.Split(in[2], ", ") { // a date has ", " of its own
			if name, value, ok := strings.Cut(header, ": "); ok {
				e.Header.Set(name, value)
			} else if header != "" {
				for name, values := range e.Header {
					if strings.HasPrefix(values[0], "Mon") && !strings.Contains(values[0], ",") {
						e.Header.Set(name, values[0]+", "+header)
					}
				}
			}
		}
		if in[3] != "" {
			p := problem{Type: httpkey.Types + in[3]}
			if title, ok := strings.CutPrefix(in[3], "title "); ok {
				p = problem{Title: title}
			}
			e.Header.Set("Content-Type", "application/problem+json; charset=utf-8")
			e.Body, _ = json.Marshal(p)
		}
		return meaning(judge(in[1] == "scoped", e))
	})
}

func meaning(err error) string {
	if err == nil {
		return "delivered"
	}
	class, advice := callDialect.Class(err), dialect.AdviceOf(err)
	of := map[dialect.Class]string{dialect.Refused: "refused", dialect.Retryable: "retried", dialect.Unknown: "unknown"}[class]
	switch {
	case advice.Operator:
		of = "waits for an operator"
	case advice.Busy:
		of = "busy"
	case advice.Final:
		of += " for good"
	}
	if class == dialect.Unknown && (advice.Operator || advice.Busy) {
		of += ", in doubt"
	}
	if advice.After > 0 {
		of += ", after " + advice.After.String()
	}
	return of
}
