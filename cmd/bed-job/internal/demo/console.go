package demo

import (
	"context"
	"fmt"
	"net"
	"os"
)

// consoleAddress is where the demo's console is, if nothing else is there.
const consoleAddress = "127.0.0.1:8390"

// serve leaves a job running with its console, until ctx is done: the parked entry
// is there to be looked at, tried and decided.
func (w *world) serve(ctx context.Context, o Options) error {
	address, err := freeAddress(ctx)
	if err != nil {
		return err
	}
	text := w.configuration() + fmt.Sprintf("console: {listen: %q}\n", address)
	if err := os.WriteFile(w.configFile(), []byte(text), 0o600); err != nil {
		return err
	}
	n := w.narrator
	n.title("The console", "bed-job run with console.listen")
	n.say("Open %s in a browser: Bob's car is parked there.", n.bold("http://"+address+"/"))
	n.say("\"Try it\" says why it is refused; \"Retry\" has the job try it again, \"Discard\" gives it up.")
	n.say("Ctrl-C ends the demo.")
	if status := o.BedJob(ctx, o.Out, "run", "--log-level", "error", "-c", w.configFile()); status != 0 {
		return fmt.Errorf("bed-job run ended with status %d", status)
	}
	return nil
}

// freeAddress is consoleAddress, or one that is free.
func freeAddress(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", consoleAddress)
	if err != nil {
		if l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
			return "", fmt.Errorf("the console has nowhere to listen: %w", err)
		}
	}
	address := l.Addr().String()
	return address, l.Close()
}
