package attempt

import "github.com/bedsql/bed/listener/delivery"

// certain is an error of which more is known than it says itself. Its text and
// what it unwraps to are the driver's.
type certain struct {
	error
	class delivery.Class
}

func (e *certain) Unwrap() error { return e.error }

// Certainly gives the class.
func (e *certain) Certainly() delivery.Class { return e.class }

// Certain marks err as being of a class, whatever it says itself.
func Certain(err error, class delivery.Class) error { return &certain{err, class} }

// NotSent marks err, which by itself is of a class, as met before the write was
// sent, unless it is an answer.
func NotSent(err error, class delivery.Class) error {
	if class != delivery.Unknown {
		return err
	}
	return Certain(err, delivery.Unreachable)
}
