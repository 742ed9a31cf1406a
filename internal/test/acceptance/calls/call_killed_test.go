package calls

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func init() { rig.Programs["peer"] = peerMain }

// peerOrder instructs a service in a process of its own.
type peerOrder struct {
	Driver, Home, Log string
	Die               int // the step of its suicide; 0 for never
}

const peerEnv = "BED_ACCEPTANCE_PEER"

// peerMain serves until it is killed.
func peerMain() int {
	fmt.Fprintln(os.Stderr, "ended:", servePeer())
	return 2
}

func servePeer() error {
	var o peerOrder
	if err := json.Unmarshal([]byte(os.Getenv(peerEnv)), &o); err != nil {
		return err
	}
	storage, err := txlog.Open(context.Background(), o.Driver, o.Log)
	if err != nil {
		return err
	}
	target, err := rig.Target(o.Driver)(o.Home)
	if err != nil {
		return err
	}
	s := new(rig.Steps)
	connector, err := bedsql.NewConnector(rig.CrashTarget(target, s, "home"), bedsql.Config{Storage: storage, Guarantee: bedsql.ExactlyOnce, Logger: rig.Quiet()})
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	if _, err := db.Exec("UPDATE account SET balance = balance WHERE id = 1"); err != nil { // its table of receipts is there
		return err
	}
	keyed, err := bedhttp.New(bedhttp.Config{Service: "orders", DB: db, Client: func(*http.Request) string { return "caller" }, Required: true})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.Begin(o.Die, false)
	fmt.Fprintf(os.Stderr, "serves http://%s\n", l.Addr())
	return http.Serve(l, keyed(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:gosec // a test
		if rig.Pays(w, r) {
			w.WriteHeader(http.StatusCreated)
		}
	})))
}

// startPeer starts a service that dies at a step, and returns its address.
func startPeer(t *testing.T, o peerOrder) (p *rig.Process, url string) {
	t.Helper()
	order, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	p = rig.StartWith(t, "peer", peerEnv+"="+string(order))
	p.Until("serves ")
	lines, _ := p.Said()
	for _, line := range lines {
		if _, after, ok := strings.Cut(line, "serves "); ok {
			url = after
		}
	}
	return p, url
}

// The service is killed before and after each statement of a call. The job sends the call again to
// the next process of the service.
func TestKilledServiceHandlesACallOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		caller, home := rig.New(t, rig.FreshLike(t, db)), rig.New(t, db)
		home.Account(0)
		net := rig.NewNetwork(t, "")
		peer := &rig.Peer{Service: &rig.Service{Rig: caller}, Net: net}
		cfg := caller.Cfg
		cfg.Guarantee, cfg.NoSyncRetry = bedsql.ExactlyOnce, true
		service := peer.Caller(cfg)
		job := caller.JobFor(asyncjob.Targets{rig.Payments: peer.Target()}, func(c *asyncjob.Config) { c.MaxDeliveryTryTimes = 1000 })
		order := peerOrder{Driver: db.Driver, Home: home.DB.DSN, Log: home.LogDB.DSN}
		_, healthy := startPeer(t, order)
		applied := 0
		for order.Die = 1; ; order.Die++ {
			p, url := startPeer(t, order)
			net.LeadsTo(url)
			_, err := service.Send(t.Context(), rig.Post(t, "/charges", "1"))
			if o := bedsql.OutcomeOf(err); o != bedsql.OutcomeDelivered && o != bedsql.OutcomeAccepted {
				t.Errorf("killed at step %d: the call is %v: %v", order.Die, o, err)
			}
			net.LeadsTo(healthy)
			caller.Drain(job)
			if applied++; home.Balance(1) != applied {
				t.Fatalf("killed at step %d: the balance is %d, want %d", order.Die, home.Balance(1), applied)
			}
			if err != nil {
				rig.WaitFor(t, "the service was dead", p.Dead)
				continue
			}
			if order.Die < 8 {
				t.Errorf("the service makes only %d steps", order.Die-1)
			}
			return
		}
	})
}
