package listener_test

import (
	"fmt"

	"github.com/bedsql/bed/listener"
)

// The operator should hear of each write that needs help.
func ExampleBus_Subscribe() {
	bus := listener.NewBus(nil) // for bedsql.Config.Bus and asyncjob.Config.Bus
	heard := make(chan listener.Event)
	sub := bus.Subscribe(func(ev listener.Event) {
		if ev.Type == listener.Parked {
			heard <- ev
		}
	})
	defer sub.Close()

	// The wrapped driver and the job publish such events.
	bus.Publish(listener.Event{Type: listener.ExecuteFailure, DataSource: "orders"})
	bus.Publish(listener.Event{Type: listener.Parked, DataSource: "ledger"})

	fmt.Println("look after", (<-heard).DataSource)
	// Output: look after ledger
}
