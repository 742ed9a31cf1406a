package console

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// A spec is the OpenAPI file, as far as the tests need it.
type spec struct {
	Paths      map[string]map[string]operation
	Components struct{ Schemas map[string]schema }
}

type operation struct {
	Role       string `json:"x-role"`
	Parameters []struct{ Name, In string }
	Responses  map[string]struct {
		Content map[string]struct{ Schema schema }
	}
}

type schema = map[string]any

func readSpec(t *testing.T) spec {
	t.Helper()
	var s spec
	b, err := files.ReadFile("openapi.json")
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// check validates a value against a schema. It knows only the keywords used in the file.
func (s spec) check(at string, sch schema, v any) (wrong []string) {
	fail := func(format string, args ...any) { wrong = append(wrong, at+": "+fmt.Sprintf(format, args...)) }
	for keyword := range sch {
		if !slices.Contains([]string{"$ref", "type", "description", "properties", "required", "additionalProperties", "items", "enum", "format", "minimum", "maximum", "maxLength", "pattern", "oneOf", "default"}, keyword) {
			fail("the schema uses %s, which is not checked", keyword)
		}
	}
	if ref, ok := sch["$ref"].(string); ok {
		named, ok := s.Components.Schemas[strings.TrimPrefix(ref, "#/components/schemas/")]
		if !ok {
			fail("no schema %s", ref)
			return wrong
		}
		return append(wrong, s.check(at, named, v)...)
	}
	if all, ok := sch["oneOf"].([]any); ok {
		fits := 0
		for _, one := range all {
			if len(s.check(at, one.(schema), v)) == 0 {
				fits++
			}
		}
		if fits != 1 {
			fail("%d of the schemas fit", fits)
		}
		return wrong
	}
	kind := map[bool]string{true: "null"}[v == nil]
	switch x := v.(type) {
	case string:
		kind = "string"
		if sch["format"] == "date-time" {
			if _, err := time.Parse(time.RFC3339Nano, x); err != nil {
				fail("%v", err)
			}
		}
		if p, ok := sch["pattern"].(string); ok && !regexp.MustCompile(p).MatchString(x) {
			fail("%q is not as %s", x, p)
		}
		if all, ok := sch["enum"].([]any); ok && !slices.Contains(all, v) {
			fail("%q is none of %v", x, all)
		}
	case bool:
		kind = "boolean"
	case float64:
		if kind = "number"; x == float64(int64(x)) && sch["type"] == "integer" {
			kind = "integer"
		}
		if low, ok := sch["minimum"].(float64); ok && x < low {
			fail("%v is below %v", x, low)
		}
	case []any:
		kind = "array"
		items, _ := sch["items"].(schema)
		for i, one := range x {
			wrong = append(wrong, s.check(fmt.Sprintf("%s[%d]", at, i), items, one)...)
		}
	case map[string]any:
		kind = "object"
		properties, _ := sch["properties"].(schema)
		for name, one := range x {
			property, ok := properties[name].(schema)
			if !ok {
				fail("%s is not described", name)
				continue
			}
			wrong = append(wrong, s.check(at+"."+name, property, one)...)
		}
		required, _ := sch["required"].([]any)
		for _, name := range required {
			if _, ok := x[name.(string)]; !ok {
				fail("%s is missing", name)
			}
		}
	}
	switch want := sch["type"].(type) {
	case string:
		if want != kind {
			fail("it is %s, described as %s", kind, want)
		}
	case []any:
		if !slices.Contains(want, any(kind)) {
			fail("it is %s, described as %v", kind, want)
		}
	default:
		fail("the schema has no type")
	}
	return wrong
}

func TestOpenAPIFileDescribesExactlyTheRoutes(t *testing.T) {
	t.Parallel()
	s := readSpec(t)
	described := 0
	for _, methods := range s.Paths {
		described += len(methods)
	}
	have := 0
	once := slices.DeleteFunc(indexRoutes(&site{}), func(r route) bool { return r.path == "/api/v1/openapi.json" })
	for _, r := range append(routes(&site{}), once...) {
		path, ok := strings.CutPrefix(r.path, "/api/v1")
		if !ok {
			continue
		}
		have++
		o, ok := s.Paths[path][strings.ToLower(r.method)]
		if !ok {
			t.Errorf("%s %s is not described", r.method, r.path)
			continue
		}
		if o.Role != r.role.String() {
			t.Errorf("%s %s is described for %s, it is for %v", r.method, r.path, o.Role, r.role)
		}
		for _, m := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(path, -1) {
			if !slices.ContainsFunc(o.Parameters, func(p struct{ Name, In string }) bool { return p.Name == m[1] && p.In == "path" }) {
				t.Errorf("%s %s: %s is not described", r.method, r.path, m[1])
			}
		}
	}
	if have != described {
		t.Errorf("%d calls are described, there are %d", described, have)
	}
}

func TestEveryAPIAnswerMatchesTheOpenAPIFile(t *testing.T) {
	t.Parallel()
	s := readSpec(t)
	for _, one := range samples() {
		route, ok := strings.CutPrefix(one.route, one.method()+" /api/v1")
		if !ok {
			continue
		}
		o := s.Paths[route][strings.ToLower(one.method())]
		for _, who := range []string{"vera", ""} {
			c, _ := stage(t, Config{Users: people})
			c.gate.slow.pace = 0
			q := one.request()
			q.as = who
			w := ask4(t, c, q)
			status := map[bool]string{true: "200", false: "default"}[w.Code == 200]
			var v any
			if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%s is not JSON: %v", one.path, err)
			}
			if route == "/openapi.json" && status == "200" {
				continue
			}
			for _, wrong := range s.check(one.path, o.Responses[status].Content["application/json"].Schema, v) {
				t.Errorf("%s as %q: %s", one.method(), who, wrong)
			}
		}
	}
}

// Every documented parameter is accepted, and no other.
func TestQueryMatchesTheOpenAPIFile(t *testing.T) {
	t.Parallel()
	c := open(t, newFakeStore())
	values := map[string]string{"state": "parked", "olderThan": "5m", "limit": "3", "hours": "2", "order": "newest", "reveal": "false"}
	for path, methods := range readSpec(t).Paths {
		o, ok := methods["get"]
		if !ok {
			continue
		}
		if path == "/logs" {
			continue // TestTheIndexShowsEachLogWithItsFigures
		}
		path = "/api/v1" + strings.ReplaceAll(path, "{id}", fakeID(5))
		query := ""
		for _, p := range o.Parameters {
			if p.In == "query" {
				value := values[p.Name]
				if value == "" {
					value = "orders"
				}
				query += "&" + p.Name + "=" + value
			}
		}
		if w := get(t, c, path+"?"+query); w.Code != 200 {
			t.Errorf("%s?%s: %d %s", path, query, w.Code, w.Body)
		}
		if w := get(t, c, path+"?dataSuorce=orders"); w.Code != 400 && path != "/api/v1/openapi.json" {
			t.Errorf("%s with a misspelt parameter: %d", path, w.Code)
		}
	}
}
