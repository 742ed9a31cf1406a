package console

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// maxCost is the highest acceptable bcrypt cost: a log-in takes about a second.
const maxCost = 14

// A person is the sender of a request. The audit records the name.
type person struct {
	Name string
	Role Role
}

// local is every user of a console on loopback without a log-in.
var local = person{"local", Reveal}

func hashOf(token string) [32]byte { return sha256.Sum256([]byte(token)) }

// gatekeeper checks log-ins. It is safe for concurrent use.
type gatekeeper struct {
	open    bool // nobody has to log in
	users   map[string]User
	cfg     *Config
	proxies proxies
	slow    *slowly

	// A password is compared once and remembered by a keyed sum: bcrypt is slow, and
	// a page is many requests.
	key   [32]byte
	mu    sync.Mutex
	known map[[32]byte]time.Time
	// nobodys is compared with the password of an unknown user, so that response times do not
	// disclose user names.
	nobodys []byte
}

const (
	remembered = 10 * time.Minute
	maxKnown   = 1024
)

func newGatekeeper(c *Config) *gatekeeper {
	g := &gatekeeper{
		open: c.open(), users: map[string]User{}, cfg: c,
		slow: newSlowly(max(2, runtime.GOMAXPROCS(0)/2)), known: map[[32]byte]time.Time{},
	}
	g.proxies, _ = newProxies(c.TrustedProxies) // Validate has read them
	_, _ = rand.Read(g.key[:])
	cost := bcrypt.MinCost
	for _, u := range c.Users {
		g.users[u.Name] = u
		if n, err := bcrypt.Cost([]byte(u.PasswordHash)); err == nil {
			cost = max(cost, n)
		}
	}
	if len(c.Users) > 0 {
		g.nobodys, _ = bcrypt.GenerateFromPassword(g.key[:], cost)
	}
	return g
}

// who says who asks. Its errors are errNobody and errTooMany; ctx bounds the
// wait.
func (g *gatekeeper) who(r *http.Request) (person, error) {
	if g.open {
		return local, nil
	}
	given := r.Context().Value(arrived{}).(*http.Request)
	if p, err := g.cfg.ProxyAuth.who(given, g.proxies); err != nil || p.Name != "" {
		return p, err
	}
	if g.cfg.Authenticate != nil {
		if user, role := g.cfg.Authenticate(given); user != "" {
			if !nameable(user) || role > Reveal {
				return person{}, errNobody
			}
			return person{user, role}, nil
		}
	}
	began := time.Now()
	header := r.Header.Get("Authorization")
	if header == "" {
		return person{}, errNobody
	}
	if name, password, ok := r.BasicAuth(); ok {
		return g.password(r.Context(), address(r), name, password)
	}
	if scheme, rest, _ := strings.Cut(header, " "); strings.EqualFold(scheme, "Bearer") {
		if p, ok := g.token(strings.TrimSpace(rest)); ok {
			return p, nil
		}
	}
	return person{}, g.slow.failed(r.Context(), began, address(r), "")
}

func (g *gatekeeper) token(given string) (person, bool) {
	if given == "" {
		return person{}, false
	}
	sum := hashOf(given)
	digits := hex.EncodeToString(sum[:])
	var found person
	for _, t := range g.cfg.Tokens { // all of them, so that the time discloses nothing
		if subtle.ConstantTimeCompare([]byte(digits), []byte(t.TokenHash)) == 1 {
			found = person{"token " + t.Name, t.Role}
		}
	}
	return found, found.Role != 0
}

func (g *gatekeeper) password(ctx context.Context, from, name, password string) (person, error) {
	u, exists := g.users[name]
	sum := g.sum(name, password)
	if exists && g.isKnown(sum) {
		return person{u.Name, u.Role}, nil
	}
	began := time.Now()
	done, err := g.slow.turn(ctx, from, u.Name)
	if err != nil {
		return person{}, err
	}
	hash := []byte(u.PasswordHash)
	if !exists {
		hash = g.nobodys
	}
	// bcrypt would ignore everything after 72 bytes.
	err = bcrypt.CompareHashAndPassword(hash, []byte(password))
	done()
	if !exists || err != nil || len(password) > 72 {
		return person{}, g.slow.failed(ctx, began, from, name)
	}
	g.remember(sum)
	return person{u.Name, u.Role}, nil
}

func (g *gatekeeper) sum(name, password string) (sum [32]byte) {
	mac := hmac.New(sha256.New, g.key[:])
	mac.Write([]byte(name + ":" + password)) // a name holds no colon
	return [32]byte(mac.Sum(nil))
}

func (g *gatekeeper) isKnown(sum [32]byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Now().Before(g.known[sum])
}

func (g *gatekeeper) remember(sum [32]byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.known) >= maxKnown {
		clear(g.known)
	}
	g.known[sum] = time.Now().Add(remembered)
}

// address returns the address for counting failures: the peer's, possibly a proxy's. For IPv6 it is
// the network, because one host may own all of its addresses.
func address(r *http.Request) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	addr := peer.Addr().Unmap()
	if network, err := addr.WithZone("").Prefix(64); err == nil && addr.Is6() {
		return network.String()
	}
	return addr.String()
}
