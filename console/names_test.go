package console

import (
	"html"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/bedsql/bed/internal/test/webproxy"
)

// oddNames are names that a decoded, cleaned or badly escaped path would change, most of them into
// another one of these.
var oddNames = []string{
	"orders", "a", "b", "a/b", "a//b", "/a", "//a", "a/", "a/../b", "../b", "..", ".", "...", "a/.", "a%2Fb", "a%2fb", "a%252Fb", "a%25b", "a%b", "%", "%00",
	"a b", "a+b", "a%20b", "a%2Bb", " a", "a?b", "a#b", "a&b=c", "a;b", "a\\b", "a\"<b>'", "-", "--", "~a", "a=b", "a:b@c,d", "订单/库", "é", "e\u0301", "127.0.0.1:3306/ledger",
	"pause", "a/pause", "-/pause?dataSource=a", strings.Repeat("长/", 63),
}

// pausedNow are the paused data sources.
func (f *fakeStore) pausedNow() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.paused))
}

var (
	pauseLink  = regexp.MustCompile(`href="([^"]*/pause(?:\?[^"]*)?)"`)
	formAction = regexp.MustCompile(`<form[^>]* action="([^"]*)"`)
)

func TestEachDataSourceIsReachedThroughProxiesWhateverItsName(t *testing.T) {
	t.Parallel()
	below := Config{AllowedHosts: []string{public}, BasePath: "/bed"}
	named := Config{AllowedHosts: []string{public}}
	for name, f := range map[string]fronted{
		"no proxy": {cfg: named, proxy: func(_ testing.TB, up string) string { return up }},
		"nginx that decodes and merges slashes": {cfg: named, proxy: func(t testing.TB, up string) string {
			return webproxy.Nginx(t, "merge_slashes on; location / { proxy_pass http://"+up+"/; }")
		}},
		"nginx that rewrites below a path": {cfg: below, proxy: func(t testing.TB, up string) string {
			return webproxy.Nginx(t, "location /bed/ { rewrite ^/bed/(.*)$ /$1 break; proxy_pass http://"+up+"; }")
		}},
		"nginx below a path": {cfg: below, proxy: func(t testing.TB, up string) string {
			return webproxy.Nginx(t, "location /bed/ { proxy_pass http://"+up+"/; }")
		}},
		"Caddy that takes the path off": {cfg: below, proxy: func(t testing.TB, up string) string {
			return webproxy.Caddy(t, "handle_path /bed* {\nreverse_proxy "+up+"\n}")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var console atomic.Pointer[Console]
			up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { console.Load().ServeHTTP(w, r) }))
			t.Cleanup(up.Close)
			f.cfg.Listen = up.Listener.Addr().String()
			front := f.proxy(t, f.cfg.Listen)
			fresh := func() *fakeStore {
				c, store := stage(t, f.cfg)
				store.sources = oddNames
				console.Store(c)
				return store
			}
			friendly := map[string]string{"Origin": "https://" + public, "Sec-Fetch-Site": "same-origin"}
			below := func(address string) string { return strings.TrimPrefix(html.UnescapeString(address), f.cfg.BasePath) }

			// By the links and forms of pages.
			store := fresh()
			_, page := f.ask(t, front, "GET", "/", "", nil)
			seen := map[string]bool{}
			for _, m := range pauseLink.FindAllStringSubmatch(page, -1) {
				before := store.pausedNow()
				_, ask := f.ask(t, front, "GET", below(m[1]), "", nil)
				form := formAction.FindStringSubmatch(ask)
				if form == nil {
					t.Errorf("%s is no form:\n%.300s", m[1], ask)
					continue
				}
				if w, body := f.ask(t, front, "POST", below(form[1]), "reason=x", friendly); w.StatusCode != http.StatusSeeOther {
					t.Errorf("%s: %d\n%.300s", form[1], w.StatusCode, body)
				}
				if after := store.pausedNow(); len(after) != len(before)+1 || seen[m[1]] {
					t.Errorf("%s paused %q after %q", m[1], after, before)
				}
				seen[m[1]] = true
			}
			if got, want := store.pausedNow(), slices.Sorted(slices.Values(oddNames)); !slices.Equal(got, want) {
				t.Errorf("paused are %q, want %q", got, want)
			}

			// By calls.
			for _, name := range oddNames {
				store := fresh()
				w, body := f.ask(t, front, "POST", "/api/v1/data-sources/-/pause?dataSource="+url.QueryEscape(name), "{}", nil)
				if w.StatusCode != http.StatusOK || !slices.Equal(store.pausedNow(), []string{name}) {
					t.Errorf("%q: %d, paused are %q\n%.300s", name, w.StatusCode, store.pausedNow(), body)
				}
			}
			store = fresh()
			if w, _ := f.ask(t, front, "POST", "/api/v1/data-sources/-/pause?dataSource=nowhere", "{}", nil); w.StatusCode != http.StatusNotFound || len(store.pausedNow()) > 0 {
				t.Errorf("an unknown name: %d, paused are %q", w.StatusCode, store.pausedNow())
			}
		})
	}
}

// An escaped name in the path is still that data source, unless a proxy decodes it.
func TestAnEscapedNameInThePathStillWorks(t *testing.T) {
	t.Parallel()
	for _, name := range oddNames {
		if name == "." || name == ".." { // which no client sends as a part of a path
			continue
		}
		for _, prefix := range []string{"", "/api/v1"} {
			c, f := stage(t, Config{})
			f.sources = oddNames
			body := map[string]string{"": "reason=x", "/api/v1": "{}"}[prefix]
			w := ask4(t, c, request{method: "POST", path: prefix + "/data-sources/" + url.PathEscape(name) + "/pause", body: body})
			if w.Code >= 400 || !slices.Equal(f.pausedNow(), []string{name}) {
				t.Errorf("%q: %d, paused are %q", name, w.Code, f.pausedNow())
			}
		}
	}
}
