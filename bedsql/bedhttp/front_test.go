package bedhttp_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql/bedhttp"
)

// post sends a POST with a key, of JSON unless header says otherwise.
func post(t *testing.T, c *http.Client, url, key string, body io.Reader, header ...string) (status int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	all, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.Header.Get("Idempotent-Replayed") != "" {
		all = append([]byte("replayed "), all...)
	}
	return res.StatusCode, string(all)
}

// echo answers with the request's body.
func echo(w http.ResponseWriter, r *http.Request) {
	all, err := io.ReadAll(r.Body)
	_, _ = fmt.Fprintf(w, "%s %v", all, err)
}

func zipped(text string) *bytes.Buffer {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return &b
}

func TestBodyThatAFrontDecompressedIsReadAsItArrives(t *testing.T) {
	t.Parallel()
	h := serve(t, bedhttp.Config{DB: open(t), Client: single}, echo)
	for name, length := range map[string]func(r *http.Request){
		"unchanged": func(*http.Request) {}, "unknown": func(r *http.Request) { r.ContentLength = -1 }, "dropped": func(r *http.Request) { r.ContentLength = 0 },
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			z, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			r.Body = z
			length(r)
			h.ServeHTTP(w, r)
		}))
		defer srv.Close()
		for _, text := range []string{strings.Repeat("long", 100), ""} {
			for _, want := range []string{"", "replayed "} {
				if status, got := post(t, srv.Client(), srv.URL, fmt.Sprint(name, len(text)), zipped(text)); status != 200 || got != want+text+" <nil>" {
					t.Errorf("%s, %d bytes: %d %s", name, len(text), status, got)
				}
			}
		}
		if status, _ := post(t, srv.Client(), srv.URL, name+"0", zipped("other")); status != 422 {
			t.Errorf("another body: %d", status)
		}
	}
}

func TestEmptyBodyOfUnknownLengthIsABody(t *testing.T) {
	t.Parallel()
	h := serve(t, bedhttp.Config{DB: open(t), Client: single}, echo)
	srv := httptest.NewUnstartedServer(h)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	plain := httptest.NewServer(h)
	defer plain.Close()
	for _, want := range []string{" <nil>", "replayed  <nil>"} {
		if status, got := post(t, srv.Client(), srv.URL, "h2", struct{ io.Reader }{strings.NewReader("")}); status != 200 || got != want {
			t.Errorf("HTTP/2: %d %q", status, got)
		}
		c, err := net.Dial("tcp", plain.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nIdempotency-Key: chunked\r\n\r\n0\r\n\r\n")
		all, err := io.ReadAll(c)
		if err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 200") {
			t.Errorf("chunked: %s %v", all, err)
		}
		_ = c.Close()
	}
}

// upload is a form with a file and a new boundary each time.
func upload(article, file string) (body io.Reader, contentType string) {
	var b bytes.Buffer
	form := multipart.NewWriter(&b)
	_ = form.WriteField("article", article)
	part, _ := form.CreateFormFile("file", "a.txt")
	_, _ = io.WriteString(part, file)
	_ = form.Close()
	return &b, form.FormDataContentType()
}

func TestFormThatAFrontParsedIsWhatIsCompared(t *testing.T) {
	t.Parallel()
	h := serve(t, bedhttp.Config{DB: open(t), Client: single}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.FormValue("article"))
		if r.MultipartForm != nil {
			f, _, err := r.FormFile("file")
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.Copy(w, f)
			_ = f.Close()
		}
	})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.FormValue("tenant")
		h.ServeHTTP(w, r)
	}))
	defer srv.Close()
	for _, c := range []struct {
		key, article, file string
		status             int
		want               string
	}{
		{"u", "apple", "", 200, "apple"}, {"u", "apple", "", 200, "replayed apple"}, {"u", "pear", "", 422, ""},
		{"m", "apple", " one", 200, "apple one"}, {"m", "apple", " one", 200, "replayed apple one"}, {"m", "apple", " two", 422, ""}, {"m", "pear", " one", 422, ""},
	} {
		body, kind := io.Reader(strings.NewReader("article="+c.article)), "application/x-www-form-urlencoded"
		if c.file != "" {
			body, kind = upload(c.article, c.file)
		}
		if status, got := post(t, srv.Client(), srv.URL, c.key, body, "Content-Type", kind); status != c.status || status == 200 && got != c.want {
			t.Errorf("%v: %d %q", c, status, got)
		}
	}
	// FormValue leaves JSON as it is.
	for _, c := range []struct {
		body   string
		status int
	}{{`{"a":1}`, 200}, {`{"a":1}`, 200}, {`{"a":2}`, 422}} {
		if status, got := post(t, srv.Client(), srv.URL, "json", strings.NewReader(c.body)); status != c.status {
			t.Errorf("%s: %d %q", c.body, status, got)
		}
	}
}

