package entry

// State is the state of a unit, as far as the log knows.
type State string

const (
	// StateWaiting means that the unit is being delivered or waits for its delivery.
	StateWaiting State = "waiting"
	// StateParked means that the unit waits for an operator. A compensation has this state if a
	// part of its group is parked.
	StateParked State = "parked"
	// StateDelivered means that the job has delivered the unit, or that its group was
	// delivered. The log remembers it for 7 days.
	StateDelivered State = "delivered"
	// StateUnknown means that the log has no trace of the unit. It was never in the log, or its
	// own caller has removed it and knows more, or it ended too long ago.
	StateUnknown State = "unknown"
	// StateDiscarded means that an operator gave the unit up, or that its group is compensated.
	// The log remembers it for 7 days.
	StateDiscarded State = "discarded"
)
