package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
)

// shop is the orders service, and the processes of the others if this program has started them.
type shop struct {
	*orders
	settings settings
	others   map[string]*process
}

// openShop opens the orders service in this process, and starts the others. Without a log every
// database is SQLite, in a directory that disappears with the shop.
func openShop(ctx context.Context, s settings) (_ *shop, err error) {
	var all resources
	defer func() {
		if err != nil {
			_ = all.close()
		}
	}()
	if s.Log == "" {
		dir, err := os.MkdirTemp("", "bed-shop")
		if err != nil {
			return nil, err
		}
		all.closing = append(all.closing, func() error { return os.RemoveAll(dir) })
		for name, dsn := range map[string]*string{"log": &s.Log, "orders": &s.Orders, "keys": &s.Keys, "stock": &s.Stock, "payments": &s.Payments} {
			*dsn = "file:" + filepath.Join(dir, name+".db") + "?_pragma=busy_timeout(200)&_pragma=journal_mode(WAL)"
		}
	}
	s.StockURL, s.PaymentsURL, s.Token = "http://stock", "http://payments", uuid.NewString()
	n := newNetwork()
	x := &shop{settings: s, others: map[string]*process{}}
	for _, name := range []string{"stock", "payments"} {
		p := &process{name: name, network: n, settings: s}
		x.others[name] = p
		all.closing = append(all.closing, p.kill)
		if err := p.start(ctx, ""); err != nil {
			return nil, err
		}
	}
	if x.orders, err = openOrders(ctx, s, n); err != nil {
		return nil, err
	}
	x.closing = append(all.closing, x.closing...)
	return x, nil
}

// process runs a service in a process of its own, so that a fault can kill it.
type process struct {
	name     string
	network  *network
	settings settings
	address  string
	command  *exec.Cmd
	ended    chan struct{}
}

// The moments at which a process kills itself while it handles a request.
const (
	beforeCommit = "before COMMIT"
	afterCommit  = "after COMMIT"
)

// start starts the process. crash is the moment at which it kills itself; empty for never.
func (p *process) start(ctx context.Context, crash string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	command, ended := exec.CommandContext(ctx, program), make(chan struct{})
	p.command, p.ended = command, ended
	command.Env = append(os.Environ(), "SHOP_SERVICE="+p.name, "SHOP_LISTEN=127.0.0.1:0", "SHOP_ATTACHED=1", "SHOP_CRASH="+crash,
		"SHOP_TOKEN="+p.settings.Token, "STOCK_DSN="+p.settings.Stock, "PAYMENTS_DSN="+p.settings.Payments)
	command.Stderr = os.Stderr
	_, err = command.StdinPipe() // it ends with this process, which closes the pipe
	out, oerr := command.StdoutPipe()
	if err := errors.Join(err, oerr, command.Start()); err != nil {
		close(ended)
		return err
	}
	address, err := bufio.NewReader(out).ReadString('\n')
	go func() {
		_ = command.Wait()
		close(ended)
	}()
	if err != nil {
		return fmt.Errorf("the %s service did not start: %w", p.name, err)
	}
	p.address = strings.TrimSpace(address)
	p.network.leads(p.name, p.address)
	return nil
}

// kill is kill -9.
func (p *process) kill() error {
	if p.command != nil && p.command.Process != nil {
		_ = p.command.Process.Kill() // it may have ended
		<-p.ended
	}
	return nil
}

// dies kills the process after next has handled a request, if that is wanted. net/http has not sent
// the response yet.
func dies(wanted bool, next http.Handler) http.Handler {
	if !wanted {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			_ = self.Kill()
		}
		select {}
	})
}