func TestFingerprintOfTheApplicationDecides(t *testing.T) {
	t.Parallel()
	h := serve(t, bedhttp.Config{DB: open(t), Client: single, Fingerprint: func(r *http.Request, body []byte) string {
		if len(body) == 0 {
			t.Error("no body")
		}
		return r.FormValue("article") // the boundary differs
	}}, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.FormValue("article")) })
	srv := httptest.NewServer(h)
	defer srv.Close()
	for _, c := range []struct {
		article string
		status  int
		want    string
	}{{"apple", 200, "apple"}, {"apple", 200, "replayed apple"}, {"pear", 422, ""}} {
		body, kind := upload(c.article, "")
		if status, got := post(t, srv.Client(), srv.URL, "k", body, "Content-Type", kind); status != c.status || status == 200 && got != c.want {
			t.Errorf("%v: %d %q", c, status, got)
		}
	}
}

func TestRedirectOfARouterHoldsNoKey(t *testing.T) {
	t.Parallel()
	for _, status := range []int{301, 302, 303, 307, 308} {
		runs := 0
		mux := http.NewServeMux()
		mux.HandleFunc("POST /orders/{$}", func(w http.ResponseWriter, _ *http.Request) {
			runs++
			w.WriteHeader(http.StatusCreated)
		})
		mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/orders/", status) })
		h := serve(t, bedhttp.Config{DB: open(t), Client: single}, mux.ServeHTTP)
		for i, path := range []string{"/orders", "/orders", "/orders/", "/orders/"} {
			w, r := httptest.NewRecorder(), httptest.NewRequest("POST", path, strings.NewReader("{}"))
			r.Header.Set("Idempotency-Key", "k")
			h.ServeHTTP(w, r)
			if want := []int{status, status, 201, 201}[i]; w.Code != want || (w.Header().Get("Idempotent-Replayed") != "") != (i == 3) {
				t.Errorf("%d: %s was answered %d %v", status, path, w.Code, w.Header())
			}
		}
		if runs != 1 {
			t.Errorf("the handler ran %d times", runs)
		}
	}
}

// Its rows would be lost, or written again.
func TestRedirectOfAHandlerThatHasWrittenIsKept(t *testing.T) {
	t.Parallel()
	db := open(t)
	h := serve(t, bedhttp.Config{DB: db, Client: single}, func(w http.ResponseWriter, r *http.Request) {
		if _, err := bedhttp.Tx(r.Context()).ExecContext(r.Context(), "INSERT INTO note VALUES (1)"); err != nil {
			t.Error(err)
		}
		http.Redirect(w, r, "/notes/1", http.StatusSeeOther)
	})
	for i := range 2 {
		if w := ask(h, "POST", nil, "Idempotency-Key", "k"); w.Code != 303 || (w.Header().Get("Idempotent-Replayed") != "") != (i == 1) {
			t.Errorf("%d %v", w.Code, w.Header())
		}
	}
	var n int
	if err := db.QueryRow("SELECT count(*) FROM note").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d rows, %v", n, err)
	}
}

func TestKeepDecidesWhatIsKept(t *testing.T) {
	t.Parallel()
	for status, kept := range map[int]bool{200: true, 201: true, 204: true, 400: true, 404: true, 409: true, 422: true, 401: false, 403: false, 408: false, 425: false, 429: false, 500: false, 503: false} {
		for _, keep := range []func(int) bool{nil, func(s int) bool { return s == 403 || s == 503 }} {
			want := kept
			if keep != nil && status >= 300 {
				want = keep(status)
			}
			runs := 0
			h := serve(t, bedhttp.Config{DB: open(t), Client: single, Keep: keep}, func(w http.ResponseWriter, _ *http.Request) {
				runs++
				w.WriteHeader(status)
			})
			for range 2 {
				if w := ask(h, "POST", nil, "Idempotency-Key", "k"); w.Code != status {
					t.Errorf("%d was answered %d", status, w.Code)
				}
			}
			if want != (runs == 1) {
				t.Errorf("%d: the handler ran %d times, is to be kept: %v", status, runs, want)
			}
		}
	}
}

func TestPatternAndPathValuesReachWhatStandsOutside(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /notes/{id}/{rest...}", func(http.ResponseWriter, *http.Request) {})
	h := serve(t, bedhttp.Config{DB: open(t), Client: single}, mux.ServeHTTP)
	for _, key := range []string{"", "k"} {
		r := httptest.NewRequest("POST", "/notes/7/a/b", nil)
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
		if r.Pattern != "POST /notes/{id}/{rest...}" || r.PathValue("id") != "7" || r.PathValue("rest") != "a/b" {
			t.Errorf("key %q: %q %q %q", key, r.Pattern, r.PathValue("id"), r.PathValue("rest"))
		}
	}
}

