package attempt

import (
	"database/sql/driver"
	"encoding/json"
	"io"
	"reflect"
	"testing"
)

// A stored answer of an idempotency key is either refused or read, however it was tampered with,
// and a readable one has one meaning.
func FuzzAnAnswerThatIsKeptIsRefusedOrRead(f *testing.F) {
	for _, text := range []string{
		`{"statements":[{"rowsAffected":1,"insertId":9}]}`, `{"statements":[{"columns":["a","b"],"types":["INT","TEXT"],"values":["[1,\"x\"]","[2,null]"]}]}`,
		`{"statements":[{"columns":[],"values":["[]",""]}]}`, `{"statements":[{"columns":["a"],"types":["A","B"],"values":["[1,2]"],"rowsError":"x"}]}`,
		`{"statements":[{"error":"x"}]}`, `{"statements":null}`, `null`, `{}`, `[]`, ``, `{"statements":[{"rowsAffected":9223372036854775808}]}`,
		`{"statements":[{"columns":["a"],"values":["[{\"time\":\"2024-05-01T14:00:00Z\"}]","nonsense"]}]}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ReadAnswer(text)
		if err != nil {
			return
		}
		kept, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ReadAnswer(string(kept)); err != nil || !reflect.DeepEqual(a, again) && string(kept) != mustJSON(t, again) {
			t.Fatalf("%q is read as %+v, and that as %+v, %v", text, a, again, err)
		}
		for i := range a.Statements {
			s := &a.Statements[i]
			_, _ = s.Result().RowsAffected()
			_, _ = s.Result().LastInsertId()
			if failed := s.Failure(); (failed != nil) != (s.Error != "") {
				t.Errorf("%q fails with %v", text, failed)
			}
			rows := s.Rows()
			if rows == nil {
				continue
			}
			given, dest := 0, make([]driver.Value, len(rows.Columns()))
			for err = rows.Next(dest); err == nil; err = rows.Next(dest) {
				given++
			}
			if given != len(s.Values) || (err == io.EOF) != (s.RowsError == "") {
				t.Errorf("%q gives %d rows and then %v", text, given, err)
			}
			for c := range rows.Columns() {
				_, _ = rows.ColumnTypeDatabaseTypeName(c), rows.ColumnTypeScanType(c)
			}
		}
	})
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
