package mysql

import (
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/go-sql-driver/mysql"
)

// driverLog takes the driver's own log lines ("broken pipe"), which would go to
// standard error past every logger. They are left out until somebody wants them:
// what they tell is in the errors too.
type driverLog struct {
	to atomic.Pointer[func(line string)]
}

var _ mysql.Logger = (*driverLog)(nil)

// Print implements mysql.Logger.
func (l *driverLog) Print(args ...any) {
	if to := l.to.Load(); to != nil {
		(*to)(fmt.Sprint(args...))
	}
}

func (l *driverLog) tell(to func(line string)) { l.to.Store(&to) }

// takeLog gives the driver's log lines of cfg a place of their own, unless the
// application has chosen one for this very configuration.
func takeLog(cfg *mysql.Config) *driverLog {
	l := new(driverLog)
	chosen := cfg.Logger
	if chosen == nil || reflect.TypeOf(chosen).Comparable() && chosen == mysql.NewConfig().Logger {
		cfg.Logger = l
	}
	return l
}