func TestResponseControllerSetsDeadlinesUnderAKey(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(serve(t, bedhttp.Config{DB: open(t), Client: single}, func(w http.ResponseWriter, _ *http.Request) {
		rc := http.NewResponseController(w)
		for what, err := range map[string]error{"read": rc.SetReadDeadline(time.Now().Add(time.Hour)), "write": rc.SetWriteDeadline(time.Now().Add(time.Hour)), "duplex": rc.EnableFullDuplex()} {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	}))
	defer srv.Close()
	if status, _ := post(t, srv.Client(), srv.URL, "k", nil); status != 200 {
		t.Error(status)
	}
}

func TestKeyOfTheContextIsTheClients(t *testing.T) {
	t.Parallel()
	var got string
	h := serve(t, bedhttp.Config{DB: open(t), Client: single}, func(_ http.ResponseWriter, r *http.Request) { got = bedhttp.Key(r.Context()) })
	for header, want := range map[string]string{`"a \" b";v=1`: `a " b`, "raw": "raw"} {
		if ask(h, "POST", nil, "Idempotency-Key", header); got != want {
			t.Errorf("%s: %q", header, got)
		}
	}
	if ask(h, "POST", nil); got != "" || bedhttp.Key(context.Background()) != "" {
		t.Errorf("without a key: %q", got)
	}
}

func TestHeadersThatProtectAResponseComeBack(t *testing.T) {
	t.Parallel()
	protecting := []string{"Cache-Control", "Content-Disposition", "Vary", "X-Content-Type-Options", "Content-Security-Policy"}
	h := serve(t, bedhttp.Config{DB: open(t), Client: single}, func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range protecting {
			w.Header().Set(name, "as "+name)
		}
	})
	for range 2 {
		w := ask(h, "POST", nil, "Idempotency-Key", "k")
		for _, name := range protecting {
			if w.Header().Get(name) != "as "+name {
				t.Errorf("%s is %q", name, w.Header().Get(name))
			}
		}
	}
}

// waiting is a request whose handler waits until free is called.
func waiting(t *testing.T, cfg bedhttp.Config) (h http.Handler, free func()) {
	t.Helper()
	held, go_ := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h = serve(t, cfg, func(w http.ResponseWriter, _ *http.Request) {
		once.Do(func() { close(held) })
		<-go_
		_, _ = io.WriteString(w, "done")
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		ask(h, "POST", strings.NewReader("one"), "Idempotency-Key", "k")
	}()
	<-held
	return h, sync.OnceFunc(func() {
		close(go_)
		<-done
	})
}

func TestAnotherRequestUnderAKeyInUseIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	counters := new(bedhttp.Counters)
	h, free := waiting(t, bedhttp.Config{DB: open(t), Client: single, Wait: time.Hour, Counters: counters})
	defer free()
	wantProblem(t, ask(h, "POST", strings.NewReader("two"), "Idempotency-Key", "k"), 422, "key-reused")
	free()
	if w := ask(h, "POST", strings.NewReader("one"), "Idempotency-Key", "k"); w.Code != 200 || w.Body.String() != "done" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if a, b := counters.Refused.Load(), counters.Replayed.Load(); a != 1 || b != 1 {
		t.Errorf("%d refused and %d replayed, want 1 and 1", a, b)
	}
}

func TestOutstandingAnswersAreCounted(t *testing.T) {
	t.Parallel()
	counters := new(bedhttp.Counters)
	db := open(t)
	_, free := waiting(t, bedhttp.Config{DB: db, Client: single, Wait: time.Hour})
	defer free()
	h := serve(t, bedhttp.Config{DB: db, Client: single, Wait: time.Millisecond, Counters: counters}, nil)
	w := ask(h, "POST", strings.NewReader("one"), "Idempotency-Key", "k")
	if wantProblem(t, w, 409, "outstanding"); w.Header().Get("Retry-After") == "" || counters.Outstanding.Load() != 1 {
		t.Errorf("%v, %d", w.Header(), counters.Outstanding.Load())
	}
}

func TestErrorsThatAreNoFailureAreNoProblem(t *testing.T) {
	t.Parallel()
	h := serve(t, bedhttp.Config{DB: open(t), Client: single}, func(w http.ResponseWriter, r *http.Request) { bedhttp.Error(w, r, nil) })
	if w := ask(h, "POST", nil, "Idempotency-Key", "k"); w.Code != 200 || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}
