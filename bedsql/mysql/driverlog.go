package mysql

import (
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/go-sql-driver/mysql"
)

// driverLog takes the driver's own log lines ("broken pipe"), which would otherwise go to
// standard error, bypassing every logger. It drops them until tell is called: the errors
// have the same information.
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

// takeLog redirects the driver's log lines for cfg, unless the application has chosen a
// logger for this configuration.
func takeLog(cfg *mysql.Config) *driverLog {
	l := new(driverLog)
	chosen := cfg.Logger
	if chosen == nil || reflect.TypeOf(chosen).Comparable() && chosen == mysql.NewConfig().Logger {
		cfg.Logger = l
	}
	return l
}
