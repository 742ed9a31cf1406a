package listener_test

import (
	"fmt"

	"github.com/bedsql/bed/listener"
)

// Somebody is to hear of each write that only an operator can help.
func ExampleBus_Subscribe() {
	bus := listener.NewBus(nil) // for bedsql.Config.Bus and asyncjob.Config.Bus
	heard := make(chan listener.Event)
	sub := bus.Subscribe(func(ev listener.Event) {
		if ev.Type == listener.Parked {
			heard <- ev
		}
	})
	defer sub.Close()

	// What the wrapped driver and the job do.
	bus.Publish(listener.Event{Type: listener.ExecuteFailure, DataSource: "orders"})
	bus.Publish(listener.Event{Type: listener.Parked, DataSource: "ledger"})

	fmt.Println("look after", (<-heard).DataSource)
	// Output: look after ledger
}
