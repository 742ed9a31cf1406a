package acceptance

import (
	"fmt"
	"os"
	"testing"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"

	"github.com/bedsql/bed/internal/test/leaks"
)

// beProgram in the environment turns the test binary into a program, for tests of ending processes.
const beProgram = "BED_ACCEPTANCE_BE_PROGRAM"

// programs give their exit status.
var programs = map[string]func() int{
	"writer": writerMain,
}

// binaries is where programs are built, once one is; it is removed when the tests end.
var binaries string

func TestMain(m *testing.M) {
	// Connections are lost here all the time.
	_ = mysql.SetLogger(new(mysql.NopLogger))
	name := os.Getenv(beProgram)
	if name == "" {
		// gorm's cache of prepared statements cannot be closed.
		cache := goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1")
		goleak.VerifyTestMain(leaks.Patient(m, cache), cache,
			goleak.Cleanup(func(status int) {
				_ = os.RemoveAll(binaries)
				os.Exit(status)
			}))
	}
	program, ok := programs[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "%s: there is no program %q\n", beProgram, name)
		os.Exit(2)
	}
	os.Exit(program())
}
