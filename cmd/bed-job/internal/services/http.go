// Package services calls the HTTP services of the log's calls.
package services

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"strings"

	"github.com/bedsql/bed/cmd/bed-job/internal/access"
	"github.com/bedsql/bed/internal/sender"
	"github.com/bedsql/bed/internal/service"
	"github.com/bedsql/bed/listener/delivery"
)

// HTTP is the driver for services: base is the base URL. A password of the data source is a bearer
// token. a may be nil.
func HTTP(base string, a *access.Access) (delivery.Target, error) {
	a = cmp.Or(a, new(access.Access))
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxResponseHeaderBytes = service.MaxHeader
	client := &http.Client{Transport: &transport{t, a}}
	s, err := service.Open(client, base)
	if err != nil {
		return delivery.Target{}, errors.New(strings.TrimPrefix(err.Error(), "bed: "))
	}
	s.Client.Timeout = a.Timeout
	if err := check(a); err != nil {
		return delivery.Target{}, err
	}
	if a.HasTLS() {
		if s.Base.Scheme != "https" {
			return delivery.Target{}, errors.New("its base URL begins with http://, and tls needs https://")
		}
		t.TLSClientConfig = a.Config(s.Base.Hostname())
	}
	return s.Target(""), nil
}

// check checks the names of the configured headers.
func check(a *access.Access) error {
	all := maps.Clone(a.Headers)
	maps.Copy(all, a.HeaderFiles)
	for name := range all {
		_, twice := a.Headers[name]
		_, filed := a.HeaderFiles[name]
		switch {
		case !service.Configurable(name):
			return fmt.Errorf("its headers have %q, which is malformed or belongs to the connection or to bed", name)
		case twice && filed:
			return fmt.Errorf("headers and headerFiles both have %s: remove one of the two", name)
		case name == "Authorization" && a.HasPassword():
			return errors.New("its headers and its password both make the header Authorization: remove one of the two")
		}
	}
	return nil
}

// transport adds the credentials of the configuration.
type transport struct {
	*http.Transport
	a *access.Access
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range t.a.Headers {
		r.Header.Set(name, value)
	}
	for name, file := range t.a.HeaderFiles {
		value, err := os.ReadFile(file) //nolint:gosec // the operator's own
		text := strings.TrimSpace(string(value))
		if err == nil && (text == "" || strings.ContainsAny(text, "\r\n")) {
			err = errors.New("it does not hold one line")
		}
		if err != nil {
			return nil, sender.Misled(&access.Error{Key: "headerFiles", Of: name, Err: err})
		}
		r.Header.Set(name, text)
	}
	if t.a.HasPassword() {
		token, err := t.a.Password(r.Context(), "")
		if err != nil {
			return nil, sender.Misled(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return t.Transport.RoundTrip(r)
}
