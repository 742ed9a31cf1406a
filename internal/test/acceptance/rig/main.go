package rig

import (
	"fmt"
	"os"
	"testing"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"

	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/test/leaks"
)

func init() { besteffort.Strict = true }

// BeProgram in the environment turns the test binary into a program, for tests of ending processes.
const BeProgram = "BED_ACCEPTANCE_BE_PROGRAM"

// Programs of the test binary, by name, return their exit status.
var Programs = map[string]func() int{
	"writer": writerMain,
}

// binaries is where programs are built, once one is; it is removed when the tests end.
var binaries string

// Main runs the tests of a package, or one of its Programs.
func Main(m *testing.M) {
	// Connections are lost here all the time.
	_ = mysql.SetLogger(new(mysql.NopLogger))
	name := os.Getenv(BeProgram)
	if name == "" {
		// gorm's cache of prepared statements cannot be closed.
		cache := goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1")
		goleak.VerifyTestMain(leaks.Patient(m, cache), cache,
			goleak.Cleanup(func(status int) {
				_ = os.RemoveAll(binaries)
				os.Exit(status)
			}))
	}
	program, ok := Programs[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "%s: there is no program %q\n", BeProgram, name)
		os.Exit(2)
	}
	os.Exit(program())
}
